#pragma once

#include "api/http.h"
#include "base/error.h"
#include "base/loop.h"

/*
 * The daemon's doors: its own Unix socket, where the caller is the host, and one TCP port, where
 * every caller brings a key. Both serve the same APIs, on the daemon's loop.
 */
struct core;
struct api_front;

#define FRONT_LISTEN_DEFAULT "127.0.0.1:7070"

struct api_front_options {
    struct core *core;       /* weak */
    struct loop *loop;       /* weak */
    const char *socket_path; /* mode 0600 */
    /*
     * HOST:PORT, or "off". NULL: FRONT_LISTEN_DEFAULT, or any free port of the same host where that
     * one is taken.
     */
    const char *listen;
    const char *tls_cert_path, *tls_key_path; /* PEM files; NULL: no TLS */
    const char *address_path;    /* the port's URL is written to this file; may be NULL */
    const char *access_log;      /* file to append to, "-" for stderr; NULL: none */
    const struct http_api *apis; /* copied; at most HTTP_APIS_MAX - 1 */
    size_t n_apis;
};

int api_front_new(const struct api_front_options *options, struct api_front **ret,
                  struct error *err);
/* Breaks off every connection, removes the socket if it is still ours. Always NULL. */
struct api_front *api_front_free(struct api_front *front);

/* "http://127.0.0.1:7070", "" when it does not listen. */
const char *api_front_url(const struct api_front *front);

/*
 * Takes nothing new; `done` comes from the loop when the answers under way are out, at the latest
 * after timeout_usec. Once.
 */
int api_front_drain(struct api_front *front, uint64_t timeout_usec, void (*done)(void *userdata),
                    void *userdata);
