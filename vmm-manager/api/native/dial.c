#include <errno.h>
#include <stdlib.h>

#include "api/front/tunnel.h"
#include "api/native/handlers.h"
#include "api/native/native.h"
#include "base/buf.h"
#include "host/files.h"

/* POST …/dial: a TCP connection in the guest for a client that leaves HTTP. */
struct dial {
    struct loop *loop;           /* weak */
    struct request *req;         /* weak; NULL after the upgrade */
    struct sandbox_watch *watch; /* owned */
    struct transfer *transfer;   /* owned; NULL: over */
    struct tunnel *tunnel;       /* owned */
    struct buf early;            /* came before the client had left HTTP */
    bool ready;
};

static void dial_free(struct dial *d)
{
    d->tunnel = tunnel_free(d->tunnel);
    d->transfer = transfer_free(d->transfer);
    d->watch = sandbox_watch_free(d->watch);
    buf_done(&d->early);
    free(d);
}

static void on_over(void *state, enum request_end why)
{
    (void)why;
    dial_free(state);
}

/* ---- from the guest ---- */

static void dial_end(struct dial *d, const struct error *err)
{
    if (d->tunnel)
        tunnel_guest_ended(d->tunnel);
    d->transfer = transfer_free(d->transfer);
    if (d->req && !d->ready)
        request_answer_error(d->req, err);
}

static void on_upgraded(struct upgrade *up, void *state);

static void on_ready(struct transfer *t, uint64_t size, void *userdata)
{
    struct dial *d = userdata;

    (void)t;
    (void)size;
    d->ready = true;
    request_upgrade(d->req, "hearth-stream", on_upgraded);
}

static void on_data(struct transfer *t, const uint8_t *data, size_t size, void *userdata)
{
    struct dial *d = userdata;
    struct error err;

    (void)t;
    if ((d->tunnel ? tunnel_data(d->tunnel, data, size) : buf_append(&d->early, data, size)) < 0) {
        error_set(&err, ENOBUFS, "dial: the guest sent more than it may");
        dial_end(d, &err);
    }
}

static void on_writable(struct transfer *t, void *userdata)
{
    struct dial *d = userdata;

    (void)t;
    if (d->tunnel)
        tunnel_writable(d->tunnel);
}

static void on_done(struct transfer *t, const struct error *err, void *userdata)
{
    struct error ended;

    (void)t;
    error_set_code(&ended, ERR_UNAVAILABLE, "dial: the guest closed the connection at once");
    dial_end(userdata, err ? err : &ended);
}

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    struct dial *d = userdata;

    (void)sb;
    d->watch = sandbox_watch_free(d->watch);
    if (d->transfer)
        dial_end(d, reason);
}

/* ---- joined ---- */

static void on_tunnel_over(void *owner)
{
    dial_free(owner);
}

static void on_upgraded(struct upgrade *up, void *state)
{
    struct dial *d = state;

    d->req = NULL;
    if (tunnel_new(d->loop, up, d->transfer, on_tunnel_over, d, &d->tunnel) < 0) {
        dial_free(d);
        return;
    }
    if (d->early.size > 0)
        (void)tunnel_data(d->tunnel, buf_data(&d->early), d->early.size);
    buf_clear(&d->early);
}

void handle_dial(struct request *req)
{
    struct body {
        uint16_t port;
        char *host;
        uint32_t timeout_ms;
    } body = {.timeout_ms = 10000};
    static const struct field fields[] = {
        {"port", FIELD_U16, offsetof(struct body, port), 1, UINT16_MAX, true},
        {"host", FIELD_STRING, offsetof(struct body, host), 1, 255, false},
        {"timeout_ms", FIELD_U32, offsetof(struct body, timeout_ms), 1, 600000, false},
    };
    static const struct transfer_callbacks callbacks = {
        .on_ready = on_ready,
        .on_data = on_data,
        .on_writable = on_writable,
        .on_done = on_done,
    };
    struct error err = {0};
    struct sandbox *sb;

    struct console *c = native_console(req, &sb);
    if (!c)
        return;
    if (native_decode(req, fields, ARRAY_SIZE(fields), &body)) {
        struct dial *d = calloc(1, sizeof(*d));
        int r = d ? sandbox_watch_new(sb, on_gone, d, &d->watch) : -ENOMEM;
        if (d) {
            d->req = req;
            d->loop = native_of(req)->loop;
            buf_init(&d->early, TUNNEL_MAX);
        }
        if (r >= 0)
            r = dial_start(c, body.host ? body.host : "127.0.0.1", body.port, body.timeout_ms,
                           &callbacks, d, &d->transfer, &err);
        if (r < 0) {
            error_fill(&err, r, "dial port %u", body.port);
            if (d)
                dial_free(d);
            request_answer_error(req, &err);
        } else {
            request_own(req, d, on_over);
        }
    }
    free(body.host);
}
