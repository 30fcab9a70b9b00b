#include "guest/reply.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fd.h"
#include "guest/event.h"

#define REPLY_FD 3

void reply_send(const Hearth__V1__Reply *reply)
{
    size_t size = hearth__v1__reply__get_packed_size(reply);
    uint8_t *data = malloc(size + 4);

    if (!data)
        _exit(1);
    for (unsigned i = 0; i < 4; i++)
        data[i] = (uint8_t)(size >> (8 * i));
    (void)hearth__v1__reply__pack(reply, data + 4);
    if (fd_write_full(REPLY_FD, data, size + 4) < 0)
        _exit(1);
    free(data);
}

int reply_error(int code, int errnum, const char *format, ...)
{
    Hearth__V1__Error error = HEARTH__V1__ERROR__INIT;
    Hearth__V1__Reply reply = HEARTH__V1__REPLY__INIT;
    char text[512];
    va_list ap;

    va_start(ap, format);
    (void)vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    text_clean(text);
    error.code = (Hearth__V1__Code)code;
    error.errnum = (uint32_t)errnum;
    error.message = text;
    reply.reply_case = HEARTH__V1__REPLY__REPLY_ERROR;
    reply.error = &error;
    reply_send(&reply);
    return 1;
}

int reply_errno(int errnum, const char *what, const char *path)
{
    return reply_error(HEARTH__V1__CODE__CODE_SYSTEM, errnum, "%s '%.256s': %s", what, path,
                       errno_text(errnum));
}

int reply_ok(void)
{
    Hearth__V1__Done done = HEARTH__V1__DONE__INIT;
    Hearth__V1__Reply reply = HEARTH__V1__REPLY__INIT;

    reply.reply_case = HEARTH__V1__REPLY__REPLY_OK;
    reply.ok = &done;
    reply_send(&reply);
    return 0;
}

void reply_ready(uint64_t size)
{
    Hearth__V1__Ready ready = HEARTH__V1__READY__INIT;
    Hearth__V1__Reply reply = HEARTH__V1__REPLY__INIT;

    ready.size = size;
    reply.reply_case = HEARTH__V1__REPLY__REPLY_READY;
    reply.ready = &ready;
    reply_send(&reply);
}

char *path_from_request(const ProtobufCBinaryData *path)
{
    const char *problem = NULL;
    char *text;

    if (path->len == 0)
        problem = "is empty";
    else if (path->len >= PATH_MAX)
        problem = "is too long";
    else if (memchr(path->data, '\0', path->len))
        problem = "holds a NUL byte";
    else if (path->data[0] != '/')
        problem = "is not absolute";
    if (problem) {
        (void)reply_error(HEARTH__V1__CODE__CODE_INVALID, EINVAL, "path '%.*s' %s",
                          (int)MIN(path->len, (size_t)128), path->len ? (char *)path->data : "",
                          problem);
        return NULL;
    }
    text = strndup((const char *)path->data, path->len);
    if (!text)
        (void)reply_error(HEARTH__V1__CODE__CODE_SYSTEM, ENOMEM, "out of memory");
    return text;
}
