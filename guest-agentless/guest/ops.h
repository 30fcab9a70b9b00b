#pragma once

#include "protocol/session.pb-c.h"

/*
 * Operations that run as children of ours: already in the root, as the user, with stream 3
 * (Replies) in place, stream 0 where content comes to them (write, dial), stream 1 where it goes
 * from them (read, dial), and nothing else open. They may block. SIGTERM ends them.
 */

/* Runs the request's file operation or dial; returns the exit status. */
int op_run(const Hearth__V1__Request *request);

int op_file(const Hearth__V1__FileOp *op);
int op_dial(const Hearth__V1__Dial *dial);
