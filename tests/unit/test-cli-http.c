#include "cli/http.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "cli/client.h"
#include "harness/test.h"

/*
 * The server is the other end of a SOCK_SEQPACKET pair: each of its sends arrives as one read of
 * the client, so that an answer can be cut at any byte without a second thread.
 */
struct peer {
    struct wait wait;
    struct http http;
    int fd;
};

static void peer_init(struct peer *p)
{
    int fds[2];

    ASSERT_OK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds));
    *p = (struct peer){.wait = {.signal_fd = -EBADF}, .fd = fds[1]};
    http_init(&p->http, &p->wait);
    http_set_fd(&p->http, fds[0]);
}

static void peer_done(struct peer *p)
{
    http_done(&p->http);
    p->fd = fd_close(p->fd);
}

static void say(struct peer *p, const char *data, size_t size)
{
    if (size > 0)
        ASSERT_EQ(send(p->fd, data, size, 0), (ssize_t)size);
}

static const struct http_request get = {
    .method = "GET", .target = "/v1/x", .silence_usec = 2 * USEC_PER_SEC};

static const char chunked[] = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                              "Transfer-Encoding: chunked\r\n\r\n"
                              "5\r\nhello\r\n3;x=y\r\n, w\r\nA\r\norld 12345\r\n0\r\nT: v\r\n\r\n";
static const char sized[] = "HTTP/1.1 100 Continue\r\n\r\n"
                            "HTTP/1.1 200 Fine\r\nContent-Length: 18\r\n\r\nhello, world 12345";

static void expect_body(struct peer *p, const char *text)
{
    _cleanup_buf_ struct buf body = {0};
    struct error err = {0};

    buf_init(&body, 1000);
    ASSERT_OK(http_request(&p->http, &get, &err));
    ASSERT_EQ(p->http.head.status, 200);
    ASSERT_OK(http_read_all(&p->http, &body, &err));
    ASSERT_STREQ(buf_string(&body), text);
    ASSERT_TRUE(http_is_reusable(&p->http));
}

TEST(an_answer_cut_at_any_byte_reads_the_same)
{
    static const char *const answers[] = {chunked, sized};

    for (size_t k = 0; k < ARRAY_SIZE(answers); k++)
        for (size_t cut = 0; cut <= strlen(answers[k]); cut++) {
            struct peer p;

            peer_init(&p);
            say(&p, answers[k], cut);
            say(&p, answers[k] + cut, strlen(answers[k]) - cut);
            expect_body(&p, "hello, world 12345");
            peer_done(&p);
        }
}

TEST(an_answer_in_single_bytes_reads_the_same)
{
    struct peer p;

    peer_init(&p);
    for (size_t i = 0; i < strlen(chunked); i++)
        say(&p, chunked + i, 1);
    expect_body(&p, "hello, world 12345");
    /* And the connection serves another request. */
    say(&p, sized, strlen(sized));
    expect_body(&p, "hello, world 12345");
    peer_done(&p);
}

TEST(a_body_without_a_length_ends_with_the_connection)
{
    static const char answer[] = "HTTP/1.1 200 OK\r\n\r\nto the end";
    _cleanup_buf_ struct buf body = {0};
    struct error err = {0};
    struct peer p;

    peer_init(&p);
    say(&p, answer, strlen(answer));
    ASSERT_OK(shutdown(p.fd, SHUT_WR));
    buf_init(&body, 100);
    ASSERT_OK(http_request(&p.http, &get, &err));
    ASSERT_OK(http_read_all(&p.http, &body, &err));
    ASSERT_STREQ(buf_string(&body), "to the end");
    ASSERT_FALSE(http_is_reusable(&p.http));
    peer_done(&p);
}

TEST(malformed_answers_are_refused)
{
    static const char *const answers[] = {
        "garbage",
        "HTTP/2 200 OK\r\n\r\n",
        "HTTP/1.1 2x0 OK\r\n\r\n",
        "HTTP/1.1 099 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        "HTTP/1.1 200 OK\r\n: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
    };

    for (size_t i = 0; i < ARRAY_SIZE(answers); i++) {
        struct error err = {0};
        struct peer p;

        peer_init(&p);
        say(&p, answers[i], strlen(answers[i]));
        ASSERT_ERR(http_request(&p.http, &get, &err), EPROTO);
        ASSERT_TRUE(err.text[0] != '\0' && p.http.fd < 0);
        peer_done(&p);
    }
}

TEST(malformed_chunks_are_refused)
{
    static const char *const bodies[] = {"x\r\n",       "\r\n",   "fffffffffffffffff\r\n",
                                         "1\r\nab\r\n", "-1\r\n", "1\r\nax"};

    for (size_t i = 0; i < ARRAY_SIZE(bodies); i++) {
        static const char head[] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        _cleanup_buf_ struct buf body = {0};
        struct error err = {0};
        struct peer p;

        peer_init(&p);
        buf_init(&body, 1000);
        say(&p, head, strlen(head));
        say(&p, bodies[i], strlen(bodies[i]));
        ASSERT_OK(http_request(&p.http, &get, &err));
        ASSERT_ERR(http_read_all(&p.http, &body, &err), EPROTO);
        peer_done(&p);
    }
}

TEST(an_endless_head_and_an_endless_chunk_line_are_refused)
{
    _cleanup_free_ char *head = malloc(HTTP_HEAD_MAX + 1);
    struct http_body body = {.state = HTTP_CHUNK_SIZE};
    struct http_head parsed;
    const uint8_t *payload;
    size_t used, size;
    uint8_t zeros[600];

    ASSERT_TRUE(head != NULL);
    memset(head, 'a', HTTP_HEAD_MAX);
    memcpy(head, "HTTP/1.1 200 OK\r\n", 17);
    ASSERT_ERR(http_head_parse(head, HTTP_HEAD_MAX, &parsed, NULL), EPROTO);
    memset(zeros, '0', sizeof(zeros));
    ASSERT_ERR(http_body_next(&body, zeros, sizeof(zeros), &used, &payload, &size, NULL), EPROTO);
}

TEST(a_server_that_leaves_is_reported)
{
    struct error err = {0};
    struct peer p;

    peer_init(&p);
    say(&p, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", 42);
    ASSERT_OK(shutdown(p.fd, SHUT_WR));
    ASSERT_OK(http_request(&p.http, &get, &err));
    {
        _cleanup_buf_ struct buf body = {0};

        buf_init(&body, 100);
        ASSERT_ERR(http_read_all(&p.http, &body, &err), ECONNRESET);
    }
    ASSERT_EQ(err.code, ERR_UNAVAILABLE);
    peer_done(&p);

    peer_init(&p);
    p.fd = fd_close(p.fd);
    error_clear(&err);
    ASSERT_ERR(http_request(&p.http, &get, &err), ECONNRESET);
    peer_done(&p);
}

TEST(a_silent_server_meets_a_deadline)
{
    struct http_request request = get;
    struct error err = {0};
    struct peer p;

    peer_init(&p);
    request.silence_usec = 20 * USEC_PER_MSEC;
    ASSERT_ERR(http_request(&p.http, &request, &err), ETIMEDOUT);
    peer_done(&p);
}

TEST(an_answer_larger_than_the_limit_is_refused)
{
    _cleanup_buf_ struct buf body = {0};
    struct error err = {0};
    struct peer p;

    peer_init(&p);
    buf_init(&body, 10);
    say(&p, sized, strlen(sized));
    ASSERT_OK(http_request(&p.http, &get, &err));
    ASSERT_ERR(http_read_all(&p.http, &body, &err), E2BIG);
    peer_done(&p);
}

TEST(lines_come_one_by_one_wherever_they_are_cut)
{
    static const char answer[] =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        "4\r\none\n\r\n8\r\ntwo\nthre\r\n2\r\ne\n\r\n4\r\nlast\r\n0\r\n\r\n";
    static const char *const lines[] = {"one", "two", "three", "last"};

    for (size_t cut = 0; cut <= strlen(answer); cut++) {
        _cleanup_buf_ struct buf rest = {0};
        _cleanup_free_ char *line = NULL;
        struct error err = {0};
        struct peer p;

        peer_init(&p);
        buf_init(&rest, 64);
        say(&p, answer, cut);
        say(&p, answer + cut, strlen(answer) - cut);
        ASSERT_OK(http_request(&p.http, &get, &err));
        for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
            ASSERT_EQ(http_read_line(&p.http, &rest, &line, &err), 1);
            ASSERT_STREQ(line, lines[i]);
        }
        ASSERT_EQ(http_read_line(&p.http, &rest, &line, &err), 0);
        ASSERT_TRUE(http_is_reusable(&p.http));
        peer_done(&p);
    }
}

TEST(a_line_without_end_is_refused)
{
    static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n"
                                 "0123456789012345678901234567890123456789";
    _cleanup_buf_ struct buf rest = {0};
    _cleanup_free_ char *line = NULL;
    struct error err = {0};
    struct peer p;

    peer_init(&p);
    buf_init(&rest, 32);
    say(&p, answer, strlen(answer));
    ASSERT_OK(http_request(&p.http, &get, &err));
    ASSERT_ERR(http_read_line(&p.http, &rest, &line, &err), E2BIG);
    peer_done(&p);
}

TEST(an_upload_is_sent_in_chunks_and_an_early_answer_ends_it)
{
    static const char answer[] = "HTTP/1.1 204 No Content\r\n\r\n";
    _cleanup_close_ int file = open(test_tmpdir(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    struct http_request put = {.method = "PUT",
                               .target = "/f",
                               .upload = true,
                               .upload_fd = file,
                               .silence_usec = 2 * USEC_PER_SEC};
    struct error err = {0};
    char received[512];
    struct peer p;
    ssize_t n;

    ASSERT_OK(file);
    ASSERT_EQ(write(file, "content", 7), 7);
    ASSERT_EQ(lseek(file, 0, SEEK_SET), 0);
    peer_init(&p);
    say(&p, answer, strlen(answer));
    ASSERT_OK(http_request(&p.http, &put, &err));
    ASSERT_EQ(p.http.head.status, 204);
    n = recv(p.fd, received, sizeof(received) - 1, 0);
    ASSERT_TRUE(n > 0);
    received[n] = '\0';
    ASSERT_TRUE(strstr(received, "Transfer-Encoding: chunked\r\n") != NULL);
    n = recv(p.fd, received, sizeof(received) - 1, 0);
    ASSERT_EQ(n, 12);
    ASSERT_MEMEQ(received, "7\r\ncontent\r\n", 12);
    n = recv(p.fd, received, sizeof(received) - 1, 0);
    ASSERT_EQ(n, 5);
    ASSERT_TRUE(http_is_reusable(&p.http));

    /* More than fits: the server never reads it and refuses at once. */
    ASSERT_OK(ftruncate(file, 64 << 20));
    ASSERT_EQ(lseek(file, 0, SEEK_SET), 0);
    say(&p, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", 45);
    ASSERT_OK(http_request(&p.http, &put, &err));
    ASSERT_EQ(p.http.head.status, 404);
    ASSERT_FALSE(http_is_reusable(&p.http));
    peer_done(&p);
}

TEST(an_upgrade_hands_over_the_bytes_behind_the_head)
{
    static const char answer[] = "HTTP/1.1 101 Switching Protocols\r\nConnection: "
                                 "Upgrade\r\nUpgrade: hearth-stream\r\n\r\nrest";
    struct http_request request = get;
    _cleanup_buf_ struct buf rest = {0};
    _cleanup_close_ int fd = -EBADF;
    struct error err = {0};
    struct peer p;

    peer_init(&p);
    request.upgrade = true;
    say(&p, answer, strlen(answer));
    ASSERT_OK(http_request(&p.http, &request, &err));
    ASSERT_TRUE(p.http.head.upgraded);
    fd = http_take_stream(&p.http, &rest);
    ASSERT_TRUE(fd >= 0 && p.http.fd < 0);
    ASSERT_STREQ(buf_string(&rest), "rest");
    peer_done(&p);
}

TEST(paths_are_encoded)
{
    _cleanup_free_ char *path = client_path("/v1/{}/f?path={}&x={}", "a/b", "/t mp/ü&?", "~.-_");

    ASSERT_STREQ(path, "/v1/a%2Fb/f?path=%2Ft%20mp%2F%C3%BC%26%3F&x=~.-_");
}
