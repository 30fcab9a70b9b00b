#pragma once

#include "base/error.h"
#include "base/loop.h"

/*
 * The native API /v1 (docs/API.md) on a Unix socket, on the daemon's own loop: no thread of its
 * own, no call that blocks.
 */
struct core;
struct api_native;

/*
 * Listens on `socket_path` (mode 0600), replacing the socket of a daemon that is gone without a
 * moment in which the path is missing. `core` and `loop` are weak and outlive the server. POST
 * /v1/shutdown ends the loop with loop_quit(loop, 0) once its answer is out.
 */
int api_native_new(struct core *core, struct loop *loop, const char *socket_path,
                   struct api_native **ret, struct error *err);
/*
 * Breaks off every connection and removes the socket if it is still ours. Processes and session
 * commands go on in their guests. Always returns NULL.
 */
struct api_native *api_native_free(struct api_native *api);
