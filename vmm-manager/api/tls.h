#pragma once

#include "base/error.h"
#include "base/loop.h"

/*
 * TLS in front of a server that speaks in the clear. Each connection that is accepted becomes a
 * pair of connected sockets: one end is the server's, the other one is joined to the client's
 * connection here, on the loop. So everything that a server does with a socket (upgrades above all)
 * works as it does without TLS. A client that goes away, or ends its half, ends the pair.
 */
struct tls_front;

#define TLS_CONNECTIONS_MAX 2048u

struct tls_options {
    int listen_fd;          /* bound, listening, non-blocking; stays the caller's */
    const char *cert, *key; /* PEM, copied */
    /* Takes the server's end of a pair; negative: it could not, and the pair is closed. */
    int (*adopt)(int fd, const void *address, unsigned address_size, void *userdata);
    void *userdata; /* weak */
};

int tls_front_new(struct loop *loop, const struct tls_options *options, struct tls_front **ret,
                  struct error *err);
/* Takes no more connections; those that are go on. */
void tls_front_drain(struct tls_front *front);
/* Breaks off all. After the server that adopted them. Always NULL. */
struct tls_front *tls_front_free(struct tls_front *front);
