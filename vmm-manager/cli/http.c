#include "cli/http.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/strv.h"

#define UPLOAD_BLOCK ((size_t)64 * 1024)
#define SEND_TIMEOUT_USEC (60 * USEC_PER_SEC)

void http_init(struct http *h, struct wait *wait)
{
    *h = (struct http){.fd = -EBADF, .wait = wait};
    buf_init(&h->in, HTTP_IN_MAX);
}

void http_done(struct http *h)
{
    h->fd = fd_close(h->fd);
    buf_done(&h->in);
}

void http_close(struct http *h)
{
    h->fd = fd_close(h->fd);
    buf_clear(&h->in);
    h->in_use = 0;
    h->busy = false;
    h->broken = false;
}

void http_set_fd(struct http *h, int fd)
{
    http_close(h);
    h->fd = fd;
    h->fresh = true;
}

bool http_is_reusable(const struct http *h)
{
    return h->fd >= 0 && !h->busy && !h->broken;
}

static int failed(struct http *h, struct error *err, int r, const char *what)
{
    http_close(h);
    if (r == -ETIMEDOUT)
        return error_set(err, ETIMEDOUT, "the daemon does not answer (%s)", what);
    if (r == -EINTR)
        return error_set_errno(err, ERR_CANCELLED, EINTR, "interrupted");
    if (r == -EPIPE || r == -ECONNRESET)
        return error_set_errno(err, ERR_UNAVAILABLE, ECONNRESET,
                               "the daemon closed the connection (%s)", what);
    return error_fill(err, r, "%s", what);
}

/* Returns 1 when the server answers before everything was sent and `upload` asks to look for that.
 */
static int send_all(struct http *h, const void *data, size_t size, bool upload)
{
    const uint8_t *p = data;

    while (size > 0) {
        ssize_t n = send(h->fd, p, size, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            short events = (short)(upload ? POLLIN | POLLOUT : POLLOUT);
            int r = wait_fd(h->wait, h->fd, events, wait_deadline(SEND_TIMEOUT_USEC));

            if (r < 0)
                return r;
            if (r & POLLIN)
                return 1;
            continue;
        }
        if (n < 0)
            return -errno;
        p += n;
        size -= (size_t)n;
    }
    return 0;
}

static int send_upload(struct http *h, const struct http_request *request, struct error *err)
{
    _cleanup_free_ uint8_t *block = malloc(UPLOAD_BLOCK + 32);
    uint64_t total = 0;

    if (!block)
        return error_set(err, ENOMEM, "out of memory");
    for (;;) {
        ssize_t n = read(request->upload_fd, block + 16, UPLOAD_BLOCK);
        char size_line[16];
        int head, r;

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            http_close(h);
            return error_set(err, errno, "read: %s", errno_text(errno));
        }
        if (n == 0) {
            r = send_all(h, "0\r\n\r\n", 5, true);
            break;
        }
        head = snprintf(size_line, sizeof(size_line), "%zx\r\n", (size_t)n);
        memcpy(block + 16 - head, size_line, (size_t)head);
        memcpy(block + 16 + n, "\r\n", 2);
        r = send_all(h, block + 16 - head, (size_t)head + (size_t)n + 2, true);
        if (r != 0) {
            h->broken = true; /* the body is cut: nothing may follow on this connection */
            return r;
        }
        total += (uint64_t)n;
        if (request->on_sent)
            request->on_sent(total, request->userdata);
    }
    return 0;
}

/* Reads more into `in`; 0 at the end of the connection. */
static ssize_t receive(struct http *h)
{
    for (;;) {
        size_t room = MIN(buf_room(&h->in), (size_t)65536);
        uint8_t *to;
        ssize_t n;
        int r;

        r = buf_reserve(&h->in, room, &to);
        if (r < 0)
            return r;
        n = recv(h->fd, to, room, 0);
        if (n >= 0) {
            buf_commit(&h->in, (size_t)n);
            return n;
        }
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN)
            return -errno;
        r = wait_fd(h->wait, h->fd, POLLIN, wait_deadline(h->silence_usec));
        if (r < 0)
            return r;
    }
}

static int read_head(struct http *h, const char *what, struct error *err)
{
    for (;;) {
        ssize_t n = http_head_parse(buf_string(&h->in), h->in.size, &h->head, err);

        if (n < 0) {
            http_close(h);
            return (int)n;
        }
        if (n > 0) {
            buf_consume(&h->in, (size_t)n);
            if (h->head.status >= 200 || h->head.status == 101)
                return 0;
            continue; /* 100 Continue and the like: the answer follows */
        }
        n = receive(h);
        if (n == 0)
            n = -ECONNRESET;
        if (n < 0)
            return failed(h, err, (int)n, what);
    }
}

static int send_head(struct http *h, const struct http_request *request, struct error *err)
{
    _cleanup_buf_ struct buf text = {0};
    int r;

    buf_init(&text, HTTP_HEAD_MAX + request->body_size);
    r = buf_printf(&text, "%s %s HTTP/1.1\r\nHost: hearth\r\nAccept: %s\r\n", request->method,
                   request->target, request->accept ? request->accept : "application/json");
    if (r >= 0 && request->upgrade)
        r = buf_append_string(&text, "Connection: Upgrade\r\nUpgrade: hearth-stream\r\n");
    if (r >= 0 && request->upload)
        r = buf_append_string(&text, "Content-Type: application/octet-stream\r\n"
                                     "Transfer-Encoding: chunked\r\n");
    else if (r >= 0 && request->body)
        r = buf_printf(&text, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                       request->body_size);
    else if (r >= 0 && strcmp(request->method, "GET") != 0)
        r = buf_append_string(&text, "Content-Length: 0\r\n");
    if (r >= 0)
        r = buf_append_string(&text, "\r\n");
    if (r >= 0 && request->body && !request->upload)
        r = buf_append(&text, request->body, request->body_size);
    if (r < 0)
        return error_set(err, -r, "the request is too long");
    return send_all(h, buf_data(&text), text.size, false);
}

int http_request(struct http *h, const struct http_request *request, struct error *err)
{
    _cleanup_free_ char *what = string_printf("%s %.80s", request->method, request->target);
    int r;

    if (!what)
        return error_set(err, ENOMEM, "out of memory");
    h->busy = true;
    h->silence_usec = request->silence_usec;
    r = send_head(h, request, err);
    if (r >= 0 && request->upload)
        r = send_upload(h, request, err);
    /* A server that refuses an upload may close at once: its answer is still there to read. */
    if (r == -EPIPE || r == -ECONNRESET)
        h->broken = true;
    else if (r < 0)
        return failed(h, err, r, what);
    r = read_head(h, what, err);
    if (r < 0)
        return r;
    http_body_init(&h->body, &h->head);
    if (h->head.close || h->body.state == HTTP_BODY_UNTIL_EOF)
        h->broken = true;
    if (h->body.state == HTTP_BODY_END && h->head.status != 101) {
        h->busy = false;
        h->fresh = false;
    }
    return 0;
}

int http_read(struct http *h, const uint8_t **ret_data, size_t *ret_size, struct error *err)
{
    buf_consume(&h->in, h->in_use);
    h->in_use = 0;
    for (;;) {
        size_t used;
        ssize_t n;
        int r;

        if (h->body.state == HTTP_BODY_END) {
            h->busy = false;
            h->fresh = false;
            *ret_size = 0;
            return 0;
        }
        r = http_body_next(&h->body, buf_data(&h->in), h->in.size, &used, ret_data, ret_size, err);
        if (r < 0) {
            http_close(h);
            return r;
        }
        if (*ret_size > 0) {
            h->in_use = used;
            return 0;
        }
        buf_consume(&h->in, used);
        if (used > 0)
            continue;
        n = receive(h);
        if (n == 0 && h->body.state == HTTP_BODY_UNTIL_EOF) {
            h->body.state = HTTP_BODY_END;
            continue;
        }
        if (n <= 0)
            return failed(h, err, n == 0 ? -ECONNRESET : (int)n, "in the middle of its answer");
    }
}

int http_read_all(struct http *h, struct buf *out, struct error *err)
{
    for (;;) {
        const uint8_t *data;
        size_t size;
        int r = http_read(h, &data, &size, err);

        if (r < 0)
            return r;
        if (size == 0)
            return 0;
        if (size > buf_room(out)) {
            http_close(h);
            return error_set(err, E2BIG, "the daemon's answer is larger than %zu bytes", out->max);
        }
        r = buf_append(out, data, size);
        if (r < 0)
            return error_set(err, -r, "out of memory");
    }
}

int http_read_line(struct http *h, struct buf *rest, char **ret_line, struct error *err)
{
    free(*ret_line);
    *ret_line = NULL;
    for (;;) {
        char *end = rest->size > 0 ? memchr(buf_data(rest), '\n', rest->size) : NULL;
        const uint8_t *data;
        size_t size;
        int r;

        if (end) {
            size_t n = (size_t)(end - (char *)buf_data(rest));

            *ret_line = strndup((char *)buf_data(rest), n);
            buf_consume(rest, n + 1);
            return *ret_line ? 1 : error_set(err, ENOMEM, "out of memory");
        }
        r = http_read(h, &data, &size, err);
        if (r < 0)
            return r;
        if (size == 0 && rest->size == 0)
            return 0;
        if (size == 0)
            r = buf_append(rest, "\n", 1); /* the last line may lack its end */
        else
            r = buf_append(rest, data, size);
        if (r < 0) {
            http_close(h);
            return error_set(err, E2BIG, "the daemon sent a line longer than %zu bytes", rest->max);
        }
    }
}

int http_take_stream(struct http *h, struct buf *ret_rest)
{
    int fd = TAKE_FD(h->fd);

    buf_done(ret_rest);
    *ret_rest = h->in;
    buf_init(&h->in, HTTP_IN_MAX);
    h->in_use = 0;
    h->busy = false;
    return fd;
}
