#pragma once

#include <stdint.h>

#include "base/macros.h"
#include "protocol/session.pb-c.h"

/*
 * Replies of an operation to the host, on stream 3. All of them block until the host takes them;
 * one that cannot be written ends the process.
 */
void reply_send(const Hearth__V1__Reply *reply);
/* The errno as CODE_SYSTEM with "what 'path': reason". Returns the exit status of a failure. */
int reply_errno(int errnum, const char *what, const char *path);
int reply_error(int code, int errnum, const char *format, ...) _printf_(3, 4);
/* The operation is complete; returns the exit status. */
int reply_ok(void);
void reply_ready(uint64_t size);

/*
 * A path of the host as a string, owned by the caller. NULL after a reply when it is empty, not
 * absolute, too long or holds a NUL.
 */
char *path_from_request(const ProtobufCBinaryData *path);
