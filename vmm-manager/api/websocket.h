#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/http.h"

/*
 * A WebSocket (RFC 6455) on an upgraded connection: whole messages both ways. Pings are answered,
 * no extension is spoken.
 */
struct websocket;

#define WEBSOCKET_MESSAGE_MAX (256u * 1024u) /* that a client may send */

struct websocket_ops {
    /* Not from inside websocket_send(). Nothing may be freed in it. */
    void (*message)(void *owner, bool text, const uint8_t *data, size_t size);
    /* So many bytes of messages are out of our hands. */
    void (*drained)(void *owner, size_t size);
    /* From the loop, once: it is closed or broken. Only websocket_free() may follow, also inside.
     */
    void (*over)(void *owner);
};

/*
 * Is the request a good hand-shake? Then the headers of its answer are set (request_add_header)
 * and request_upgrade(req, "websocket", …) may follow. Of the subprotocols that it offers,
 * `protocol` (may be NULL) is chosen. -EINVAL and err.
 */
int websocket_accept(struct request *req, const char *protocol, struct error *err);

/* output_max: bytes that may wait for the client. */
int websocket_new(struct loop *loop, const struct websocket_ops *ops, void *owner,
                  size_t output_max, struct websocket **ret);
/* Takes `up`, even on failure. */
int websocket_open(struct websocket *ws, struct upgrade *up);
struct websocket *websocket_free(struct websocket *ws); /* always NULL */

/* All or nothing; -ENOBUFS beyond the room, -EPIPE when it is closed. Before websocket_open() too.
 */
int websocket_send(struct websocket *ws, bool text, const void *data, size_t size);
size_t websocket_room(const struct websocket *ws);
/* No message is taken from the client until it is off again. */
void websocket_pause(struct websocket *ws, bool paused);
/* After what was sent; 1000 is normal, 1011 our failure. The client has some seconds to agree. */
void websocket_close(struct websocket *ws, uint16_t status, const char *reason);
