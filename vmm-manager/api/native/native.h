#pragma once

#include <sys/types.h>

#include "api/front/access.h"
#include "api/http.h"
#include "api/native/api.h"
#include "core/core.h"
#include "host/exec.h"
#include "model/fields.h"

/* Insides of the native API, shared by its handlers. */

#define CAPTURE_MAX (8u * 1024u * 1024u)      /* of each output stream of a plain exec or run */
#define NDJSON_MAX (1024u * 1024u)            /* lines that wait for their reader */
#define CALL_TIMEOUT_USEC (30 * USEC_PER_SEC) /* for a guest to answer a small question */

struct code_run;
struct creation_wait;
struct event_hub;
struct exec_job;

struct api_native {
    struct core *core; /* weak */
    struct loop *loop; /* weak */
    uint64_t started_wall_usec;
    char binary_id[64];
    struct event_hub *events;        /* owned */
    struct creation_wait *creations; /* owned list: made for clients that will ask again */
    struct code_run *code_runs;      /* owned list */
    struct exec_job *jobs; /* owned list: processes that clients wait for, or left behind */
    void (*shutdown)(void *userdata); /* NULL: the loop ends */
    void *shutdown_userdata;
};

extern const struct route native_routes[];
extern const size_t native_routes_count;

static inline struct api_native *native_of(const struct request *req)
{
    return (struct api_native *)request_context(req);
}

/* create.c: lets go of creations that no request waits for. */
void creations_free(struct api_native *api);

/* Wakes the sandbox that the path names before its handler runs, if it sleeps. */
void native_gate(struct request *req, void *context);

/* The sandbox that the path names, its console; NULL: the error is already the answer. */
struct sandbox *native_sandbox(struct request *req);
struct console *native_console(struct request *req, struct sandbox **ret_sb);

/* Decodes the body by a table; false: the error is already the answer. */
bool native_decode(struct request *req, const struct field *fields, size_t count, void *target);

/* Values of the query; false: the error is already the answer. Absent ones stay as they are. */
bool native_query_string(struct request *req, const char *key, const char **ret);
bool native_query_bool(struct request *req, const char *key, bool *ret);
bool native_query_u64(struct request *req, const char *key, uint64_t max, uint64_t *ret);

/* One of the offsets in {from: {stdout, stderr}}; `from` may be NULL. */
int native_decode_from(const json_t *from, uint64_t ret[3], bool *ret_given, struct error *err);

/* Octal text to mode bits. */
int native_parse_mode(const char *text, uint32_t *ret, struct error *err);
