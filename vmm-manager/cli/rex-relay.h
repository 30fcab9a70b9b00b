#pragma once

#include <stdint.h>

#include "base/error.h"
#include "base/loop.h"

/*
 * A SWE-ReX server for one sandbox on a port of its own: passes each request on to the daemon's
 * socket, with its path below /rex/ID, and the answer back. Holds nothing itself, so the daemon may
 * come and go meanwhile.
 */
struct rex_relay;

#define REX_CONNECTIONS_MAX 128u
#define REX_HEAD_USEC (30 * USEC_PER_SEC) /* for a request's head to come */

struct rex_relay_options {
    struct loop *loop;       /* weak */
    const char *sandbox;     /* id; copied */
    const char *token;       /* copied */
    const char *socket_path; /* of the daemon; copied */
    const char *address;     /* IPv4, as 127.0.0.1 */
    uint16_t port;           /* 0: any that is free */
};

int rex_relay_new(const struct rex_relay_options *options, struct rex_relay **ret,
                  struct error *err);
struct rex_relay *rex_relay_free(struct rex_relay *relay); /* always NULL */
uint16_t rex_relay_port(const struct rex_relay *relay);
