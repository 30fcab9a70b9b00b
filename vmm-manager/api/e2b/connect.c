#include "api/e2b/connect.h"

#include <assert.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "base/strv.h"
#include "model/text.h"

#define ERROR_STREAM_MAX (64u * 1024u)

static const struct {
    const char *name;
    unsigned status;
} codes[] = {
    [CONNECT_CANCELED] = {"canceled", 499},
    [CONNECT_UNKNOWN] = {"unknown", 500},
    [CONNECT_INVALID_ARGUMENT] = {"invalid_argument", 400},
    [CONNECT_DEADLINE_EXCEEDED] = {"deadline_exceeded", 504},
    [CONNECT_NOT_FOUND] = {"not_found", 404},
    [CONNECT_ALREADY_EXISTS] = {"already_exists", 409},
    [CONNECT_PERMISSION_DENIED] = {"permission_denied", 403},
    [CONNECT_RESOURCE_EXHAUSTED] = {"resource_exhausted", 429},
    [CONNECT_FAILED_PRECONDITION] = {"failed_precondition", 400},
    [CONNECT_UNIMPLEMENTED] = {"unimplemented", 501},
    [CONNECT_INTERNAL] = {"internal", 500},
    [CONNECT_UNAVAILABLE] = {"unavailable", 503},
    [CONNECT_UNAUTHENTICATED] = {"unauthenticated", 401},
};
static_assert(ARRAY_SIZE(codes) == CONNECT_CODE_COUNT, "every code has a row");

const char *connect_code_name(enum connect_code code)
{
    return codes[code].name;
}

unsigned connect_code_status(enum connect_code code)
{
    return codes[code].status;
}

enum connect_code connect_code_of(const struct error *err)
{
    switch (err->code) {
    case ERR_USER_NOT_FOUND:
    case ERR_UNAUTHORIZED:
        return CONNECT_UNAUTHENTICATED;
    case ERR_CWD_NOT_FOUND:
    case ERR_COMMAND_NOT_FOUND:
    case ERR_COMMAND_NOT_EXECUTABLE:
    case ERR_PATH_IS_DIRECTORY:
    case ERR_PATH_NOT_DIRECTORY:
        return CONNECT_INVALID_ARGUMENT;
    case ERR_SANDBOX_NOT_RUNNING:
    case ERR_SANDBOX_FAILED:
    case ERR_SANDBOX_NOT_FOUND:
    case ERR_GUEST_GONE:
    case ERR_GUEST_PANIC:
    case ERR_GUEST_PROTOCOL:
        return CONNECT_UNAVAILABLE;
    case ERR_SESSION_DEAD:
        return CONNECT_FAILED_PRECONDITION;
    default:
        break;
    }
    switch (error_code_http_status(err->code)) {
    case 400:
        return CONNECT_INVALID_ARGUMENT;
    case 401:
        return CONNECT_UNAUTHENTICATED;
    case 403:
        return CONNECT_PERMISSION_DENIED;
    case 404:
        return CONNECT_NOT_FOUND;
    case 409:
        return err->code == ERR_ALREADY_EXISTS ? CONNECT_ALREADY_EXISTS
                                               : CONNECT_FAILED_PRECONDITION;
    case 413:
    case 429:
    case 507:
        return CONNECT_RESOURCE_EXHAUSTED;
    case 499:
        return CONNECT_CANCELED;
    case 501:
        return CONNECT_UNIMPLEMENTED;
    case 502:
    case 503:
        return CONNECT_UNAVAILABLE;
    case 504:
        return CONNECT_DEADLINE_EXCEEDED;
    default:
        return CONNECT_INTERNAL;
    }
}

int connect_decode(const void *body, size_t size, bool stream, json_t **ret, struct error *err)
{
    const uint8_t *bytes = body;
    json_error_t at;
    json_t *json;

    if (stream) {
        uint32_t length;

        if (size < CONNECT_FRAME_HEAD)
            return error_set(err, EINVAL, "the body has %zu bytes, less than a frame", size);
        memcpy(&length, bytes + 1, sizeof(length));
        length = be32toh(length);
        if (bytes[0] != 0)
            return error_set(err, EINVAL, "a frame with flags %u: compression is not supported",
                             bytes[0]);
        if (length != size - CONNECT_FRAME_HEAD)
            return error_set(err, EINVAL, "a frame of %u bytes in a body that has %zu for it",
                             length, size - CONNECT_FRAME_HEAD);
        bytes += CONNECT_FRAME_HEAD;
        size = length;
    }
    json = size > 0 ? json_loadb((const char *)bytes, size, JSON_ALLOW_NUL, &at) : json_object();
    if (!json)
        return size > 0 ? error_set(err, EINVAL, "the message is not JSON: %s", at.text)
                        : error_set(err, ENOMEM, "out of memory");
    if (!json_is_object(json)) {
        json_decref(json);
        return error_set(err, EINVAL, "the message is not a JSON object");
    }
    *ret = json;
    return 0;
}

/* ---- unary ---- */

void connect_answer(struct request *req, json_t *json_consume)
{
    request_answer(req, 200, json_consume);
}

/* A stream's error comes as its end; only what a proxy would say may come as a status. */
static bool answers_as_stream(struct request *req, enum connect_code code)
{
    const char *type = request_header(req, "Content-Type");

    return type && string_starts_with(type, "application/connect+") &&
           code != CONNECT_UNAUTHENTICATED;
}

void connect_answer_code(struct request *req, enum connect_code code, const char *message)
{
    if (answers_as_stream(req, code)) {
        connect_stream_begin(req, ERROR_STREAM_MAX, NULL);
        connect_stream_end(req, codes[code].name, message);
        return;
    }
    request_answer(
        req, codes[code].status,
        json_pack("{s:s, s:o}", "code", codes[code].name, "message", json_text(message)));
}

void connect_answer_error(struct request *req, const struct error *err)
{
    connect_answer_code(req, connect_code_of(err), err->text);
}

/* ---- streams ---- */

void connect_stream_begin(struct request *req, size_t max, request_drained_fn drained)
{
    request_stream_begin_as(req, 200, CONNECT_TYPE_STREAM, UINT64_MAX, max, drained);
}

static int stream_frame(struct request *req, uint8_t flags, json_t *json_consume)
{
    _cleanup_free_ char *text = json_consume ? json_dumps(json_consume, JSON_COMPACT) : NULL;
    uint8_t head[CONNECT_FRAME_HEAD] = {flags};
    size_t size = text ? strlen(text) : 0;
    uint32_t length = htobe32((uint32_t)size);

    json_decref(json_consume);
    if (!text)
        return -ENOMEM;
    if (request_stream_room(req) < size + sizeof(head))
        return -ENOBUFS;
    memcpy(head + 1, &length, sizeof(length));
    int r = request_stream_write(req, head, sizeof(head));
    if (r >= 0)
        r = request_stream_write(req, text, size);
    return r;
}

int connect_stream_message(struct request *req, json_t *json_consume)
{
    return stream_frame(req, 0, json_consume);
}

void connect_stream_end(struct request *req, const char *code, const char *message)
{
    json_t *json = code ? json_pack("{s:{s:s, s:o}}", "error", "code", code, "message",
                                    json_text(message ? message : ""))
                        : json_object();
    bool whole = stream_frame(req, 2, json) >= 0;

    request_stream_end(req, whole);
}

int connect_timeout_msec(struct request *req, uint32_t *ret, struct error *err)
{
    const char *text = request_header(req, "Connect-Timeout-Ms");
    uint64_t value = 0;

    if (text && parse_u64(text, 0, UINT32_MAX, &value) < 0)
        return error_set(err, EINVAL, "'Connect-Timeout-Ms': '%.32s' is not a number", text);
    *ret = (uint32_t)value;
    return 0;
}
