#pragma once

#include "api/http.h"
#include "host/files.h"

/*
 * A connection in the guest joined to a client's upgraded socket, raw bytes both ways. Nothing is
 * read from the client but what the guest takes at once; what comes from the guest waits here and
 * is acknowledged as the client takes it. A half that was closed is closed on the other side too.
 */
struct tunnel;
#define TUNNEL_MAX (2u * 256u * 1024u) /* two windows of a transfer */

/*
 * Takes the upgraded socket, even on failure; the transfer stays the owner's, who passes on what it
 * says. `over` comes from the loop, once: the client is gone or has all of it. Only tunnel_free()
 * may follow, also inside the call.
 */
int tunnel_new(struct loop *loop, struct upgrade *up_consume, struct transfer *transfer,
               void (*over)(void *owner), void *owner, struct tunnel **ret);
struct tunnel *tunnel_free(struct tunnel *t); /* always NULL */

/* Bytes of the guest; -ENOBUFS when it sent more than it may. */
int tunnel_data(struct tunnel *t, const uint8_t *data, size_t size);
/* The transfer takes more. */
void tunnel_writable(struct tunnel *t);
/* The transfer is over and about to be freed: what waits still goes out. */
void tunnel_guest_ended(struct tunnel *t);
