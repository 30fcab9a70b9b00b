#include "api/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "base/strv.h"
#include "model/text.h"

/* The largest piece that MHD asks for at once. */
#define CONTENT_BLOCK (32u * 1024u)

json_t *error_to_json(const struct error *err)
{
    return json_pack("{s:s, s:o}", "code", error_code_name(err->code), "message",
                     json_text(err->text));
}

bool request_add_header(struct request *req, const char *name, const char *value)
{
    char **headers;

    if (req->n_headers >= REQUEST_HEADERS_MAX || strpbrk(value, "\r\n") || strpbrk(name, "\r\n: "))
        return false;
    headers = reallocarray(req->headers, 2 * (req->n_headers + 1), sizeof(*headers));
    if (!headers)
        return false;
    req->headers = headers;
    if (strcasecmp(name, MHD_HTTP_HEADER_RETRY_AFTER) == 0)
        req->retry_after = true;
    headers[2 * req->n_headers] = strdup(name);
    headers[2 * req->n_headers + 1] = strdup(value);
    req->n_headers++;
    return true;
}

/* A page of any origin may ask: what it may do, its key decides. */
static bool cors_headers(struct request *req, struct MHD_Response *response)
{
    return MHD_add_response_header(response, "Access-Control-Allow-Origin", "*") == MHD_YES &&
           MHD_add_response_header(response, "Access-Control-Expose-Headers", "*") == MHD_YES &&
           (strcmp(req->method, "OPTIONS") != 0 ||
            (MHD_add_response_header(response, "Access-Control-Allow-Methods",
                                     "GET, HEAD, POST, PUT, PATCH, DELETE") == MHD_YES &&
             MHD_add_response_header(response, "Access-Control-Allow-Headers",
                                     "*, Authorization") == MHD_YES &&
             MHD_add_response_header(response, "Access-Control-Max-Age", "7200") == MHD_YES));
}

bool request_response_headers(struct request *req, struct MHD_Response *response, const char *type)
{
    if (req->server->cors && request_header(req, MHD_HTTP_HEADER_ORIGIN) &&
        !cors_headers(req, response))
        return false;
    if (req->server->draining &&
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close") != MHD_YES)
        return false;
    if (type && MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type) != MHD_YES)
        return false;
    for (unsigned i = 0; i < req->n_headers; i++) {
        const char *name = req->headers[2 * i], *value = req->headers[2 * i + 1];

        if (!name || !value || MHD_add_response_header(response, name, value) != MHD_YES)
            return false;
    }
    return true;
}

/* Without memory for an answer the connection is dropped. */
static void request_set_response(struct request *req, unsigned status,
                                 struct MHD_Response *response, const char *type)
{
    if (req->phase != REQUEST_HEAD && req->phase != REQUEST_HANDLED) {
        /* Answered twice is our mistake; a request that failed meanwhile is not. */
        if (response)
            MHD_destroy_response(response);
        return;
    }
    req->status = status;
    req->response = response;
    if (response && !request_response_headers(req, response, type)) {
        MHD_destroy_response(response);
        req->response = NULL;
    }
    req->phase = req->response ? REQUEST_ANSWERED : REQUEST_FAILED;
    request_wake(req);
}

static void request_answer_malloced(struct request *req, unsigned status, const char *type,
                                    void *data, size_t size)
{
    struct MHD_Response *response =
        data ? MHD_create_response_from_buffer(size, data, MHD_RESPMEM_MUST_FREE) : NULL;

    req->bytes_out += size;
    if (!response)
        free(data);
    request_set_response(req, status, response, type);
}

/* In the middle of a body: see the theory of operation in request.c. */
static void request_answer_raw(struct request *req, unsigned status, const char *type,
                               const void *data, size_t size)
{
    _cleanup_free_ char *head =
        string_printf("HTTP/1.1 %u %s\r\nContent-Type: %s\r\n"
                      "Connection: close\r\nContent-Length: %zu\r\n\r\n",
                      status, MHD_get_reason_phrase_for(status), type, size);

    if (req->phase != REQUEST_HEAD && req->phase != REQUEST_HANDLED)
        return;
    req->raw = head && data ? malloc(strlen(head) + size) : NULL;
    if (req->raw) {
        req->raw_size = strlen(head) + size;
        memcpy(req->raw, head, strlen(head));
        memcpy(req->raw + strlen(head), data, size);
    }
    req->status = status;
    req->phase = REQUEST_FAILED;
    request_wake(req);
}

static void request_answer_json(struct request *req, unsigned status, const char *type,
                                json_t *json_consume)
{
    char *text =
        json_consume ? json_dumps(json_consume, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;

    json_decref(json_consume);
    if (req->in_body) {
        request_answer_raw(req, status, type, text, text ? strlen(text) : 0);
        free(text);
        return;
    }
    request_answer_malloced(req, status, type, text, text ? strlen(text) : 0);
}

void request_answer(struct request *req, unsigned status, json_t *json_consume)
{
    request_answer_json(req, status, "application/json", json_consume);
}

void request_answer_empty(struct request *req, unsigned status)
{
    static char nothing[] = "";
    struct MHD_Response *response =
        MHD_create_response_from_buffer(0, nothing, MHD_RESPMEM_PERSISTENT);

    request_set_response(req, status, response, NULL);
}

void request_answer_bytes(struct request *req, unsigned status, const char *type, const void *data,
                          size_t size)
{
    char *copy = req->in_body ? NULL : malloc(size + 1);

    if (req->in_body) {
        request_answer_raw(req, status, type, data, size);
        return;
    }
    if (copy)
        memcpy(copy, size > 0 ? data : "", size);
    request_answer_malloced(req, status, type, copy, size);
}

void request_answer_text(struct request *req, const char *type, const void *data, size_t size)
{
    request_answer_bytes(req, MHD_HTTP_OK, type, data, size);
}

/* RFC 9457, and the two keys that also stand in streams. */
static json_t *problem_to_json(const struct error *err, unsigned status)
{
    json_t *json = error_to_json(err);
    char type[96];

    (void)snprintf(type, sizeof(type), "urn:hearth:error:%s", error_code_name(err->code));
    if (json &&
        (json_object_set_new(json, "type", json_string(type)) < 0 ||
         json_object_set_new(json, "title", json_string(MHD_get_reason_phrase_for(status))) < 0 ||
         json_object_set_new(json, "status", json_integer((json_int_t)status)) < 0 ||
         json_object_set(json, "detail", json_object_get(json, "message")) < 0)) {
        json_decref(json);
        json = NULL;
    }
    return json;
}

void request_refuse(struct request *req, unsigned status, const struct error *err)
{
    if (req->phase != REQUEST_HEAD && req->phase != REQUEST_HANDLED)
        return;
    req->code = err->code;
    if (status == MHD_HTTP_UNAUTHORIZED)
        (void)request_add_header(req, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (status == MHD_HTTP_TOO_MANY_REQUESTS && !req->retry_after)
        (void)request_add_header(req, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    if (req->api && req->api->error_json) {
        json_t *json = req->api->error_json(req, err, &status);
        request_answer(req, status, json);
    } else {
        request_answer_json(req, status, "application/problem+json", problem_to_json(err, status));
    }
}

void request_answer_error(struct request *req, const struct error *err)
{
    request_refuse(req, (unsigned)error_code_http_status(err->code), err);
}

/* ---- streamed ---- */

static ssize_t on_content(void *cls, uint64_t pos, char *data, size_t max)
{
    struct request *req = cls;
    size_t size = MIN(max, req->out.size);

    (void)pos;
    if (req->phase == REQUEST_FAILED)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (size > 0) {
        memcpy(data, buf_data(&req->out), size);
        buf_consume(&req->out, size);
        req->bytes_out += size;
        if (req->drained)
            req->drained(req->state, size);
        return (ssize_t)size;
    }
    if (req->out_ended)
        return req->out_complete ? MHD_CONTENT_READER_END_OF_STREAM
                                 : MHD_CONTENT_READER_END_WITH_ERROR;
    request_suspend(req);
    return 0;
}

void request_stream_begin_as(struct request *req, unsigned status, const char *type, uint64_t size,
                             size_t max, request_drained_fn drained)
{
    buf_init(&req->out, max);
    req->out_streaming = true;
    req->drained = drained;
    request_set_response(
        req, status,
        MHD_create_response_from_callback(size == UINT64_MAX ? MHD_SIZE_UNKNOWN : size,
                                          CONTENT_BLOCK, on_content, req, NULL),
        type);
}

void request_stream_begin(struct request *req, const char *type, size_t max,
                          request_drained_fn drained)
{
    request_stream_begin_as(req, MHD_HTTP_OK, type, UINT64_MAX, max, drained);
}

int request_stream_write(struct request *req, const void *data, size_t size)
{
    int r = buf_append(&req->out, data, size);

    if (r >= 0)
        request_wake(req);
    return r;
}

int request_stream_line(struct request *req, json_t *json_consume)
{
    _cleanup_free_ char *text =
        json_consume ? json_dumps(json_consume, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;

    json_decref(json_consume);
    if (!text)
        return -ENOMEM;
    if (strlen(text) + 1 > buf_room(&req->out))
        return -ENOBUFS;
    int r = buf_append_string(&req->out, text);
    if (r >= 0)
        r = buf_append_string(&req->out, "\n");
    request_wake(req);
    return r;
}

size_t request_stream_room(const struct request *req)
{
    return buf_room(&req->out);
}

void request_stream_end(struct request *req, bool complete)
{
    req->out_ended = true;
    req->out_complete = complete;
    request_wake(req);
}
