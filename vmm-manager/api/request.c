#include "api/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"

/*
 * Theory of operation. MHD calls request_access() with a zero size once for the head, with a size
 * for pieces of the body, with a zero size again at its end and after every resume. A response can
 * be queued at the head or after the end, never in the middle of a body: an answer that is ready
 * then is written past MHD (`raw`) and the connection dropped, so that a client which sends without
 * end learns why it was cut.
 */

/* A client that sends a file may pause for longer than one that sends a request. */
#define STREAM_IN_IDLE_SEC 600u

void request_wake(struct request *req)
{
    if (!req->suspended)
        return;
    req->suspended = false;
    MHD_resume_connection(req->conn);
    server_kick(req->server);
}

void request_finish(struct request *req, enum request_end why)
{
    request_over_fn over = req->over;
    void *state = req->state;

    req->over = NULL;
    req->state = NULL;
    req->body_ops = NULL;
    req->drained = NULL;
    if (why != REQUEST_DONE)
        req->phase = REQUEST_FAILED;
    if (over)
        over(state, why);
}

/* On a Unix socket a client that closed its sending half may still wait for its answer. */
static int on_hup(struct source *s, int fd, uint32_t events, void *userdata)
{
    struct request *req = userdata;

    (void)fd;
    (void)events;
    req->hup = source_free(s);
    request_finish(req, REQUEST_GONE);
    request_wake(req);
    return 0;
}

void request_suspend(struct request *req)
{
    MHD_suspend_connection(req->conn);
    req->suspended = true;
    if (req->hup)
        return;
    /* Nobody polls a suspended connection: its end must be seen by ourselves. */
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(req->conn, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!info)
        return;
    int r = loop_add_io(req->server->loop, "http-hup", info->connect_fd,
                        req->server->half_is_gone ? EPOLLRDHUP : 0, on_hup, req, &req->hup);
    if (r < 0)
        log_warning_errno(r, "http: cannot watch a client, ignoring");
}

/* ---- head ---- */

static void set_idle(struct request *req, unsigned sec)
{
    req->idle_changed = sec != req->server->idle_sec;
    (void)MHD_set_connection_option(req->conn, MHD_CONNECTION_OPTION_TIMEOUT, sec);
}

static uint64_t content_length(struct request *req)
{
    const char *text = request_header(req, MHD_HTTP_HEADER_CONTENT_LENGTH);
    char *end;

    /* MHD has refused what is not a number. */
    return text ? strtoull(text, &end, 10) : 0;
}

static size_t body_max(const struct request *req)
{
    if (req->route->flags & ROUTE_RAW)
        return REQUEST_RAW_MAX;
    return req->route->flags & (ROUTE_BODY | ROUTE_BODY_OPTIONAL) ? REQUEST_BODY_MAX : 0;
}

static void answer_body_too_big(struct request *req)
{
    struct error err;

    if (body_max(req) == 0)
        error_set(&err, EINVAL, "%s %s takes no body", req->route->method, req->route->pattern);
    else
        error_set(&err, E2BIG, "the body has more than %zu bytes", body_max(req));
    request_answer_error(req, &err);
}

/* Looks for the route; false: the answer is already that there is none. */
static bool request_match(struct request *req, const char *method, const char *url)
{
    const struct http_server *server = req->server;
    const struct http_api *claimed = NULL, *first = NULL;
    struct error err = {0};

    for (size_t i = 0; i < server->n_apis && !claimed; i++) {
        const struct http_api *api = &server->apis[i];
        if (api->claims && api->claims(req, api->context))
            claimed = api;
    }
    for (size_t i = 0; i < server->n_apis && !req->route; i++) {
        const struct http_api *api = &server->apis[i];
        bool known;

        if (claimed ? api != claimed : api->claims != NULL)
            continue;
        req->route = route_match(api->routes, api->n_routes, method, url, &req->params, &known);
        if (req->route)
            req->api = api;
        else if (known && !first)
            first = api;
    }
    if (req->route)
        return true;
    req->api = claimed ? claimed : first;
    if (server->cors && strcmp(method, "OPTIONS") == 0 && request_header(req, "Origin")) {
        request_answer_empty(req, MHD_HTTP_NO_CONTENT);
    } else if (first) {
        error_set_code(&err, ERR_UNSUPPORTED, "%s '%.128s': not with this method", method, url);
        request_refuse(req, MHD_HTTP_METHOD_NOT_ALLOWED, &err);
    } else {
        error_set_code(&err, ERR_NOT_FOUND, "'%.128s': no such path in this API", url);
        request_answer_error(req, &err);
    }
    return false;
}

static void request_handle(struct request *req)
{
    if ((req->route->flags & ROUTE_TOUCH) && req->api->gate)
        req->api->gate(req, req->api->context);
    else
        req->route->handle(req);
}

void request_proceed(struct request *req)
{
    req->route->handle(req);
}

static void request_route(struct request *req, const char *method, const char *url)
{
    struct http_server *server = req->server;
    struct error err = {0};

    if (!request_match(req, method, url))
        return;
    if (server->authorize && !(req->route->flags & ROUTE_OPEN) &&
        server->authorize(req, server->userdata, &err) < 0) {
        request_answer_error(req, &err);
        return;
    }
    if (req->route->flags & ROUTE_STREAM_IN) {
        set_idle(req, STREAM_IN_IDLE_SEC);
        req->phase = REQUEST_HANDLED;
        request_handle(req);
        return;
    }
    buf_init(&req->body, body_max(req));
    if (content_length(req) > body_max(req))
        answer_body_too_big(req);
}

/* MHD's first word of a request: its target before anything is decoded. */
void *request_new(void *cls, const char *uri, struct MHD_Connection *conn)
{
    struct http_server *server = cls;
    struct request *req = calloc(1, sizeof(*req));

    if (!req)
        return NULL;
    req->server = server;
    req->conn = conn;
    req->started_usec = clock_now_usec();
    req->target = strdup(uri);
    req->next = server->requests;
    if (req->next)
        req->next->prev = req;
    server->requests = req;
    return req;
}

static void request_begin(struct request *req, struct MHD_Connection *conn, const char *method,
                          const char *url)
{
    req->conn = conn;
    req->phase = REQUEST_HEAD;
    (void)snprintf(req->method, sizeof(req->method), "%s", method);
    request_route(req, method, url);
}

/* ---- body ---- */

/* The answer that cannot wait for the end of the body. */
static enum MHD_Result request_drop(struct request *req)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(req->conn, MHD_CONNECTION_INFO_CONNECTION_FD);

    /* Small and the first bytes of the answer: the socket's buffer has room for it. */
    if (req->raw && info)
        (void)send(info->connect_fd, req->raw, req->raw_size, MSG_NOSIGNAL | MSG_DONTWAIT);
    return MHD_NO;
}

/*
 * A request that was refused by its head: when what it still sends is little, it is taken and
 * forgotten before the answer, so that a client which sends first and reads then is not reset, and
 * the connection can be used again.
 */
static bool may_skip_body(struct request *req)
{
    return !(req->route && (req->route->flags & ROUTE_STREAM_IN)) &&
           content_length(req) <= REQUEST_BODY_MAX;
}

static enum MHD_Result request_take(struct request *req, const char *data, size_t *size)
{
    if (req->phase == REQUEST_ANSWERED) {
        req->bytes_in += *size;
        *size = 0;
        return req->bytes_in <= REQUEST_BODY_MAX ? MHD_YES : MHD_NO;
    }
    if (req->body_ops) {
        size_t used = req->body_ops->data(req->state, (const uint8_t *)data, *size);
        req->bytes_in += used;
        if (req->phase == REQUEST_FAILED)
            return request_drop(req);
        *size -= used;
        if (*size > 0)
            request_suspend(req);
        return MHD_YES;
    }
    req->bytes_in += *size;
    int r = buf_append(&req->body, data, *size);
    if (r < 0) {
        answer_body_too_big(req);
        return request_drop(req);
    }
    *size = 0;
    return MHD_YES;
}

static int request_parse(struct request *req, struct error *err)
{
    json_error_t at;

    if (req->route->flags & ROUTE_RAW)
        return 0;
    if (req->body.size == 0 && (req->route->flags & ROUTE_BODY))
        return error_set(err, EINVAL, "the body is empty, expected a JSON object");
    if (req->body.size == 0) {
        req->json = json_object();
        return req->json ? 0 : error_set(err, ENOMEM, "out of memory");
    }
    /* NUL is refused, by name, where the strings are used; jansson itself limits the depth. */
    req->json = json_loadb(buf_string(&req->body), req->body.size,
                           JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &at);
    if (!req->json)
        return error_set(err, EINVAL, "the body is not JSON: line %d, column %d: %s", at.line,
                         at.column, at.text);
    if (!json_is_object(req->json))
        return error_set(err, EINVAL, "the body is not a JSON object");
    return 0;
}

static void request_dispatch(struct request *req)
{
    struct error err;

    req->phase = REQUEST_HANDLED;
    int r = request_parse(req, &err);
    if (!(req->route->flags & ROUTE_RAW))
        buf_done(&req->body);
    if (r < 0) {
        request_answer_error(req, &err);
        return;
    }
    if ((req->route->flags & ROUTE_UPGRADE_ONLY) && !request_wants_upgrade(req, "hearth-stream")) {
        error_set(&err, EINVAL,
                  "%s needs the headers 'Connection: Upgrade' and 'Upgrade: hearth-stream'",
                  req->route->pattern);
        request_answer_error(req, &err);
        return;
    }
    request_handle(req);
}

/* ---- MHD's callbacks ---- */

static enum MHD_Result request_queue(struct request *req)
{
    if (req->queued)
        return MHD_YES;
    req->queued = true;
    if (req->out_streaming)
        set_idle(req, 0);
    enum MHD_Result result = MHD_queue_response(req->conn, req->status, req->response);
    MHD_destroy_response(req->response);
    req->response = NULL;
    return result;
}

/* Head, end of the body, or resumed: goes on as far as it can. */
static enum MHD_Result request_advance(struct request *req, bool first)
{
    if (req->phase == REQUEST_FAILED)
        return request_drop(req);
    if (first && req->phase == REQUEST_ANSWERED && may_skip_body(req))
        return MHD_YES;
    if (req->phase == REQUEST_HEAD) {
        req->in_body = first;
        if (first)
            return MHD_YES;
        request_dispatch(req);
    } else if (req->phase == REQUEST_HANDLED && req->body_ops && !req->in_body &&
               !req->body_ended) {
        req->in_body = true;
        return MHD_YES;
    } else if (req->phase == REQUEST_HANDLED && req->in_body) {
        req->in_body = false;
        req->body_ended = true;
        req->body_ops->end(req->state);
    }
    if (req->phase == REQUEST_FAILED)
        return MHD_NO;
    if (req->phase == REQUEST_ANSWERED || req->phase == REQUEST_UPGRADING)
        return request_queue(req);
    request_suspend(req);
    return MHD_YES;
}

enum MHD_Result request_access(void *cls, struct MHD_Connection *conn, const char *url,
                               const char *method, const char *version, const char *upload_data,
                               size_t *upload_data_size, void **req_cls)
{
    struct http_server *server = cls;
    struct request *req = *req_cls; /* NULL: there was no memory for it */
    bool first = req && req->phase == REQUEST_NEW;

    (void)version;
    if (server->stopping || !req)
        return MHD_NO;
    if (first)
        request_begin(req, conn, method, url);
    if (*upload_data_size > 0 && req->phase != REQUEST_FAILED)
        return request_take(req, upload_data, upload_data_size);
    return request_advance(req, first);
}

static void request_tell(struct request *req, enum request_end why)
{
    const struct http_server *server = req->server;

    if (!server->seen || !req->method[0])
        return;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(req->conn, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct http_seen seen = {
        .target = request_target(req),
        .peer = info ? info->client_addr : NULL,
        .api = req->api ? req->api->name : "-",
        .method = req->method,
        .pattern = req->route ? req->route->pattern : "-",
        .principal = &req->principal,
        .status = req->queued || req->raw ? req->status : 0,
        .started_usec = req->started_usec,
        .duration_usec = clock_now_usec() - req->started_usec,
        .bytes_in = req->bytes_in,
        .bytes_out = req->bytes_out,
        .code = req->code,
        .gone = why == REQUEST_GONE,
        .upgraded = req->upgraded != NULL,
    };

    server->seen(&seen, server->userdata);
}

void request_completed(void *cls, struct MHD_Connection *conn, void **req_cls,
                       enum MHD_RequestTerminationCode code)
{
    struct request *req = *req_cls;
    struct http_server *server = cls;

    (void)conn;
    if (!req)
        return;
    *req_cls = NULL;
    req->suspended = false;
    req->hup = source_free(req->hup);
    enum request_end why = code == MHD_REQUEST_TERMINATED_COMPLETED_OK ? REQUEST_DONE
                           : server->stopping                          ? REQUEST_STOPPED
                                                                       : REQUEST_GONE;
    request_finish(req, why);
    if (why == REQUEST_DONE && req->idle_changed)
        set_idle(req, server->idle_sec);
    request_tell(req, why);
    if (req->prev)
        req->prev->next = req->next;
    else
        server->requests = req->next;
    if (req->next)
        req->next->prev = req->prev;
    if (req->response)
        MHD_destroy_response(req->response);
    json_decref(req->json);
    free(req->target);
    for (unsigned i = 0; i < 2 * req->n_headers; i++)
        free(req->headers[i]);
    free(req->headers);
    buf_done(&req->body);
    buf_done(&req->out);
    free(req->raw);
    free(req);
}

/* ---- what was asked ---- */

void *request_context(const struct request *req)
{
    return req->api ? req->api->context : NULL;
}

const struct principal *request_principal(const struct request *req)
{
    return &req->principal;
}

void request_set_principal(struct request *req, const struct principal *principal)
{
    req->principal = *principal;
}

unsigned request_route_flags(const struct request *req)
{
    return req->route ? req->route->flags : 0;
}

const char *request_pattern(const struct request *req)
{
    return req->route ? req->route->pattern : "";
}

struct loop *request_loop(const struct request *req)
{
    return req->server->loop;
}

const char *request_param(const struct request *req, unsigned index)
{
    return index < req->params.count ? req->params.value[index] : "";
}

int request_query(struct request *req, const char *key, const char **ret, struct error *err)
{
    const char *value = NULL;
    size_t size = 0;

    if (MHD_lookup_connection_value_n(req->conn, MHD_GET_ARGUMENT_KIND, key, strlen(key), &value,
                                      &size) != MHD_YES) {
        *ret = NULL;
        return 0;
    }
    if (!value)
        value = "";
    if (strlen(value) != size)
        return error_set(err, EINVAL, "'%s': has a NUL byte", key);
    *ret = value;
    return 0;
}

const char *request_header(struct request *req, const char *name)
{
    return MHD_lookup_connection_value(req->conn, MHD_HEADER_KIND, name);
}

struct header_walk {
    request_header_fn fn;
    void *userdata;
};

static enum MHD_Result on_header(void *cls, enum MHD_ValueKind kind, const char *name,
                                 const char *value)
{
    const struct header_walk *walk = cls;

    (void)kind;
    walk->fn(name, value ? value : "", walk->userdata);
    return MHD_YES;
}

void request_each_header(struct request *req, request_header_fn fn, void *userdata)
{
    struct header_walk walk = {fn, userdata};

    (void)MHD_get_connection_values(req->conn, MHD_HEADER_KIND, on_header, &walk);
}

const char *request_method(const struct request *req)
{
    return req->method;
}

const char *request_target(const struct request *req)
{
    return req->target ? req->target : "/";
}

const void *request_body(const struct request *req, size_t *ret_size)
{
    *ret_size = req->body.size;
    return buf_data(&req->body);
}

const json_t *request_json(const struct request *req)
{
    return req->json;
}

/* A token in a comma-separated header. */
static bool header_has(struct request *req, const char *name, const char *token)
{
    const char *p = request_header(req, name);

    while (p && *p) {
        p += strspn(p, ", \t");
        size_t length = strcspn(p, ", \t");
        if (length == strlen(token) && strncasecmp(p, token, length) == 0)
            return true;
        p += length;
    }
    return false;
}

bool request_wants_upgrade(struct request *req, const char *protocol)
{
    return header_has(req, MHD_HTTP_HEADER_CONNECTION, "upgrade") &&
           header_has(req, MHD_HTTP_HEADER_UPGRADE, protocol);
}

void request_own(struct request *req, void *state, request_over_fn over)
{
    req->state = state;
    req->over = over;
}

void *request_state(const struct request *req)
{
    return req->state;
}

void request_body_begin(struct request *req, const struct request_body_ops *ops)
{
    req->body_ops = ops;
    request_wake(req);
}

void request_body_more(struct request *req)
{
    request_wake(req);
}
