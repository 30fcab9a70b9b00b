#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/e2b/handlers.h"
#include "api/e2b/reply-head.h"
#include "api/front/touch.h"
#include "api/front/tunnel.h"
#include "base/buf.h"
#include "base/strv.h"
#include "core/keys.h"

/*
 * A request for a server inside the sandbox, carried there by dial: no network of the guest's is
 * needed, and a server on its 127.0.0.1 is reached. Theory of operation: the head goes first, then
 * the body as it comes; the answer's head is collected and passed on when the request's body is
 * over (HTTP allows no earlier answer here), the body streams. A 101 joins the two connections.
 * Each request has a connection of its own.
 */
#define DIAL_MSEC 10000u
#define HEAD_MAX (128u * 1024u)
#define STREAM_MAX (2u * EXEC_WINDOW)

struct port {
    struct request *req;         /* weak; NULL after an upgrade */
    struct loop *loop;           /* weak */
    struct sandbox_watch *watch; /* owned */
    struct transfer *transfer;   /* owned; NULL: over */
    struct tunnel *tunnel;       /* owned */
    struct buf head;             /* of the request, until it is written */
    struct buf reply;            /* of the answer, until it is whole; then what waits */
    struct reply_head parsed;
    struct unchunk unchunk;
    uint64_t left; /* of the answer's body */
    uint16_t port;
    char sandbox_id[65];
    bool chunked; /* the request's body goes in chunks */
    bool wants_upgrade, is_head;
    bool body_ended, have_head, streaming, answered;
};

static void port_free(struct port *p)
{
    p->tunnel = tunnel_free(p->tunnel);
    p->transfer = transfer_free(p->transfer);
    p->watch = sandbox_watch_free(p->watch);
    buf_done(&p->head);
    buf_done(&p->reply);
    free(p);
}

static void on_over(void *state, enum request_end why)
{
    (void)why;
    port_free(state);
}

static void port_fail(struct port *p, const char *message)
{
    p->transfer = transfer_free(p->transfer);
    if (p->streaming) {
        request_stream_end(p->req, /* complete= */ false);
    } else if (!p->answered) {
        p->answered = true;
        request_answer(p->req, 502,
                       json_pack("{s:s, s:s, s:i, s:i}", "sandboxId", p->sandbox_id, "message",
                                 message, "port", (int)p->port, "code", 502));
    }
}

/* ---- the answer ---- */

static void on_drained(void *state, size_t size)
{
    struct port *p = state;

    if (p->transfer)
        transfer_consumed(p->transfer, size);
}

static void port_done(struct port *p)
{
    p->transfer = transfer_free(p->transfer);
    request_stream_end(p->req, /* complete= */ true);
}

/* Body bytes; what they take in the client's buffer is acknowledged when they leave it. */
static void port_body(struct port *p, const uint8_t *data, size_t size)
{
    bool chunked = p->parsed.chunked;

    while (size > 0 && p->transfer) {
        const uint8_t *piece = data;
        size_t n = (size_t)MIN((uint64_t)size, p->left), used = n;

        if (chunked) {
            ssize_t r = unchunk(&p->unchunk, data, size, &piece, &n);

            if (r < 0) {
                port_fail(p, "The port's answer is broken");
                return;
            }
            used = (size_t)r;
        } else if (p->left != UINT64_MAX) {
            p->left -= n;
        }
        if (n > 0 && request_stream_write(p->req, piece, n) < 0) {
            port_fail(p, "The port's answer is too fast");
            return;
        }
        if (used > n) /* nobody else will take what is not passed on */
            transfer_consumed(p->transfer, used - n);
        data += used;
        size -= used;
        if (chunked ? p->unchunk.at == UNCHUNK_DONE : p->left == 0) {
            if (size > 0)
                transfer_consumed(p->transfer, size);
            port_done(p);
            return;
        }
        if (used == 0)
            return;
    }
}

static void on_tunnel_over(void *owner)
{
    port_free(owner);
}

static void on_upgraded(struct upgrade *up, void *state)
{
    struct port *p = state;

    p->req = NULL;
    if (tunnel_new(p->loop, up, p->transfer, on_tunnel_over, p, &p->tunnel) < 0) {
        port_free(p);
        return;
    }
    if (p->reply.size > 0)
        (void)tunnel_data(p->tunnel, buf_data(&p->reply), p->reply.size);
    buf_clear(&p->reply);
}

/* The head is whole and the request is over: the client gets it, with what followed. */
static void port_answer(struct port *p)
{
    const struct reply_head *h = &p->parsed;
    bool empty = p->is_head || h->status == 204 || h->status == 304;
    uint64_t length = empty ? 0 : h->length;

    for (size_t i = 0; i < h->n_headers; i++)
        (void)request_add_header(p->req, h->headers[i].name, h->headers[i].value);
    p->answered = true;
    if (h->status == 101 && h->upgrade) {
        request_upgrade(p->req, h->upgrade, on_upgraded);
        return;
    }
    p->streaming = true;
    p->left = length;
    request_stream_begin_as(p->req, h->status, h->type, length, STREAM_MAX, on_drained);
    if (length == 0) {
        port_done(p);
        return;
    }
    port_body(p, buf_data(&p->reply), p->reply.size);
    buf_clear(&p->reply);
    if (!p->transfer && p->streaming)
        return;
}

/* Looks for the end of the head; skips 1xx that are no upgrade. */
static void port_head(struct port *p)
{
    struct error err = {0};

    while (!p->have_head) {
        const char *text = buf_string(&p->reply), *end = strstr(text, "\r\n\r\n");
        static char head[REPLY_HEAD_MAX + 1]; /* parsed strings are used within this call */
        size_t size;

        if (!end && p->reply.size > REPLY_HEAD_MAX) {
            port_fail(p, "The port's answer has too long a head");
            return;
        }
        if (!end)
            return;
        size = (size_t)(end - text) + 4;
        if (size > REPLY_HEAD_MAX) {
            port_fail(p, "The port's answer has too long a head");
            return;
        }
        if (!p->body_ended)
            return;
        memcpy(head, text, size);
        head[size] = '\0';
        if (reply_head_parse(head, &p->parsed, &err) < 0) {
            port_fail(p, err.text);
            return;
        }
        buf_consume(&p->reply, size);
        transfer_consumed(p->transfer, size);
        p->have_head = p->parsed.status >= 200 || p->parsed.status == 101;
        if (p->have_head)
            port_answer(p);
    }
}

static void on_data(struct transfer *t, const uint8_t *data, size_t size, void *userdata)
{
    struct port *p = userdata;

    (void)t;
    if (p->tunnel) {
        (void)tunnel_data(p->tunnel, data, size);
        return;
    }
    if (p->streaming) {
        port_body(p, data, size);
        return;
    }
    if (buf_append(&p->reply, data, size) < 0) {
        port_fail(p, "The port's answer is too fast");
        return;
    }
    if (!p->have_head)
        port_head(p);
}

static void port_ended(struct port *p, const char *message)
{
    bool to_the_end = p->streaming && !p->parsed.chunked && p->parsed.length == UINT64_MAX;

    if (p->tunnel) {
        tunnel_guest_ended(p->tunnel);
        p->transfer = transfer_free(p->transfer);
    } else if (to_the_end) {
        port_done(p);
    } else {
        port_fail(p, message);
    }
}

static void on_done(struct transfer *t, const struct error *err, void *userdata)
{
    struct port *p = userdata;

    (void)t;
    port_ended(p, err && p->head.size > 0 ? "The sandbox is running but port is not open"
                                          : "The port closed the connection too early");
}

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    struct port *p = userdata;

    (void)sb;
    (void)reason;
    p->watch = sandbox_watch_free(p->watch);
    if (p->transfer)
        port_ended(p, "The sandbox was not found");
}

/* ---- the request ---- */

static void add_header(const char *name, const char *value, void *userdata)
{
    struct port *p = userdata;

    if (header_is_hop(name) || strcasecmp(name, "E2b-Traffic-Access-Token") == 0 ||
        strcasecmp(name, "X-Access-Token") == 0 || strcasecmp(name, "Expect") == 0)
        return;
    (void)buf_printf(&p->head, "%s: %s\r\n", name, value);
}

static int port_write_head(struct port *p, struct request *req)
{
    const char *length = request_header(req, "Content-Length");
    const char *upgrade = request_header(req, "Upgrade");
    int r;

    p->is_head = strcmp(request_method(req), "HEAD") == 0;
    p->wants_upgrade = upgrade && request_wants_upgrade(req, upgrade);
    p->chunked = !length && request_header(req, "Transfer-Encoding") != NULL;
    r = buf_printf(&p->head, "%s %s HTTP/1.1\r\n", request_method(req), request_target(req));
    if (r < 0)
        return r;
    request_each_header(req, add_header, p);
    if (p->chunked)
        (void)buf_append_string(&p->head, "Transfer-Encoding: chunked\r\n");
    if (p->wants_upgrade)
        (void)buf_printf(&p->head, "Connection: Upgrade\r\nUpgrade: %s\r\n", upgrade);
    else
        (void)buf_append_string(&p->head, "Connection: close\r\n");
    return buf_append_string(&p->head, "\r\n");
}

/* True when the head is with the guest. */
static bool port_push_head(struct port *p)
{
    while (p->head.size > 0 && p->transfer) {
        size_t n = MIN(transfer_writable(p->transfer), p->head.size);

        if (n == 0 || transfer_write(p->transfer, buf_data(&p->head), n) < 0)
            return false;
        buf_consume(&p->head, n);
    }
    return p->transfer != NULL;
}

static size_t on_body(void *state, const uint8_t *data, size_t size)
{
    struct port *p = state;
    char frame[24];
    size_t room, n;
    int length;

    if (p->answered || !port_push_head(p))
        return 0;
    room = transfer_writable(p->transfer);
    if (!p->chunked) {
        n = MIN(room, size);
        return n > 0 && transfer_write(p->transfer, data, n) >= 0 ? n : 0;
    }
    if (room < 64)
        return 0;
    n = MIN(room - 32, size);
    length = snprintf(frame, sizeof(frame), "%zx\r\n", n);
    if (transfer_write(p->transfer, frame, (size_t)length) < 0 ||
        transfer_write(p->transfer, data, n) < 0 || transfer_write(p->transfer, "\r\n", 2) < 0)
        return 0;
    return n;
}

static void on_body_end(void *state)
{
    struct port *p = state;

    p->body_ended = true;
    if (p->answered || !p->transfer)
        return;
    (void)port_push_head(p);
    if (p->chunked)
        (void)transfer_write(p->transfer, "0\r\n\r\n", 5);
    port_head(p);
}

static void on_ready(struct transfer *t, uint64_t size, void *userdata)
{
    static const struct request_body_ops ops = {on_body, on_body_end};
    struct port *p = userdata;

    (void)t;
    (void)size;
    (void)port_push_head(p);
    request_body_begin(p->req, &ops);
}

static void on_writable(struct transfer *t, void *userdata)
{
    struct port *p = userdata;

    (void)t;
    if (p->tunnel) {
        tunnel_writable(p->tunnel);
        return;
    }
    (void)port_push_head(p);
    if (p->req && !p->body_ended)
        request_body_more(p->req);
}

static void port_open(struct request *req, struct sandbox *sb, bool woken)
{
    static const struct transfer_callbacks callbacks = {
        .on_ready = on_ready,
        .on_data = on_data,
        .on_writable = on_writable,
        .on_done = on_done,
    };
    struct console *c = sandbox_console(sb, NULL);
    struct port *p = c ? calloc(1, sizeof(*p)) : NULL;
    struct error err = {0};
    int r;

    (void)woken;
    if (!p) {
        envd_answer_gone(req, sandbox_id(sb));
        return;
    }
    p->req = req;
    p->loop = e2b_of(req)->loop;
    buf_init(&p->head, HEAD_MAX);
    buf_init(&p->reply, STREAM_MAX);
    (void)envd_address(req, p->sandbox_id, &p->port);
    r = port_write_head(p, req);
    if (r >= 0)
        r = sandbox_watch_new(sb, on_gone, p, &p->watch);
    if (r >= 0)
        r = dial_start(c, "127.0.0.1", p->port, DIAL_MSEC, &callbacks, p, &p->transfer, &err);
    request_own(req, p, on_over);
    if (r < 0)
        port_fail(p, err.text[0] ? err.text : "out of memory");
}

/* Ports are for everybody who knows the id, as E2B's are, unless their owner said otherwise. */
void handle_port(struct request *req)
{
    static const struct touch_ops ops = {.ready = port_open, .failed = envd_answer_not_usable};
    struct core *core = e2b_of(req)->core;
    struct sandbox *sb;
    uint16_t port;
    char id[65];

    (void)envd_address(req, id, &port);
    sb = sandbox_find(core, id, NULL);
    if (!sb || strcmp(sandbox_id(sb), id) != 0 ||
        (sandbox_get_spec(sb)->private_ports &&
         !core_sandbox_token_ok(core, id, E2B_TRAFFIC_PURPOSE,
                                request_header(req, "E2b-Traffic-Access-Token")) &&
         !core_sandbox_token_ok(core, id, E2B_TOKEN_PURPOSE,
                                request_header(req, "X-Access-Token")))) {
        envd_answer_gone(req, id);
        return;
    }
    touch_wait(req, sb, &ops);
}
