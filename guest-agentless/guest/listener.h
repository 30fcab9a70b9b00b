#pragma once

#include <stdbool.h>

#include "guest/conn.h"
#include "guest/poller.h"

/*
 * Connections that come one after the other to a listening socket; the newest wins. One of the two
 * may be parked (conn.h) while the other asks to go on with it.
 */
struct server;

struct listener {
    struct server *server; /* weak */
    int fd;                /* owned; -EBADF: none */
    bool host_only;        /* a vsock's: let in the host itself and nobody else */
    struct source source;
    struct conn conns[2];
};

void listener_init(struct listener *l, struct server *s);
/* Takes the listening descriptor, even on failure. */
int listener_open_consume(struct listener *l, int fd, bool host_only);
/* Closes what broke. */
void listener_tidy(struct listener *l);
void listener_done(struct listener *l);
