#pragma once

#include <stdbool.h>

#include "guest/conn.h"
#include "guest/listener.h"

/*
 * How the host reaches PID 1: a virtio-serial port of our name, and a vsock listener. Whichever the
 * machine has is used; the newest conversation wins. On vsock only the host itself is let in, so
 * that no process of the guest can talk to PID 1.
 */
struct server;

struct transport {
    struct server *server; /* weak */
    struct conn port;
    struct listener vsock;
    struct conn *conns[3]; /* weak: of both of the above */
};

/* Waits for the port until the deadline when there is no vsock. -ENODEV: the host cannot reach us.
 */
int transport_open(struct transport *t, struct server *s, uint64_t deadline_usec);
/* Closes what broke. */
void transport_tidy(struct transport *t);
void transport_done(struct transport *t);
