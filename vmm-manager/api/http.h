#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/route.h"
#include "base/error.h"
#include "base/loop.h"
#include "model/access.h"

/*
 * An HTTP/1.1 server on the daemon's loop. A handler is called with a complete request (or, with
 * ROUTE_STREAM_IN, with its head) and answers at once or later, exactly once. The request lives
 * until its answer is out or the client is gone; what a handler keeps for it is its state, given
 * with request_own(), which hears of the end once.
 */
struct http_server;
struct request;

#define REQUEST_BODY_MAX (1024u * 1024u)
#define REQUEST_RAW_MAX (8u * 1024u * 1024u)
#define REQUEST_HEADERS_MAX 64u /* of an answer */
#define HTTP_CONNECTIONS_MAX 1024u
#define HTTP_IDLE_SEC 30u             /* without a byte, before a request is complete */
#define HTTP_MEMORY_MAX (32u * 1024u) /* of a connection: its headers and one piece of its body */

/*
 * One API of a server: a table of routes with what belongs to them. A request goes to the first API
 * that claims it, else to the first of those without a claim that has a route for its path.
 */
struct http_api {
    const char *name;           /* for log and metrics */
    const struct route *routes; /* weak */
    size_t n_routes;
    void *context; /* weak, for handlers: request_context() */
    /*
     * Whether a request is this API's whatever its path, by its headers (Host, …); may be NULL. No
     * other API's routes are looked at then. Only request_header() works yet.
     */
    bool (*claims)(struct request *req, void *context);
    /*
     * The body of an error in this API's form, and its status if it is another; may be NULL:
     * {"code", "message"} and more. Everything that request_answer_error() is given comes here,
     * also what the server itself refuses.
     */
    json_t *(*error_json)(struct request *req, const struct error *err, unsigned *status);
    /*
     * Called in place of the handler of a route with ROUTE_TOUCH; may be NULL. It calls
     * request_proceed(), at once or later, or answers.
     */
    void (*gate)(struct request *req, void *context);
};
#define HTTP_APIS_MAX 8u

/* What happened to a request, when it is over. Strings are weak. */
struct http_seen {
    const char *api, *method, *pattern; /* "-" when it matched none */
    const char *target;                 /* as the client wrote it, with its query */
    const void *peer;                   /* struct sockaddr of the client */
    const struct principal *principal;
    unsigned status; /* 0: none was sent */
    uint64_t started_usec, duration_usec;
    uint64_t bytes_in, bytes_out; /* of bodies; not of what left HTTP */
    enum error_code code;         /* ERR_NONE unless an error was answered */
    bool gone;                    /* the client went before the end */
    bool upgraded;
};

struct http_options {
    /* Bound, listening, non-blocking; stays the caller's. Negative: see http_server_adopt(). */
    int listen_fd;
    const struct http_api *apis; /* copied; at most HTTP_APIS_MAX */
    size_t n_apis;
    uint32_t idle_sec;    /* 0: HTTP_IDLE_SEC */
    uint32_t connections; /* 0: HTTP_CONNECTIONS_MAX */
    /*
     * Who asks, and may they? Called once the route is known and before anything else, unless it
     * is ROUTE_OPEN. Sets the principal with request_set_principal(), or fails with the error that
     * becomes the answer. NULL: everybody may.
     */
    int (*authorize)(struct request *req, void *userdata, struct error *err);
    void (*seen)(const struct http_seen *seen, void *userdata); /* may be NULL */
    void *userdata;                                             /* weak, of these two */
    bool cors;         /* lets pages of other origins in: nothing here uses cookies */
    bool half_is_gone; /* a client that ends its half of the connection has gone away */
};

int http_server_new(struct loop *loop, const struct http_options *options, struct http_server **ret,
                    struct error *err);
/* Ends all requests and streams (REQUEST_STOPPED). Not from inside a handler. Always NULL. */
struct http_server *http_server_free(struct http_server *server);
/* Serves a connection that somebody else accepted; takes `fd`, even on failure. */
int http_server_adopt(struct http_server *server, int fd, const void *address,
                      unsigned address_size);
/* No more connections or requests are taken; answers under way go on. */
void http_server_drain(struct http_server *server);
/* Requests whose answer is under way, without streams and what left HTTP. */
size_t http_server_busy(const struct http_server *server);
/* Connections at the moment, upgraded ones included. */
unsigned http_server_connections(const struct http_server *server);

/* ---- what was asked ---- */
void *request_context(const struct request *req); /* of the API that has its route */
/* Who asks; on a route that is ROUTE_OPEN nobody (a viewer of no tenant) unless set. */
const struct principal *request_principal(const struct request *req);
void request_set_principal(struct request *req, const struct principal *principal);
unsigned request_route_flags(const struct request *req);
/* Of its route, as the table has it; "" without one. */
const char *request_pattern(const struct request *req);
struct loop *request_loop(const struct request *req);
const char *request_param(const struct request *req, unsigned index);
/* NULL when absent. -EINVAL and err when it holds a NUL. */
int request_query(struct request *req, const char *key, const char **ret, struct error *err);
const char *request_header(struct request *req, const char *name); /* NULL when absent */
typedef void (*request_header_fn)(const char *name, const char *value, void *userdata);
void request_each_header(struct request *req, request_header_fn fn, void *userdata);
const char *request_method(const struct request *req);
/* As the client wrote it: path and query, percent-encoded. */
const char *request_target(const struct request *req);
/* Of a ROUTE_RAW: all of it. Borrowed. */
const void *request_body(const struct request *req, size_t *ret_size);
/* The body; an empty object when there was none. Borrowed. */
const json_t *request_json(const struct request *req);
/* The client asked for this protocol with Connection: Upgrade. */
bool request_wants_upgrade(struct request *req, const char *protocol);

/* ---- life ---- */
enum request_end {
    REQUEST_DONE,    /* the answer is out */
    REQUEST_GONE,    /* the client went away before */
    REQUEST_STOPPED, /* the server ends */
};
/* `over` is called once and frees the state; the request must not be touched any more. */
typedef void (*request_over_fn)(void *state, enum request_end why);
void request_own(struct request *req, void *state, request_over_fn over);
void *request_state(const struct request *req);

/* Of a gate: the handler may have it now. What the gate owned of the request must be let go of. */
void request_proceed(struct request *req);

/* ---- the answer ---- */
/* A header of the answer that follows. False: not a legal one, or too many. */
bool request_add_header(struct request *req, const char *name, const char *value);
void request_answer(struct request *req, unsigned status, json_t *json_consume);
void request_answer_empty(struct request *req, unsigned status);
void request_answer_text(struct request *req, const char *type, const void *data, size_t size);
void request_answer_bytes(struct request *req, unsigned status, const char *type, const void *data,
                          size_t size);
void request_answer_error(struct request *req, const struct error *err);
/* {"code", "message"}; never NULL but for want of memory. */
json_t *error_to_json(const struct error *err);

/* ---- an answer that comes in pieces (chunked) ---- */
/*
 * Bytes wait in a buffer of at most `max` until the client takes them; `drained` (may be NULL)
 * tells how many it took.
 */
typedef void (*request_drained_fn)(void *state, size_t size);
void request_stream_begin(struct request *req, const char *type, size_t max,
                          request_drained_fn drained);
/* The same with another status than 200; size: of the whole body, UINT64_MAX when not known. */
void request_stream_begin_as(struct request *req, unsigned status, const char *type, uint64_t size,
                             size_t max, request_drained_fn drained);
/* All or nothing; -ENOBUFS beyond the room. */
int request_stream_write(struct request *req, const void *data, size_t size);
/* One line of NDJSON. */
int request_stream_line(struct request *req, json_t *json_consume);
size_t request_stream_room(const struct request *req);
/* complete=false: the client sees that the answer was cut. */
void request_stream_end(struct request *req, bool complete);

/* ---- a body that comes in pieces (ROUTE_STREAM_IN) ---- */
struct request_body_ops {
    /* Takes some of it and returns how much; less than all: waits for request_body_more(). */
    size_t (*data)(void *state, const uint8_t *data, size_t size);
    /* That was all. */
    void (*end)(void *state);
};
/* The head is accepted: the body may come. Until then the connection waits. */
void request_body_begin(struct request *req, const struct request_body_ops *ops);
void request_body_more(struct request *req);

/* ---- a connection that leaves HTTP ---- */
struct upgrade;
/*
 * The 101 is out: the socket (non-blocking) is the state's to read and write until upgrade_close().
 * `over` of request_own() comes only with REQUEST_STOPPED from here on.
 */
typedef void (*request_upgraded_fn)(struct upgrade *up, void *state);
void request_upgrade(struct request *req, const char *protocol, request_upgraded_fn upgraded);
int upgrade_fd(const struct upgrade *up);
/* Bytes that came behind the request; valid inside request_upgraded_fn only. */
const void *upgrade_extra(const struct upgrade *up, size_t *ret_size);
/* Closes the socket; the loop's sources on it are freed before. Always NULL. */
struct upgrade *upgrade_close(struct upgrade *up);
