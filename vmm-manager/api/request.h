#pragma once

#include <microhttpd.h>

#include "api/http.h"
#include "base/buf.h"

/* Insides of the HTTP server, shared by http.c, request.c, answer.c and upgrade.c. */

enum request_phase {
    REQUEST_NEW,       /* only its target is known */
    REQUEST_HEAD,      /* routed; the body is being collected or skipped */
    REQUEST_HANDLED,   /* the handler has it, no answer yet */
    REQUEST_ANSWERED,  /* `response` waits to be queued, or was */
    REQUEST_UPGRADING, /* the 101 is on its way */
    REQUEST_FAILED,    /* the connection is to be dropped */
};

struct request {
    struct http_server *server;  /* weak */
    struct request *prev, *next; /* in server->requests */
    struct MHD_Connection *conn; /* weak, MHD's */
    const struct http_api *api;  /* weak; NULL: of none */
    const struct route *route;   /* weak; NULL: none matched */
    struct principal principal;
    struct route_params params;
    enum request_phase phase;
    char method[16];
    char *target;   /* owned: as the client wrote it */
    char **headers; /* owned: of the answer, name and value by turns */
    unsigned n_headers;
    bool retry_after; /* one of them says when to come again */
    uint64_t started_usec;
    uint64_t bytes_in, bytes_out;
    enum error_code code; /* that was answered */
    struct buf body;
    json_t *json; /* owned */
    bool suspended;
    bool idle_changed;  /* the connection has a time-out of its own */
    struct source *hup; /* owned; sees the client go while the connection is suspended */

    void *state; /* the handler's; freed by over() */
    request_over_fn over;
    const struct request_body_ops *body_ops; /* weak, NULL until request_body_begin() */
    bool in_body; /* its pieces are coming: nothing can be queued in MHD now */
    bool body_ended;
    char *raw; /* owned: an answer in the middle of a body, written past MHD */
    size_t raw_size;

    unsigned status;
    struct MHD_Response *response; /* owned until queued */
    bool queued;
    struct buf out; /* of a streamed answer */
    bool out_streaming, out_ended, out_complete;
    request_drained_fn drained;
    request_upgraded_fn upgraded;
};

struct upgrade {
    struct http_server *server;               /* weak */
    struct upgrade *prev, *next;              /* in server->upgrades */
    int fd;                                   /* MHD's */
    struct MHD_UpgradeResponseHandle *handle; /* owned until closed */
    const void *extra;
    size_t n_extra;
    void *state;
    request_over_fn over;
};

struct http_server {
    struct loop *loop;         /* weak */
    struct MHD_Daemon *daemon; /* owned */
    struct source *io, *timer; /* owned */
    struct half_close *half;   /* owned */
    struct http_api apis[HTTP_APIS_MAX];
    size_t n_apis;
    int (*authorize)(struct request *req, void *userdata, struct error *err);
    void (*seen)(const struct http_seen *seen, void *userdata);
    void *userdata;
    bool listens, cors, half_is_gone;
    bool draining;
    struct request *requests; /* each owned by its connection */
    struct upgrade *upgrades; /* each owned by its state */
    unsigned idle_sec, connections;
    bool full;           /* `connections` are open: MHD does not listen */
    unsigned most;       /* connections at once since memory was last given back */
    struct source *trim; /* owned: when it is given back; NULL: nothing to give */
    bool stopping;
};

/* MHD runs in the next iteration of the loop. */
void server_kick(struct http_server *server);
/* Lets MHD look at the connection again. */
void request_wake(struct request *req);
/* Suspends the connection, inside one of its MHD callbacks. */
void request_suspend(struct request *req);
/* An error with another status than its code's. */
void request_refuse(struct request *req, unsigned status, const struct error *err);
/* Adds the headers of request_add_header(), and the type if it is not NULL. */
bool request_response_headers(struct request *req, struct MHD_Response *response, const char *type);
/* Tells the state of the end, once. */
void request_finish(struct request *req, enum request_end why);

/* MHD's callbacks. */
void *request_new(void *cls, const char *uri, struct MHD_Connection *conn);
enum MHD_Result request_access(void *cls, struct MHD_Connection *conn, const char *url,
                               const char *method, const char *version, const char *upload_data,
                               size_t *upload_data_size, void **req_cls);
void request_completed(void *cls, struct MHD_Connection *conn, void **req_cls,
                       enum MHD_RequestTerminationCode code);
void upgrade_begin(void *cls, struct MHD_Connection *conn, void *con_cls, const char *extra_in,
                   size_t extra_in_size, int sock, struct MHD_UpgradeResponseHandle *handle);
