#pragma once

#include <stdbool.h>
#include <stddef.h>

/*
 * The table of routes. A pattern is written as docs/API.md writes it: a segment in capitals (ID,
 * NAME, PID) stands for any one segment and becomes a parameter. The segment "**" at the end stands
 * for the rest of the path, also none (request_target() has it). The method "*" is any. GET serves
 * HEAD too. The first route that fits wins.
 */
struct request;

enum route_flags {
    ROUTE_BODY = 1 << 0,          /* takes a JSON object, at most REQUEST_BODY_MAX bytes */
    ROUTE_BODY_OPTIONAL = 1 << 4, /* the same, or nothing */
    ROUTE_STREAM_IN = 1 << 1,     /* the handler runs before the body and takes it piece by piece */
    ROUTE_UPGRADE = 1 << 2,       /* may become a stream */
    ROUTE_UPGRADE_ONLY = 1 << 3,  /* must */
    ROUTE_TOUCH = 1 << 6,         /* goes through the API's gate: see http_api */
    ROUTE_RAW = 1 << 5,           /* takes any bytes: request_body(), at most REQUEST_RAW_MAX */

    /* Who may, on a listener that asks for keys. Without one: a viewer may GET, a user the rest. */
    ROUTE_OPEN = 1 << 8,    /* everybody: the handler decides by itself */
    ROUTE_CONTENT = 1 << 9, /* shows what is inside: not for viewers, even if it is a GET */
    ROUTE_ADMIN = 1 << 10,  /* admins of the tenant */
    ROUTE_HOME = 1 << 11,   /* about this host: keys of the default tenant only */
    ROUTE_HOST = 1 << 12,   /* the daemon's own socket only */
};

struct route {
    const char *method;
    const char *pattern;
    void (*handle)(struct request *req);
    unsigned flags;
};

#define ROUTE_PARAMS_MAX 2u
#define ROUTE_PARAM_SIZE 256u

struct route_params {
    char value[ROUTE_PARAMS_MAX][ROUTE_PARAM_SIZE];
    unsigned count;
};

/*
 * The route of a path (already percent-decoded, without query), or NULL; then *ret_path_known tells
 * whether the path exists with another method.
 */
const struct route *route_match(const struct route *routes, size_t count, const char *method,
                                const char *path, struct route_params *ret_params,
                                bool *ret_path_known);
