#include "base/error.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int errnum;
    int http_status;
} codes[] = {
#define X(suffix, text, errnum, status) [ERR_##suffix] = {text, errnum, status},
    ERROR_CODE_TABLE(X)
#undef X
};
static_assert(ARRAY_SIZE(codes) == ERROR_CODE_COUNT, "every code has a row");

/* Which code an errno stands for when the caller names none. */
static const struct {
    int errnum;
    enum error_code code;
} by_errno[] = {
    {EINVAL, ERR_INVALID_ARGUMENT},
    {ERANGE, ERR_INVALID_ARGUMENT},
    {ENOENT, ERR_NOT_FOUND},
    {ESRCH, ERR_NOT_FOUND},
    {EEXIST, ERR_ALREADY_EXISTS},
    {EBUSY, ERR_CONFLICT},
    {EACCES, ERR_PERMISSION_DENIED},
    {EPERM, ERR_PERMISSION_DENIED},
    {EROFS, ERR_PERMISSION_DENIED},
    {E2BIG, ERR_LIMIT_EXCEEDED},
    {ENOBUFS, ERR_LIMIT_EXCEEDED},
    {ENAMETOOLONG, ERR_LIMIT_EXCEEDED},
    {EMSGSIZE, ERR_LIMIT_EXCEEDED},
    {EAGAIN, ERR_TOO_MANY},
    {ETIMEDOUT, ERR_TIMEOUT},
    {ECANCELED, ERR_CANCELLED},
    {ENOMEM, ERR_OUT_OF_MEMORY},
    {ENOSPC, ERR_NO_SPACE},
    {EDQUOT, ERR_NO_SPACE},
    {EOPNOTSUPP, ERR_UNSUPPORTED},
    {ENOSYS, ERR_UNSUPPORTED},
    {ECONNREFUSED, ERR_UNAVAILABLE},
    {EPROTO, ERR_GUEST_PROTOCOL},
    {ECONNRESET, ERR_GUEST_GONE},
    {ENODEV, ERR_BACKEND_UNAVAILABLE},
    {ENOTDIR, ERR_PATH_NOT_DIRECTORY},
    {EISDIR, ERR_PATH_IS_DIRECTORY},
};

enum error_code error_code_from_errno(int errnum)
{
    if (errnum == 0)
        return ERR_NONE;
    for (size_t i = 0; i < ARRAY_SIZE(by_errno); i++)
        if (by_errno[i].errnum == errnum)
            return by_errno[i].code;
    return ERR_INTERNAL;
}

const char *error_code_name(enum error_code code)
{
    return (size_t)code < ARRAY_SIZE(codes) ? codes[code].name : "internal";
}

int error_code_errno(enum error_code code)
{
    return (size_t)code < ARRAY_SIZE(codes) ? codes[code].errnum : EIO;
}

int error_code_http_status(enum error_code code)
{
    return (size_t)code < ARRAY_SIZE(codes) ? codes[code].http_status : 500;
}

enum error_code error_code_from_name(const char *name)
{
    for (size_t i = 0; name && i < ARRAY_SIZE(codes); i++)
        if (strcmp(codes[i].name, name) == 0)
            return (enum error_code)i;
    return ERR_INTERNAL;
}

const char *errno_text(int errnum)
{
    const char *text = strerrordesc_np(errnum);

    return text ? text : "unknown error";
}

_printf_(4, 0) static void fill(struct error *err, int errnum, enum error_code code,
                                const char *format, va_list ap)
{
    if (!err)
        return;
    err->errnum = errnum;
    err->code = code;
    (void)vsnprintf(err->text, sizeof(err->text), format, ap);
}

int error_set(struct error *err, int errnum, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    fill(err, errnum, error_code_from_errno(errnum), format, ap);
    va_end(ap);
    return -errnum;
}

int error_set_code(struct error *err, enum error_code code, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    fill(err, error_code_errno(code), code, format, ap);
    va_end(ap);
    return -error_code_errno(code);
}

int error_set_errno(struct error *err, enum error_code code, int errnum, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    fill(err, errnum, code, format, ap);
    va_end(ap);
    return -errnum;
}

int error_fill(struct error *err, int r, const char *format, ...)
{
    if (err && err->errnum == 0 && r < 0) {
        va_list ap;

        va_start(ap, format);
        fill(err, -r, error_code_from_errno(-r), format, ap);
        va_end(ap);
    }
    return r;
}

void error_wrap(struct error *err, const char *format, ...)
{
    char text[sizeof(err->text)];
    va_list ap;
    size_t n;

    if (!err || err->errnum == 0)
        return;
    va_start(ap, format);
    (void)vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    n = strlen(text);
    if (n + strlen(": ") < sizeof(text))
        (void)snprintf(text + n, sizeof(text) - n, ": %.*s", (int)(sizeof(text) - n - 3),
                       err->text);
    memcpy(err->text, text, sizeof(text));
}

void error_clear(struct error *err)
{
    if (err)
        *err = (struct error){0};
}

void error_copy(struct error *to, const struct error *from)
{
    if (to && from)
        *to = *from;
}
