#include "api/e2b/connect.h"

#include <assert.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/e2b/envd-proto.h"
#include "base/log.h"
#include "base/strv.h"
#include "model/text.h"

#define TYPE_JSON "application/json"
#define TYPE_PROTO "application/proto"
#define TYPE_STREAM "application/connect+"
#define TYPE_STREAM_JSON TYPE_STREAM "json"
#define TYPE_STREAM_PROTO TYPE_STREAM "proto"

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

/* ---- codecs ---- */

static bool type_is(struct request *req, const char *wanted)
{
    const char *type = request_header(req, "Content-Type");
    size_t size = strlen(wanted);

    return type && strncasecmp(type, wanted, size) == 0 &&
           (type[size] == '\0' || type[size] == ';' || type[size] == ' ');
}

static bool is_stream(struct request *req)
{
    return type_is(req, TYPE_STREAM_JSON) || type_is(req, TYPE_STREAM_PROTO);
}

/* NULL: JSON. */
static const struct envd_rpc *binary_rpc(struct request *req)
{
    bool binary = type_is(req, TYPE_PROTO) || type_is(req, TYPE_STREAM_PROTO);

    return binary ? envd_rpc_find(request_pattern(req)) : NULL;
}

bool connect_codec(struct request *req, bool stream, const struct proto_message **ret_proto)
{
    const struct envd_rpc *rpc = binary_rpc(req);

    if (type_is(req, stream ? TYPE_PROTO : TYPE_STREAM_PROTO) ||
        type_is(req, stream ? TYPE_JSON : TYPE_STREAM_JSON)) {
        (void)request_add_header(req, "Accept-Post",
                                 stream ? TYPE_STREAM_JSON ", " TYPE_STREAM_PROTO
                                        : TYPE_JSON ", " TYPE_PROTO);
        request_answer_empty(req, 415);
        return false;
    }
    *ret_proto = rpc ? rpc->request : NULL;
    return true;
}

int connect_decode(const struct proto_message *proto, const void *data, size_t size, json_t **ret,
                   struct error *err)
{
    json_error_t at;
    json_t *json;

    if (proto)
        return proto_decode(proto, data, size, ret, err);
    json = size > 0 ? json_loadb(data, size, JSON_ALLOW_NUL, &at) : json_object();
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

int connect_frame_length(const uint8_t head[static CONNECT_FRAME_HEAD], size_t max, size_t *ret,
                         struct error *err)
{
    uint32_t length;

    memcpy(&length, head + 1, sizeof(length));
    length = be32toh(length);
    if (head[0] != 0)
        return error_set(err, EINVAL, "a frame with flags %u: compression is not supported",
                         head[0]);
    if (length > max)
        return error_set(err, EINVAL, "a frame of %u bytes, more than %zu", length, max);
    *ret = length;
    return 0;
}

int connect_decode_frame(const struct proto_message *proto, const void *body, size_t size,
                         json_t **ret, struct error *err)
{
    const uint8_t *bytes = body;
    size_t length;
    int r;

    if (size < CONNECT_FRAME_HEAD)
        return error_set(err, EINVAL, "the body has %zu bytes, less than a frame", size);
    size -= CONNECT_FRAME_HEAD;
    r = connect_frame_length(bytes, size, &length, err);
    if (r < 0)
        return r;
    if (length != size)
        return error_set(err, EINVAL, "a frame of %zu bytes in a body that has %zu for it", length,
                         size);
    return connect_decode(proto, bytes + CONNECT_FRAME_HEAD, size, ret, err);
}

/* Appends a message; the answer's kind is the call's. */
static int encode(struct request *req, json_t *json, struct buf *out)
{
    const struct envd_rpc *rpc = binary_rpc(req);
    struct error err = {0};

    if (!json)
        return -ENOMEM;
    if (rpc) {
        int r = proto_encode(rpc->answer, json, out, &err);

        return r < 0 ? log_error_errno(r, "e2b: %s: answer: %s", rpc->path, err.text) : 0;
    }
    _cleanup_free_ char *text = json_dumps(json, JSON_COMPACT);
    return text ? buf_append_string(out, text) : -ENOMEM;
}

static int frame_begin(struct buf *out, uint8_t flags)
{
    const uint8_t head[CONNECT_FRAME_HEAD] = {flags};

    return buf_append(out, head, sizeof(head));
}

/* What follows the head at `at` is all of the frame. */
static void frame_end(struct buf *out, size_t at)
{
    uint32_t length = htobe32((uint32_t)(out->size - at - CONNECT_FRAME_HEAD));

    memcpy(buf_data(out) + at + 1, &length, sizeof(length));
}

static int frame_message(struct request *req, json_t *json, struct buf *out)
{
    size_t at = out->size;
    int r = frame_begin(out, 0);

    if (r >= 0)
        r = encode(req, json, out);
    if (r >= 0)
        frame_end(out, at);
    return r;
}

/* code NULL: went well. */
static int frame_last(struct buf *out, const char *code, const char *message)
{
    json_t *json = code ? json_pack("{s:{s:s, s:o}}", "error", "code", code, "message",
                                    json_text(message ? message : ""))
                        : json_object();
    _cleanup_free_ char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    size_t at = out->size;
    int r = text ? frame_begin(out, 2) : -ENOMEM;

    json_decref(json);
    if (r >= 0)
        r = buf_append_string(out, text);
    if (r >= 0)
        frame_end(out, at);
    return r;
}

/* ---- whole answers ---- */

static const char *stream_type(struct request *req)
{
    return type_is(req, TYPE_STREAM_PROTO) ? TYPE_STREAM_PROTO : TYPE_STREAM_JSON;
}

void connect_answer(struct request *req, json_t *json_consume)
{
    struct buf out;
    int r;

    if (!is_stream(req) && !binary_rpc(req)) {
        request_answer(req, 200, json_consume);
        return;
    }
    buf_init(&out, PROTO_ENCODED_MAX);
    r = is_stream(req) ? frame_message(req, json_consume, &out) : encode(req, json_consume, &out);
    if (r >= 0 && is_stream(req))
        r = frame_last(&out, NULL, NULL);
    json_decref(json_consume);
    if (r < 0)
        connect_answer_code(req, CONNECT_INTERNAL, "the answer cannot be written");
    else
        request_answer_bytes(req, 200, is_stream(req) ? stream_type(req) : TYPE_PROTO,
                             buf_data(&out), out.size);
    buf_done(&out);
}

void connect_answer_code(struct request *req, enum connect_code code, const char *message)
{
    struct buf out;

    /* A stream's error comes as its end; only what a proxy would say may come as a status. */
    if (!is_stream(req) || code == CONNECT_UNAUTHENTICATED) {
        request_answer(
            req, codes[code].status,
            json_pack("{s:s, s:o}", "code", codes[code].name, "message", json_text(message)));
        return;
    }
    buf_init(&out, PROTO_ENCODED_MAX);
    (void)frame_last(&out, codes[code].name, message);
    request_answer_bytes(req, 200, stream_type(req), buf_data(&out), out.size);
    buf_done(&out);
}

void connect_answer_error(struct request *req, const struct error *err)
{
    connect_answer_code(req, connect_code_of(err), err->text);
}

/* ---- streams ---- */

void connect_stream_begin(struct request *req, size_t max, request_drained_fn drained)
{
    request_stream_begin_as(req, 200, stream_type(req), UINT64_MAX, max, drained);
}

int connect_stream_message(struct request *req, json_t *json_consume)
{
    struct buf out;
    int r;

    buf_init(&out, PROTO_ENCODED_MAX);
    r = frame_message(req, json_consume, &out);
    if (r >= 0)
        r = request_stream_write(req, buf_data(&out), out.size);
    buf_done(&out);
    json_decref(json_consume);
    return r;
}

void connect_stream_end(struct request *req, const char *code, const char *message)
{
    struct buf out;
    int r;

    buf_init(&out, PROTO_ENCODED_MAX);
    r = frame_last(&out, code, message);
    if (r >= 0)
        r = request_stream_write(req, buf_data(&out), out.size);
    buf_done(&out);
    request_stream_end(req, r >= 0);
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
