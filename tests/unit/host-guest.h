#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/loop.h"
#include "host/console.h"

/*
 * A real guest server in a child process on a socketpair, and a console to it. The host's end stays
 * open in `fd`, so that a console can be replaced by a new one as on a virtio-serial port. Or the
 * server listens, as on vsock: then `fd` is the listening socket, which connections are made to.
 */
struct guest {
    struct loop *loop;       /* owned */
    struct console *console; /* owned */
    int fd;                  /* owned */
    bool listens;
    pid_t pid;
    unsigned opened, broken;
    struct error reason;
};

void guest_start(struct guest *g, bool thawed);
void guest_start_listening(struct guest *g);
/* A new connection to a server that listens. */
int guest_connect(struct guest *g);
/* Ends the server and waits for it. */
void guest_stop(struct guest *g);
/* Throws the console away, in the middle of whatever it does, and says hello with a new one. */
void guest_reconnect(struct guest *g);
void guest_turn(struct guest *g);

#define GUEST_WAIT(g, condition)                                                                   \
    do {                                                                                           \
        uint64_t guest_deadline = clock_now_usec() + 20 * USEC_PER_SEC;                            \
        while (!(condition)) {                                                                     \
            if ((g)->broken)                                                                       \
                test_fail(__FILE__, __LINE__, "console broke: %s", (g)->reason.text);              \
            if (clock_now_usec() > guest_deadline)                                                 \
                test_fail(__FILE__, __LINE__, "waited in vain: %s", #condition);                   \
            guest_turn(g);                                                                         \
        }                                                                                          \
    } while (0)
