#include "host/wire.h"

/* Enough for a path and a reason; the rest of struct error's text is ours. */
#define GUEST_TEXT_MAX 256u
#define GUEST_ERRNO_MAX 4095u

static enum error_code code_of_file_errno(int errnum)
{
    switch (errnum) {
    case ENOENT:
        return ERR_PATH_NOT_FOUND;
    case ENOTDIR:
        return ERR_PATH_NOT_DIRECTORY;
    case EISDIR:
        return ERR_PATH_IS_DIRECTORY;
    case EEXIST:
        return ERR_ALREADY_EXISTS;
    case EACCES:
    case EPERM:
    case EROFS:
        return ERR_PERMISSION_DENIED;
    case ENOSPC:
    case EDQUOT:
        return ERR_NO_SPACE;
    case ENOTEMPTY:
    case EBUSY:
    case ETXTBSY:
    case EXDEV:
        return ERR_CONFLICT;
    case EINVAL:
    case ELOOP:
        return ERR_INVALID_ARGUMENT;
    case ENAMETOOLONG:
    case EFBIG:
        return ERR_LIMIT_EXCEEDED;
    case EMFILE:
    case ENFILE:
    case EAGAIN:
        return ERR_TOO_MANY;
    case ENOMEM:
        return ERR_GUEST_OUT_OF_MEMORY;
    case EOPNOTSUPP:
    case ENOSYS:
        return ERR_UNSUPPORTED;
    default:
        return ERR_INTERNAL;
    }
}

static enum error_code code_of_dial_errno(int errnum)
{
    switch (errnum) {
    case ETIMEDOUT:
        return ERR_TIMEOUT;
    case EINVAL:
    case EAFNOSUPPORT:
        return ERR_INVALID_ARGUMENT;
    case ENOMEM:
        return ERR_GUEST_OUT_OF_MEMORY;
    default:
        return ERR_UNAVAILABLE;
    }
}

static enum error_code code_of_process_errno(int errnum)
{
    switch (errnum) {
    case ESRCH:
        return ERR_PROCESS_NOT_FOUND;
    case ENOSPC:
    case EDQUOT:
        return ERR_NO_SPACE;
    case EAGAIN:
    case EMFILE:
    case ENFILE:
        return ERR_TOO_MANY;
    case ENOMEM:
        return ERR_GUEST_OUT_OF_MEMORY;
    case EACCES:
    case EPERM:
        return ERR_PERMISSION_DENIED;
    case EBUSY:
        return ERR_CONFLICT;
    case EINVAL:
        return ERR_INVALID_ARGUMENT;
    default:
        return ERR_INTERNAL;
    }
}

static enum error_code code_of_errno(enum wire_subject subject, int errnum)
{
    switch (subject) {
    case WIRE_SUBJECT_FILE:
        return code_of_file_errno(errnum);
    case WIRE_SUBJECT_DIAL:
        return code_of_dial_errno(errnum);
    case WIRE_SUBJECT_GUEST:
    case WIRE_SUBJECT_PROCESS:
        break;
    }
    return code_of_process_errno(errnum);
}

/* The guest's codes are an open set to us: what we do not know is an internal error. */
static enum error_code code_of(int code, enum wire_subject subject, int errnum)
{
    switch (code) {
    case HEARTH__V1__CODE__CODE_INVALID:
        return ERR_INVALID_ARGUMENT;
    case HEARTH__V1__CODE__CODE_NOT_THAWED:
        return ERR_UNAVAILABLE;
    case HEARTH__V1__CODE__CODE_UNSUPPORTED:
        return ERR_UNSUPPORTED;
    case HEARTH__V1__CODE__CODE_LIMIT:
        return ERR_TOO_MANY;
    case HEARTH__V1__CODE__CODE_NO_PROCESS:
        return ERR_PROCESS_NOT_FOUND;
    case HEARTH__V1__CODE__CODE_COMMAND_NOT_FOUND:
        return ERR_COMMAND_NOT_FOUND;
    case HEARTH__V1__CODE__CODE_COMMAND_NOT_EXECUTABLE:
        return ERR_COMMAND_NOT_EXECUTABLE;
    case HEARTH__V1__CODE__CODE_CWD:
        return ERR_CWD_NOT_FOUND;
    case HEARTH__V1__CODE__CODE_USER:
        return ERR_USER_NOT_FOUND;
    case HEARTH__V1__CODE__CODE_ARGUMENTS_TOO_LONG:
        return ERR_LIMIT_EXCEEDED;
    case HEARTH__V1__CODE__CODE_SYSTEM:
        return code_of_errno(subject, errnum);
    default:
        return ERR_INTERNAL;
    }
}

void wire_error(const Hearth__V1__Error *from, enum wire_subject subject, const char *what,
                struct error *to)
{
    int errnum = from->errnum <= GUEST_ERRNO_MAX ? (int)from->errnum : 0;
    enum error_code code = code_of((int)from->code, subject, errnum);
    char text[GUEST_TEXT_MAX];

    if (wire_escape_string(text, sizeof(text), from->message) == 0)
        (void)wire_escape_string(text, sizeof(text),
                                 errnum ? errno_text(errnum) : "no reason given");
    if (errnum)
        (void)error_set_errno(to, code, errnum, "%s: %s", what, text);
    else
        (void)error_set_code(to, code, "%s: %s", what, text);
}
