#pragma once

#include <stddef.h>

#include <protocol/session.pb-c.h>

#include "base/error.h"

/*
 * Internal to host/. What the guest says, made fit for our side: text without control bytes, errors
 * with our stable codes. Generated types do not leave this folder.
 */

/* Which operation failed: the same errno means another thing for a path than for a process. */
enum wire_subject {
    WIRE_SUBJECT_GUEST,
    WIRE_SUBJECT_PROCESS,
    WIRE_SUBJECT_FILE,
    WIRE_SUBJECT_DIAL,
};

/* Maps the guest's error to ours; `what` names what was attempted, in our own words. */
void wire_error(const Hearth__V1__Error *from, enum wire_subject subject, const char *what,
                struct error *to);

/*
 * Copies foreign bytes as printable UTF-8: control bytes, backslashes and invalid sequences become
 * \xNN. Over-long text is cut at a character and always ends with a NUL. Returns bytes written.
 */
size_t wire_escape(char *to, size_t to_size, const void *from, size_t from_size);
/* The same for a C string; NULL counts as "". */
size_t wire_escape_string(char *to, size_t to_size, const char *from);
