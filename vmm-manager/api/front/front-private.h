#pragma once

#include "api/front/front.h"
#include "api/front/listen.h"

/* The front, for its own files. */
struct access_log;
struct metrics;
struct tls_front;

struct api_front {
    struct core *core;  /* weak */
    struct loop *loop;  /* weak */
    char *socket_path;  /* owned */
    char *address_path; /* owned, may be NULL */
    struct unix_listener own;
    int tcp_fd;                     /* owned */
    struct http_server *host, *tcp; /* owned */
    struct tls_front *tls;          /* owned; NULL: in the clear */
    char *cert, *key;               /* owned: PEM */
    struct metrics *metrics;        /* owned */
    struct access_log *access_log;  /* owned, may be NULL */
    char url[TCP_ADDRESS_SIZE + 16];
    struct source *drain; /* owned */
    uint64_t drain_until_usec;
    void (*drained)(void *userdata);
    void *drained_userdata;
};
