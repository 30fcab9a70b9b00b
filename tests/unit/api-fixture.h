#pragma once

#include <jansson.h>

#include "api/front/front.h"
#include "api/native/api.h"
#include "api/native/stream.h"
#include "core-fixture.h"
#include "http-client.h"

/* The native API on a core with the fake backend; guests are real guest servers in processes. */
struct api_fixture {
    struct fixture core;
    struct api_native *api;
    struct api_front *front;
    const char *listen; /* TCP, NULL: off */
    char path[160];
    struct sandbox *sb;
    char id[32];
};

void api_begin(struct api_fixture *f);
void api_begin_listening(struct api_fixture *f, const char *listen);
void api_end(struct api_fixture *f);
/* Its doors open and close: api_begin() and api_end() do it too. */
void api_serve(struct api_fixture *f);
void api_close(struct api_fixture *f);

/* One request with a JSON body (NULL: none); the status, and the JSON answer in *ret (may be NULL).
 */
unsigned api_ask(struct api_fixture *f, const char *method, const char *path, const char *body,
                 json_t **ret);
/* The same on the TCP port, with a key (NULL: none) and more header lines (NULL: none). */
unsigned api_ask_as(struct api_fixture *f, const char *key, const char *headers, const char *method,
                    const char *path, const char *body, struct client *c);
/* A key of this tenant and role, with the quota as JSON (NULL: none). */
void api_key(struct api_fixture *f, const char *tenant, const char *role, const char *quota,
             char ret[static 64]);
/* Path below the fixture's sandbox. */
unsigned api_ask_box(struct api_fixture *f, const char *method, const char *path, const char *body,
                     json_t **ret);
/* The request must fail with this code. */
void api_fails(struct api_fixture *f, const char *method, const char *path, const char *body,
               unsigned status, const char *code);
const char *api_string(const json_t *json, const char *key);
json_int_t api_int(const json_t *json, const char *key);

/* ---- streams ---- */
/* Sends an upgrade and waits for the 101; what came behind stays in c->in. */
void api_upgrade(struct api_fixture *f, struct client *c, const char *path, const char *body);
void api_frame_send(struct client *c, enum stream_type type, const void *data, size_t size);
/* Waits for a whole frame and consumes it; payload is valid until the next call. */
struct frame {
    unsigned type;
    const char *payload; /* with a NUL behind it */
    size_t size;
};
struct frame api_frame(struct client *c);
/* Reads to EXIT or ERROR, appends output to `out` (may be NULL); the last frame's JSON, owned. */
json_t *api_finish(struct client *c, struct buf *out, unsigned *ret_type);
