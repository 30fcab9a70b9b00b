#include "http-client.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/strv.h"
#include "harness/test.h"

#define WAIT_USEC (10 * USEC_PER_SEC)
#define STEP_USEC (2 * USEC_PER_MSEC)

int client_listen(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ASSERT_OK(fd);
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    (void)unlink(path);
    ASSERT_OK(bind(fd, (struct sockaddr *)&address, sizeof(address)));
    ASSERT_OK(listen(fd, 128));
    return fd;
}

/* "http://127.0.0.1:PORT" */
static int connect_tcp(const char *url)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    uint64_t port;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_OK(fd);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_OK(parse_u64(strrchr(url, ':') + 1, 1, 65535, &port));
    address.sin_port = htons((uint16_t)port);
    ASSERT_OK(connect(fd, (struct sockaddr *)&address, sizeof(address)));
    return fd;
}

void client_connect(struct client *c, struct loop *loop, const char *path)
{
    bool tcp = string_starts_with(path, "http://");
    *c = (struct client){.loop = loop, .fd = tcp ? connect_tcp(path) : fd_connect_unix(path)};
    ASSERT_OK(c->fd);
    buf_init(&c->in, 64u * 1024 * 1024);
}

void client_close(struct client *c)
{
    c->fd = fd_close(c->fd);
    buf_done(&c->in);
}

static void client_step(struct client *c, uint64_t deadline)
{
    uint8_t *room;
    ASSERT_TRUE(clock_now_usec() < deadline);
    ASSERT_OK(loop_run_once(c->loop, STEP_USEC));
    for (;;) {
        ASSERT_OK(buf_reserve(&c->in, 65536, &room));
        ssize_t n = recv(c->fd, room, 65536, MSG_DONTWAIT);
        buf_commit(&c->in, n > 0 ? (size_t)n : 0);
        if (n > 0)
            continue;
        if (n == 0 || errno != EAGAIN)
            c->eof = true;
        return;
    }
}

size_t client_send_some(struct client *c, const void *data, size_t size)
{
    ssize_t n = send(c->fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    return n > 0 ? (size_t)n : 0;
}

void client_send(struct client *c, const void *data, size_t size)
{
    uint64_t deadline = clock_now_usec() + WAIT_USEC;
    for (size_t done = 0; done < size && !c->eof;) {
        done += client_send_some(c, (const char *)data + done, size - done);
        if (done < size)
            client_step(c, deadline);
    }
}

void client_send_text(struct client *c, const char *text)
{
    client_send(c, text, strlen(text));
}

void client_wait_text(struct client *c, const char *text)
{
    uint64_t deadline = clock_now_usec() + WAIT_USEC;
    while (!memmem(buf_string(&c->in), c->in.size, text, strlen(text))) {
        if (c->eof)
            test_fail(__FILE__, __LINE__, "end before '%s', got '%s'", text, buf_string(&c->in));
        client_step(c, deadline);
    }
}

void client_wait_size(struct client *c, size_t size)
{
    uint64_t deadline = clock_now_usec() + WAIT_USEC;
    while (c->in.size < size) {
        ASSERT_FALSE(c->eof);
        client_step(c, deadline);
    }
}

void client_wait_eof(struct client *c)
{
    uint64_t deadline = clock_now_usec() + WAIT_USEC;
    while (!c->eof)
        client_step(c, deadline);
}

unsigned client_exchange(struct client *c, struct loop *loop, const char *path, const char *request)
{
    unsigned status;
    client_connect(c, loop, path);
    client_send_text(c, request);
    client_wait_text(c, "\r\n\r\n");
    ASSERT_EQ(sscanf(buf_string(&c->in), "HTTP/1.1 %u", &status), 1);
    const char *length = strcasestr(buf_string(&c->in), "content-length:");
    const char *body = strstr(buf_string(&c->in), "\r\n\r\n") + 4;
    size_t size = length && length < body ? strtoul(length + 15, NULL, 10) : 0;
    size_t head = (size_t)(body - buf_string(&c->in));
    client_wait_size(c, head + size);
    buf_consume(&c->in, head);
    return status;
}

void client_run_until(struct loop *loop, const bool *flag)
{
    uint64_t deadline = clock_now_usec() + WAIT_USEC;
    while (!*flag) {
        ASSERT_TRUE(clock_now_usec() < deadline);
        ASSERT_OK(loop_run_once(loop, STEP_USEC));
    }
}

void client_run_for(struct loop *loop, unsigned msec)
{
    uint64_t deadline = clock_now_usec() + msec * USEC_PER_MSEC;
    while (clock_now_usec() < deadline)
        ASSERT_OK(loop_run_once(loop, STEP_USEC));
}
