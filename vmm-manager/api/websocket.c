#include "api/websocket.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <wslay/wslay.h>

#include "api/sha1.h"
#include "base/base64.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/strv.h"

#define CLOSE_WAIT_USEC (5 * USEC_PER_SEC)
#define READS_PER_EVENT 4u /* then others have their turn */

struct websocket {
    struct loop *loop; /* weak */
    const struct websocket_ops *ops;
    void *owner;
    wslay_event_context_ptr wslay; /* owned */
    struct upgrade *up;            /* owned; NULL before websocket_open() */
    struct source *io, *deadline;  /* owned */
    struct buf extra;              /* came behind the request */
    size_t max;
    size_t told; /* bytes that wait, as the owner knows */
    uint32_t events;
    bool paused, broken;
    bool closing;    /* nothing is sent any more but what waits */
    bool close_sent; /* or queued: wslay sends it before everything else */
    uint16_t status;
    char reason[124];
};

/* ---- hand-shake ---- */

/* 16 bytes in base64. */
static bool key_is_good(const char *key)
{
    char *data = NULL;
    size_t size = 0;
    bool good = key && strlen(key) == 24 && base64_decode(key, 24, &data, &size) >= 0 && size == 16;

    free(data);
    return good;
}

static bool offers(const char *list, const char *protocol)
{
    while (list && *list) {
        list += strspn(list, ", \t");
        size_t length = strcspn(list, ", \t");
        if (length == strlen(protocol) && strncmp(list, protocol, length) == 0)
            return true;
        list += length;
    }
    return false;
}

int websocket_accept(struct request *req, const char *protocol, struct error *err)
{
    static const char guid[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    const char *key = request_header(req, "Sec-WebSocket-Key");
    const char *version = request_header(req, "Sec-WebSocket-Version");
    _cleanup_free_ char *joined = NULL, *answer = NULL;
    uint8_t hash[SHA1_SIZE];

    if (!request_wants_upgrade(req, "websocket"))
        return error_set(err, EINVAL,
                         "this is a WebSocket: 'Connection: Upgrade' and 'Upgrade: websocket' are "
                         "missing");
    if (!version || strcmp(version, "13") != 0) {
        (void)request_add_header(req, "Sec-WebSocket-Version", "13");
        return error_set(err, EINVAL, "Sec-WebSocket-Version: expected 13");
    }
    if (!key_is_good(key))
        return error_set(err, EINVAL, "Sec-WebSocket-Key: expected 16 bytes in base64");
    joined = string_printf("%s%s", key, guid);
    if (joined) {
        sha1(joined, strlen(joined), hash);
        answer = base64_encode(hash, sizeof(hash));
    }
    if (!answer || !request_add_header(req, "Sec-WebSocket-Accept", answer))
        return error_set(err, ENOMEM, "out of memory");
    if (protocol && offers(request_header(req, "Sec-WebSocket-Protocol"), protocol))
        (void)request_add_header(req, "Sec-WebSocket-Protocol", protocol);
    return 0;
}

/* ---- wslay's callbacks ---- */

static ssize_t on_recv(wslay_event_context_ptr ctx, uint8_t *data, size_t size, int flags,
                       void *userdata)
{
    struct websocket *ws = userdata;
    ssize_t n;

    (void)flags;
    if (ws->extra.size > 0) {
        size_t fits = MIN(size, ws->extra.size);
        memcpy(data, buf_data(&ws->extra), fits);
        buf_consume(&ws->extra, fits);
        return (ssize_t)fits;
    }
    n = recv(upgrade_fd(ws->up), data, size, MSG_DONTWAIT);
    if (n > 0)
        return n;
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        wslay_event_set_error(ctx, WSLAY_ERR_WOULDBLOCK);
    } else {
        ws->broken = true;
        wslay_event_set_error(ctx, WSLAY_ERR_CALLBACK_FAILURE);
    }
    return -1;
}

static ssize_t on_send(wslay_event_context_ptr ctx, const uint8_t *data, size_t size, int flags,
                       void *userdata)
{
    struct websocket *ws = userdata;
    ssize_t n;

    (void)flags;
    n = ws->up ? send(upgrade_fd(ws->up), data, size, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
    if (n > 0)
        return n;
    if (!ws->up || errno == EAGAIN || errno == EINTR) {
        wslay_event_set_error(ctx, WSLAY_ERR_WOULDBLOCK);
    } else {
        ws->broken = true;
        wslay_event_set_error(ctx, WSLAY_ERR_CALLBACK_FAILURE);
    }
    return -1;
}

static void on_message(wslay_event_context_ptr ctx, const struct wslay_event_on_msg_recv_arg *arg,
                       void *userdata)
{
    struct websocket *ws = userdata;

    (void)ctx;
    if (!wslay_is_ctrl_frame(arg->opcode))
        ws->ops->message(ws->owner, arg->opcode == WSLAY_TEXT_FRAME, arg->msg, arg->msg_length);
}

/* ---- life ---- */

int websocket_new(struct loop *loop, const struct websocket_ops *ops, void *owner,
                  size_t output_max, struct websocket **ret)
{
    static const struct wslay_event_callbacks callbacks = {
        .recv_callback = on_recv,
        .send_callback = on_send,
        .on_msg_recv_callback = on_message,
    };
    struct websocket *ws = calloc(1, sizeof(*ws));

    if (!ws)
        return -ENOMEM;
    ws->loop = loop;
    ws->ops = ops;
    ws->owner = owner;
    ws->max = output_max;
    buf_init(&ws->extra, HTTP_MEMORY_MAX);
    if (wslay_event_context_server_init(&ws->wslay, &callbacks, ws) != 0) {
        (void)websocket_free(ws);
        return -ENOMEM;
    }
    wslay_event_config_set_max_recv_msg_length(ws->wslay, WEBSOCKET_MESSAGE_MAX);
    *ret = ws;
    return 0;
}

struct websocket *websocket_free(struct websocket *ws)
{
    if (!ws)
        return NULL;
    ws->io = source_free(ws->io);
    ws->deadline = source_free(ws->deadline);
    ws->up = upgrade_close(ws->up);
    if (ws->wslay)
        wslay_event_context_free(ws->wslay);
    buf_done(&ws->extra);
    free(ws);
    return NULL;
}

static bool is_over(const struct websocket *ws)
{
    return ws->broken || (!wslay_event_want_read(ws->wslay) && !wslay_event_want_write(ws->wslay));
}

static void set_events(struct websocket *ws)
{
    uint32_t events = (!ws->paused && wslay_event_want_read(ws->wslay) ? EPOLLIN : 0) |
                      (wslay_event_want_write(ws->wslay) || is_over(ws) ? EPOLLOUT : 0);

    if (!ws->io || events == ws->events)
        return;
    ws->events = events;
    (void)source_set_io_events(ws->io, events);
}

static void tell_drained(struct websocket *ws)
{
    size_t waits = wslay_event_get_queued_msg_length(ws->wslay);
    size_t gone = ws->told > waits ? ws->told - waits : 0;

    ws->told = waits;
    if (gone > 0)
        ws->ops->drained(ws->owner, gone);
}

/* The last word, once all others are out. */
static void close_when_empty(struct websocket *ws)
{
    if (!ws->closing || ws->close_sent || wslay_event_get_queued_msg_count(ws->wslay) > 0)
        return;
    ws->close_sent = true;
    if (wslay_event_queue_close(ws->wslay, ws->status, (const uint8_t *)ws->reason,
                                strlen(ws->reason)) != 0)
        ws->broken = true;
}

static int on_io(struct source *s, int fd, uint32_t events, void *userdata)
{
    struct websocket *ws = userdata;

    (void)s;
    (void)fd;
    for (unsigned i = 0; i < READS_PER_EVENT && !ws->paused && (i == 0 || ws->extra.size > 0);
         i++) {
        if ((events & EPOLLIN || ws->extra.size > 0) && wslay_event_want_read(ws->wslay) &&
            wslay_event_recv(ws->wslay) != 0)
            ws->broken = true;
    }
    if (wslay_event_want_write(ws->wslay) && wslay_event_send(ws->wslay) != 0)
        ws->broken = true;
    close_when_empty(ws);
    if (wslay_event_want_write(ws->wslay) && wslay_event_send(ws->wslay) != 0)
        ws->broken = true;
    tell_drained(ws);
    if (events & (EPOLLHUP | EPOLLERR))
        ws->broken = true;
    if (is_over(ws)) {
        ws->io = source_free(ws->io);
        ws->ops->over(ws->owner);
        return 0;
    }
    set_events(ws);
    return 0;
}

int websocket_open(struct websocket *ws, struct upgrade *up)
{
    size_t size;
    const void *extra = upgrade_extra(up, &size);
    int r;

    ws->up = up;
    r = size > 0 ? buf_append(&ws->extra, extra, size) : 0;
    ws->events = EPOLLIN | EPOLLOUT;
    return r < 0
               ? r
               : loop_add_io(ws->loop, "websocket", upgrade_fd(up), ws->events, on_io, ws, &ws->io);
}

/* ---- sending ---- */

size_t websocket_room(const struct websocket *ws)
{
    size_t waits = wslay_event_get_queued_msg_length(ws->wslay);

    return waits < ws->max ? ws->max - waits : 0;
}

int websocket_send(struct websocket *ws, bool text, const void *data, size_t size)
{
    const struct wslay_event_msg message = {
        .opcode = text ? WSLAY_TEXT_FRAME : WSLAY_BINARY_FRAME,
        .msg = data,
        .msg_length = size,
    };

    if (ws->closing || ws->broken)
        return -EPIPE;
    if (size > websocket_room(ws))
        return -ENOBUFS;
    switch (wslay_event_queue_msg(ws->wslay, &message)) {
    case 0:
        break;
    case WSLAY_ERR_NOMEM:
        return -ENOMEM;
    default:
        return -EPIPE;
    }
    ws->told += size;
    set_events(ws);
    return 0;
}

void websocket_pause(struct websocket *ws, bool paused)
{
    ws->paused = paused;
    set_events(ws);
}

static int on_deadline(struct source *s, uint64_t now_usec, void *userdata)
{
    struct websocket *ws = userdata;

    (void)s;
    (void)now_usec;
    ws->deadline = source_free(ws->deadline);
    ws->broken = true;
    set_events(ws); /* one more event ends it from the loop */
    return 0;
}

void websocket_close(struct websocket *ws, uint16_t status, const char *reason)
{
    if (ws->closing)
        return;
    ws->closing = true;
    ws->paused = false; /* the client's word of the end must be heard */
    ws->status = status;
    (void)snprintf(ws->reason, sizeof(ws->reason), "%s", reason);
    close_when_empty(ws);
    if (loop_add_timer(ws->loop, "websocket-close", clock_now_usec() + CLOSE_WAIT_USEC, on_deadline,
                       ws, &ws->deadline) < 0)
        ws->broken = true;
    set_events(ws);
}
