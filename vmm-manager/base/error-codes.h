#pragma once

/*
 * The one table of stable error codes. A code never changes its meaning; new ones go to the end of
 * their group. Columns: enum suffix, code as clients see it, errno it travels as, HTTP status.
 */
#define ERROR_CODE_TABLE(X)                                                                        \
    X(NONE, "ok", 0, 200)                                                                          \
    X(INTERNAL, "internal", EIO, 500)                                                              \
    X(INVALID_ARGUMENT, "invalid_argument", EINVAL, 400)                                           \
    X(NOT_FOUND, "not_found", ENOENT, 404)                                                         \
    X(ALREADY_EXISTS, "already_exists", EEXIST, 409)                                               \
    X(CONFLICT, "conflict", EBUSY, 409)                                                            \
    X(PERMISSION_DENIED, "permission_denied", EACCES, 403)                                         \
    X(LIMIT_EXCEEDED, "limit_exceeded", E2BIG, 413)                                                \
    X(TOO_MANY, "too_many", EAGAIN, 429)                                                           \
    X(TIMEOUT, "timeout", ETIMEDOUT, 504)                                                          \
    X(CANCELLED, "cancelled", ECANCELED, 499)                                                      \
    X(OUT_OF_MEMORY, "out_of_memory", ENOMEM, 503)                                                 \
    X(NO_SPACE, "no_space", ENOSPC, 507)                                                           \
    X(UNSUPPORTED, "unsupported", EOPNOTSUPP, 501)                                                 \
    X(UNAVAILABLE, "unavailable", ECONNREFUSED, 503)                                               \
    X(SANDBOX_NOT_FOUND, "sandbox_not_found", ENOENT, 404)                                         \
    X(SANDBOX_NOT_RUNNING, "sandbox_not_running", ENXIO, 409)                                      \
    X(SANDBOX_FAILED, "sandbox_failed", EHOSTDOWN, 409)                                            \
    X(IMAGE_NOT_FOUND, "image_not_found", ENOENT, 404)                                             \
    X(IMAGE_INVALID, "image_invalid", EINVAL, 400)                                                 \
    X(IMAGE_IN_USE, "image_in_use", EBUSY, 409)                                                    \
    X(KERNEL_NOT_FOUND, "kernel_not_found", ENOENT, 404)                                           \
    X(TEMPLATE_NOT_FOUND, "template_not_found", ENOENT, 404)                                       \
    X(TEMPLATE_INVALID, "template_invalid", EINVAL, 409)                                           \
    X(SESSION_NOT_FOUND, "session_not_found", ENOENT, 404)                                         \
    X(SESSION_BUSY, "session_busy", EBUSY, 409)                                                    \
    X(SESSION_DEAD, "session_dead", EPIPE, 409)                                                    \
    X(NO_SHELL, "no_shell", ENOENT, 422)                                                           \
    X(PROCESS_NOT_FOUND, "process_not_found", ESRCH, 404)                                          \
    X(COMMAND_NOT_FOUND, "command_not_found", ENOENT, 422)                                         \
    X(COMMAND_NOT_EXECUTABLE, "command_not_executable", EACCES, 422)                               \
    X(CWD_NOT_FOUND, "cwd_not_found", ENOENT, 422)                                                 \
    X(USER_NOT_FOUND, "user_not_found", ENOENT, 422)                                               \
    X(PATH_NOT_FOUND, "path_not_found", ENOENT, 404)                                               \
    X(PATH_NOT_DIRECTORY, "path_not_directory", ENOTDIR, 409)                                      \
    X(PATH_IS_DIRECTORY, "path_is_directory", EISDIR, 409)                                         \
    X(GUEST_PROTOCOL, "guest_protocol_error", EPROTO, 502)                                         \
    X(GUEST_UNRESPONSIVE, "guest_unresponsive", ETIMEDOUT, 504)                                    \
    X(GUEST_PANIC, "guest_panic", EHOSTDOWN, 502)                                                  \
    X(GUEST_OUT_OF_MEMORY, "guest_out_of_memory", ENOMEM, 507)                                     \
    X(GUEST_GONE, "guest_gone", ECONNRESET, 502)                                                   \
    X(BACKEND_UNAVAILABLE, "backend_unavailable", ENODEV, 503)                                     \
    X(BACKEND_FAILED, "backend_failed", EIO, 502)                                                  \
    X(SNAPSHOT_NOT_FOUND, "snapshot_not_found", ENOENT, 404)                                       \
    X(SNAPSHOT_INVALID, "snapshot_invalid", EINVAL, 409)                                           \
    X(SNAPSHOT_IN_USE, "snapshot_in_use", EBUSY, 409)                                              \
    X(UNAUTHORIZED, "unauthorized", EPERM, 401)                                                    \
    X(QUOTA_EXCEEDED, "quota_exceeded", EDQUOT, 429)                                               \
    X(REGISTRY_FAILED, "registry_failed", EREMOTEIO, 502)                                          \
    X(REGISTRY_DENIED, "registry_denied", EKEYREJECTED, 403)                                       \
    X(BUILD_FAILED, "build_failed", EINVAL, 422)                                                   \
    X(RANGE_NOT_SATISFIABLE, "range_not_satisfiable", ERANGE, 416)
