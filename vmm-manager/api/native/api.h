#pragma once

#include "api/http.h"
#include "base/error.h"
#include "base/loop.h"

/*
 * The native API /v1 (docs/API.md), on the daemon's own loop: no thread of its own, no call that
 * blocks. It is served by whoever has a listener: see api/front.
 */
struct core;
struct api_native;

/*
 * `core` and `loop` are weak and outlive it. POST /v1/shutdown ends the loop with loop_quit(loop,
 * 0) once its answer is out, or calls `shutdown` when that is set.
 */
int api_native_new(struct core *core, struct loop *loop, struct api_native **ret,
                   struct error *err);
/* The servers that have it are gone by now. Processes and session commands go on in their guests.
 * Always returns NULL. */
struct api_native *api_native_free(struct api_native *api);

struct http_api api_native_http(struct api_native *api);
/* Instead of loop_quit(). */
void api_native_on_shutdown(struct api_native *api, void (*shutdown)(void *userdata),
                            void *userdata);
