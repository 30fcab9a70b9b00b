#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "cli/rex-head.h"
#include "cli/rex-relay.h"
#include "harness/test.h"

/* ---- heads ---- */

static ssize_t rewrite(const char *text, struct rex_head *head, char *to, size_t size)
{
    struct error err = {0};
    struct buf out;
    ssize_t n;

    buf_init(&out, (size_t)64 * 1024);
    n = rex_head_rewrite(text, strlen(text), "sb1", "secret", &out, head, &err);
    (void)snprintf(to, size, "%s", buf_string(&out));
    buf_done(&out);
    return n;
}

TEST(head_goes_below_the_sandbox_with_what_a_client_needs)
{
    static const char text[] = "POST /run_in_session?x=%20y HTTP/1.1\r\nHost: 1-other.e2b.app\r\n"
                               "x-api-key: secret\r\nHearth-Tenant: *\r\nE2b-Sandbox-Id: other\r\n"
                               "Upgrade: hearth-stream\r\nConnection: keep-alive\r\n"
                               "content-type:application/json\r\nContent-Length: 2\r\n\r\n{}";
    struct rex_head head;
    char to[1024];

    ASSERT_EQ(rewrite(text, &head, to, sizeof(to)), (ssize_t)strlen(text) - 2);
    ASSERT_STREQ(to, "POST /rex/sb1/run_in_session?x=%20y HTTP/1.1\r\nHost: hearth\r\n"
                     "Connection: close\r\nContent-Type: application/json\r\n"
                     "Content-Length: 2\r\n\r\n");
    ASSERT_TRUE(head.has_token && head.token_is_right);
    ASSERT_TRUE(head.body.has_length && head.body.length == 2 && !head.body.chunked);
}

TEST(only_the_right_token_is_right)
{
    static const char *const wrong[] = {"secre", "secretx", "", "SECRET", "secret secret"};
    struct rex_head head;
    char text[128], to[1024];

    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        (void)snprintf(text, sizeof(text), "GET / HTTP/1.1\r\nX-API-Key: %s\r\n\r\n", wrong[i]);
        ASSERT_TRUE(rewrite(text, &head, to, sizeof(to)) > 0);
        ASSERT_TRUE(head.has_token && !head.token_is_right);
    }
    ASSERT_TRUE(rewrite("GET / HTTP/1.1\r\n\r\n", &head, to, sizeof(to)) > 0);
    ASSERT_TRUE(!head.has_token && !head.token_is_right);
    ASSERT_TRUE(rewrite("GET / HTTP/1.1\r\nX-API-Key: a\r\nX-API-Key: secret\r\n\r\n", &head, to,
                        sizeof(to)) > 0);
    ASSERT_TRUE(!head.token_is_right);
}

TEST(what_is_no_request_is_refused)
{
    static const char *const bad[] = {
        "GET http://h/ HTTP/1.1\r\n\r\n",
        "GET /a b HTTP/1.1\r\n\r\n",
        "GET / HTTP/2.0\r\n\r\n",
        "GET /\r\n\r\n",
        " / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\n folded: x\r\n\r\n",
        "GET / HTTP/1.1\r\nA : x\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nAccept: a\nb\r\n\r\n",
    };
    struct rex_head head;
    char to[1024], *large;

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        if (rewrite(bad[i], &head, to, sizeof(to)) != -EPROTO)
            test_fail(__FILE__, __LINE__, "taken: %s", bad[i]);
    }
    ASSERT_EQ(rewrite("GET / HTTP/1.1\r\nA: ", &head, to, sizeof(to)), 0);
    large = calloc(1, HTTP_HEAD_MAX + 1);
    ASSERT_TRUE(large != NULL);
    memset(large, 'a', HTTP_HEAD_MAX);
    ASSERT_EQ(rewrite(large, &head, to, sizeof(to)), -EPROTO);
    free(large);
}

/* ---- the relay, with a daemon that is ours ---- */

struct rig {
    struct loop *loop;
    struct rex_relay *relay;
    char dir[64], path[96];
    int listen_fd, daemon_fd, client_fd;
};

static void rig_begin(struct rig *g)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct error err = {0};

    *g = (struct rig){.daemon_fd = -EBADF, .client_fd = -EBADF};
    (void)snprintf(g->dir, sizeof(g->dir), "/tmp/rex-XXXXXX");
    ASSERT_TRUE(mkdtemp(g->dir) != NULL);
    (void)snprintf(g->path, sizeof(g->path), "%s/s", g->dir);
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", g->path);
    g->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    ASSERT_OK(bind(g->listen_fd, (struct sockaddr *)&address, sizeof(address)));
    ASSERT_OK(listen(g->listen_fd, 8));
    ASSERT_OK(loop_new(&g->loop));
    const struct rex_relay_options options = {
        .loop = g->loop,
        .sandbox = "sb1",
        .token = "secret",
        .socket_path = g->path,
        .address = "127.0.0.1",
    };
    ASSERT_OK(rex_relay_new(&options, &g->relay, &err));
}

static void rig_connect(struct rig *g)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons(rex_relay_port(g->relay))};

    g->client_fd = fd_close(g->client_fd);
    g->daemon_fd = fd_close(g->daemon_fd);
    g->client_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_OK(connect(g->client_fd, (struct sockaddr *)&address, sizeof(address)));
    ASSERT_OK(fd_set_nonblock(g->client_fd, true));
}

static void rig_end(struct rig *g)
{
    (void)fd_close(g->client_fd);
    (void)fd_close(g->daemon_fd);
    (void)fd_close(g->listen_fd);
    g->relay = rex_relay_free(g->relay);
    g->loop = loop_free(g->loop);
    (void)unlink(g->path);
    (void)rmdir(g->dir);
}

static void say(int fd, const char *text)
{
    ASSERT_EQ(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

/* Everything that comes to `*fd` until `size` bytes or its end; accepts the daemon's side first. */
static size_t hear(struct rig *g, int *fd, char *to, size_t size)
{
    uint64_t deadline = clock_now_usec() + 10 * USEC_PER_SEC;
    size_t have = 0;

    while (have < size) {
        ssize_t n;

        ASSERT_TRUE(clock_now_usec() < deadline);
        ASSERT_OK(loop_run_once(g->loop, 10 * USEC_PER_MSEC));
        if (g->daemon_fd < 0)
            g->daemon_fd = accept4(g->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        n = *fd >= 0 ? recv(*fd, to + have, size - have, 0) : -1;
        if (n == 0)
            break;
        have += n > 0 ? (size_t)n : 0;
    }
    to[have] = '\0';
    return have;
}

TEST(request_and_answer_pass_and_nothing_else)
{
    static const char wanted[] = "POST /rex/sb1/execute HTTP/1.1\r\nHost: hearth\r\n"
                                 "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
                                 "3\r\nabc\r\n0\r\n\r\n";
    struct rig g;
    char text[1024];

    rig_begin(&g);
    rig_connect(&g);
    say(g.client_fd, "POST /execute HTTP/1.1\r\nX-API-Key: secret\r\n"
                     "Transfer-Encoding: chunked\r\n\r\n3\r\nab");
    /* A second request behind the first would come to a place where everybody is the host. */
    say(g.client_fd, "c\r\n0\r\n\r\nGET /v1/sandboxes HTTP/1.1\r\nHost: x\r\n\r\n");
    ASSERT_EQ(hear(&g, &g.daemon_fd, text, strlen(wanted)), strlen(wanted));
    ASSERT_STREQ(text, wanted);
    say(g.daemon_fd, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
    for (int i = 0; i < 5; i++)
        ASSERT_OK(loop_run_once(g.loop, USEC_PER_MSEC));
    ASSERT_EQ(recv(g.daemon_fd, text, sizeof(text), 0), -1); /* not a byte more */
    ASSERT_OK(shutdown(g.daemon_fd, SHUT_WR));
    hear(&g, &g.client_fd, text, sizeof(text) - 1);
    ASSERT_STREQ(text, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
    rig_end(&g);
}

TEST(large_answer_comes_whole_to_a_slow_reader)
{
    size_t size = 3 * 1024 * 1024, sent = 0, got = 0;
    struct rig g;
    char *block = malloc(size), text[512];

    ASSERT_TRUE(block != NULL);
    for (size_t i = 0; i < size; i++)
        block[i] = (char)('a' + i % 23);
    rig_begin(&g);
    rig_connect(&g);
    say(g.client_fd, "GET /is_alive HTTP/1.1\r\nX-API-Key: secret\r\n\r\n");
    (void)hear(&g, &g.daemon_fd, text, 20);
    while (got < size) {
        char piece[65536];
        ssize_t n = sent < size ? send(g.daemon_fd, block + sent, size - sent, MSG_NOSIGNAL) : 0;

        sent += n > 0 ? (size_t)n : 0;
        if (sent == size)
            (void)shutdown(g.daemon_fd, SHUT_WR);
        ASSERT_OK(loop_run_once(g.loop, USEC_PER_MSEC));
        n = recv(g.client_fd, piece, sizeof(piece), 0);
        if (n > 0)
            ASSERT_MEMEQ(piece, block + got, (size_t)n);
        got += n > 0 ? (size_t)n : 0;
    }
    free(block);
    rig_end(&g);
}

TEST(refusals_never_reach_the_daemon)
{
    static const struct {
        const char *request, *answer;
    } cases[] = {
        {"GET /is_alive HTTP/1.1\r\n\r\n", "HTTP/1.1 403 "},
        {"GET /is_alive HTTP/1.1\r\nX-API-Key: wrong\r\n\r\n", "HTTP/1.1 401 "},
        {"nonsense\r\n\r\n", "HTTP/1.1 400 "},
    };
    struct rig g;
    char text[1024];

    rig_begin(&g);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        rig_connect(&g);
        say(g.client_fd, cases[i].request);
        hear(&g, &g.client_fd, text, sizeof(text) - 1);
        ASSERT_TRUE(strncmp(text, cases[i].answer, strlen(cases[i].answer)) == 0);
        ASSERT_TRUE(g.daemon_fd < 0);
    }
    /* No daemon: said, and the next one is asked anew. */
    (void)unlink(g.path);
    rig_connect(&g);
    say(g.client_fd, "GET /is_alive HTTP/1.1\r\nX-API-Key: secret\r\n\r\n");
    hear(&g, &g.client_fd, text, sizeof(text) - 1);
    ASSERT_TRUE(strncmp(text, "HTTP/1.1 503 ", 13) == 0);
    rig_end(&g);
}

TEST(client_that_goes_takes_the_daemons_side_along)
{
    struct rig g;
    char text[256];

    rig_begin(&g);
    rig_connect(&g);
    say(g.client_fd, "GET /is_alive HTTP/1.1\r\nX-API-Key: secret\r\n\r\n");
    (void)hear(&g, &g.daemon_fd, text, 20);
    g.client_fd = fd_close(g.client_fd);
    (void)hear(&g, &g.daemon_fd, text, sizeof(text) - 1); /* up to its end */
    rig_end(&g);
}
