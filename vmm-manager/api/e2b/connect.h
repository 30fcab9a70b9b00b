#pragma once

#include <jansson.h>

#include "api/http.h"

/*
 * The Connect protocol, JSON codec: unary calls are plain JSON both ways, server streams are frames
 * of a flag byte, a big-endian length and JSON; the last frame (flag 2) holds `{}` or the error.
 */
#define CONNECT_TYPE_STREAM "application/connect+json"
#define CONNECT_FRAME_HEAD 5u

enum connect_code {
    CONNECT_CANCELED,
    CONNECT_UNKNOWN,
    CONNECT_INVALID_ARGUMENT,
    CONNECT_DEADLINE_EXCEEDED,
    CONNECT_NOT_FOUND,
    CONNECT_ALREADY_EXISTS,
    CONNECT_PERMISSION_DENIED,
    CONNECT_RESOURCE_EXHAUSTED,
    CONNECT_FAILED_PRECONDITION,
    CONNECT_UNIMPLEMENTED,
    CONNECT_INTERNAL,
    CONNECT_UNAVAILABLE,
    CONNECT_UNAUTHENTICATED,
};
#define CONNECT_CODE_COUNT (CONNECT_UNAUTHENTICATED + 1)

const char *connect_code_name(enum connect_code code);
unsigned connect_code_status(enum connect_code code);
enum connect_code connect_code_of(const struct error *err);

/*
 * The message of a call's body: plain JSON, or the one frame of a stream. An object, owned by the
 * caller.
 */
int connect_decode(const void *body, size_t size, bool stream, json_t **ret, struct error *err);

/* Answers of unary calls. */
void connect_answer(struct request *req, json_t *json_consume);
void connect_answer_code(struct request *req, enum connect_code code, const char *message);
void connect_answer_error(struct request *req, const struct error *err);

/* Streams: begin, messages, one end. */
void connect_stream_begin(struct request *req, size_t max, request_drained_fn drained);
/* -ENOBUFS: no room, nothing was written. */
int connect_stream_message(struct request *req, json_t *json_consume);
/* NULL: went well. */
void connect_stream_end(struct request *req, const char *code, const char *message);

/* How long the client gives it: Connect-Timeout-Ms, 0 when it says nothing. */
int connect_timeout_msec(struct request *req, uint32_t *ret, struct error *err);
