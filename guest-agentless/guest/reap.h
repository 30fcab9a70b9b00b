#pragma once

#include "guest/poller.h"
#include "guest/server.h"

/*
 * PID 1 inherits every orphan of the guest: SIGCHLD through a signalfd tells of them. Children of
 * ours have their own pidfd; whichever comes first reaps.
 */
struct reaper {
    struct server *server; /* weak */
    struct source source;
    int fd; /* owned: signalfd */
};

/* Blocks SIGCHLD in this process. */
int reaper_init(struct reaper *r, struct server *s);
