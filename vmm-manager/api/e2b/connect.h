#pragma once

#include <jansson.h>

#include "api/e2b/proto.h"
#include "api/http.h"

/*
 * The Connect protocol: unary calls are one plain message both ways, streams are frames of a flag
 * byte, a big-endian length and a message; an answer's last frame (flag 2) holds `{}` or the error.
 * Messages are JSON or binary protobuf, as the request's type says; errors and ends always JSON.
 * Handlers see JSON only.
 */
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
 * How the messages of a request are written: *ret_proto is NULL for JSON. False: in no way that
 * goes with such a call, which is already answered.
 */
bool connect_codec(struct request *req, bool stream, const struct proto_message **ret_proto);
/* A message, an object owned by the caller. proto: NULL for JSON. */
int connect_decode(const struct proto_message *proto, const void *data, size_t size, json_t **ret,
                   struct error *err);
/* The same of a body that has one frame. */
int connect_decode_frame(const struct proto_message *proto, const void *body, size_t size,
                         json_t **ret, struct error *err);
/* The length of a frame's message by its head; -EINVAL or -EOPNOTSUPP for one we do not take. */
int connect_frame_length(const uint8_t head[static CONNECT_FRAME_HEAD], size_t max, size_t *ret,
                         struct error *err);

/* Answers of calls, unary or, by the request's type, streams of one message. */
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
