#include "harness/test.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/http.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/strv.h"
#include "http-client.h"

/* What the handlers saw. */
static struct seen {
    struct request *held;
    enum request_end why;
    bool over;
    size_t body, room;
    bool body_ended, paused;
    struct upgrade *up;
    size_t drained;
} seen;

static void on_over(void *state, enum request_end why)
{
    struct seen *s = state;
    s->why = why;
    s->over = true;
    s->held = NULL;
    s->up = upgrade_close(s->up);
}

static void handle_echo(struct request *req)
{
    json_t *copy = json_deep_copy(request_json(req));
    json_object_set_new(copy, "param", json_string(request_param(req, 0)));
    request_answer(req, 200, copy);
}

static void handle_query(struct request *req)
{
    struct error err;
    const char *value;
    if (request_query(req, "path", &value, &err) < 0)
        request_answer_error(req, &err);
    else
        request_answer_text(req, "text/plain", value ? value : "-", value ? strlen(value) : 1);
}

static void handle_hold(struct request *req)
{
    seen.held = req;
    request_own(req, &seen, on_over);
}

static size_t on_body(void *state, const uint8_t *data, size_t size)
{
    struct seen *s = state;
    size_t used = MIN(size, s->room);
    (void)data;
    s->body += used;
    s->room -= used;
    s->paused = used < size;
    return used;
}

static void on_body_end(void *state)
{
    ((struct seen *)state)->body_ended = true;
}

static void handle_upload(struct request *req)
{
    static const struct request_body_ops ops = {on_body, on_body_end};
    handle_hold(req);
    if (strcmp(request_param(req, 0), "now") == 0)
        request_body_begin(req, &ops);
}

static void on_drained(void *state, size_t size)
{
    ((struct seen *)state)->drained += size;
}

static void handle_download(struct request *req)
{
    handle_hold(req);
    request_stream_begin(req, "application/octet-stream", 65536, on_drained);
}

static void on_upgraded(struct upgrade *up, void *state)
{
    size_t size;
    (void)state;
    seen.up = up;
    const void *extra = upgrade_extra(up, &size);
    ASSERT_EQ(write(upgrade_fd(up), "hi:", 3), 3);
    if (size > 0)
        ASSERT_EQ(write(upgrade_fd(up), extra, size), (ssize_t)size);
}

static void handle_upgrade(struct request *req)
{
    handle_hold(req);
    if (json_object_get(request_json(req), "later") == NULL)
        request_upgrade(req, "hearth-stream", on_upgraded);
}

static const struct route routes[] = {
    {"POST", "/echo/ID", handle_echo, ROUTE_BODY_OPTIONAL},
    {"POST", "/strict", handle_echo, ROUTE_BODY},
    {"GET", "/query", handle_query, 0},
    {"GET", "/hold", handle_hold, 0},
    {"PUT", "/upload/ID", handle_upload, ROUTE_STREAM_IN},
    {"GET", "/download", handle_download, 0},
    {"POST", "/upgrade", handle_upgrade, ROUTE_BODY_OPTIONAL | ROUTE_UPGRADE_ONLY},
};

struct fixture {
    struct loop *loop;
    struct http_server *server;
    char path[128];
    int fd;
};

static void setup_with(struct fixture *f, uint32_t idle_sec, uint32_t connections)
{
    struct error err = {0};
    seen = (struct seen){0};
    (void)snprintf(f->path, sizeof(f->path), "%s/http.sock", test_tmpdir());
    f->fd = client_listen(f->path);
    ASSERT_OK(loop_new(&f->loop));
    const struct http_api api = {.name = "test", .routes = routes, .n_routes = ARRAY_SIZE(routes)};
    struct http_options options = {
        .listen_fd = f->fd,
        .apis = &api,
        .n_apis = 1,
        .idle_sec = idle_sec,
        .connections = connections,
    };
    ASSERT_OK(http_server_new(f->loop, &options, &f->server, &err));
}

static void setup(struct fixture *f)
{
    setup_with(f, 0, 0);
}

static void teardown(struct fixture *f)
{
    f->server = http_server_free(f->server);
    f->loop = loop_free(f->loop);
    (void)fd_close(f->fd);
}

static unsigned ask(struct fixture *f, struct client *c, const char *request)
{
    return client_exchange(c, f->loop, f->path, request);
}

static void answers(struct fixture *f, const char *request, unsigned status, const char *says)
{
    struct client c;
    ASSERT_EQ(ask(f, &c, request), status);
    if (!strstr(buf_string(&c.in), says))
        test_fail(__FILE__, __LINE__, "'%s' does not say '%s'", buf_string(&c.in), says);
    client_close(&c);
}

TEST(routes_by_method_and_path)
{
    struct fixture f;
    setup(&f);
    answers(&f, "POST /echo/x%20y HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n{\"a\": 1}\n",
            200, "{\"a\":1,\"param\":\"x y\"}");
    answers(&f, "POST /echo/x HTTP/1.1\r\nHost: h\r\n\r\n", 200, "{\"param\":\"x\"}");
    answers(&f, "GET /echo/x HTTP/1.1\r\nHost: h\r\n\r\n", 405, "\"unsupported\"");
    answers(&f, "GET /nope HTTP/1.1\r\nHost: h\r\n\r\n", 404, "\"not_found\"");
    answers(&f, "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n", 404, "no such path");
    answers(&f, "GET /echo/a/b HTTP/1.1\r\nHost: h\r\n\r\n", 404, "no such path");
    answers(&f, "GET /query?path=%2Fa%26b HTTP/1.1\r\nHost: h\r\n\r\n", 200, "/a&b");
    answers(&f, "GET /query?path=a%00b HTTP/1.1\r\nHost: h\r\n\r\n", 400, "NUL");
    teardown(&f);
}

TEST(refuses_bad_bodies)
{
    struct fixture f;
    setup(&f);
    answers(&f, "POST /echo/x HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n{", 400, "not JSON");
    answers(&f, "POST /echo/x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n[]", 400,
            "not a JSON object");
    answers(&f, "POST /echo/x HTTP/1.1\r\nHost: h\r\nContent-Length: 15\r\n\r\n{\"a\":1,\"a\":2}  ",
            400, "duplicate");
    answers(&f, "GET /query HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}", 400,
            "takes no body");
    answers(&f, "POST /strict HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", 400,
            "the body is empty");
    answers(&f, "POST /echo/x HTTP/1.1\r\nHost: h\r\nContent-Length: 1048577\r\n\r\n", 413,
            "limit_exceeded");
    teardown(&f);
}

TEST(cuts_a_chunked_body_at_the_limit_and_says_why)
{
    struct fixture f;
    struct client c;
    setup(&f);
    char *chunk = malloc(65536);
    ASSERT_TRUE(chunk != NULL);
    memset(chunk, ' ', 65536);
    client_connect(&c, f.loop, f.path);
    client_send_text(&c, "POST /echo/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 32 && !c.eof; i++) {
        client_send_some(&c, "10000\r\n", 7);
        client_send_some(&c, chunk, 65536);
        client_send_some(&c, "\r\n", 2);
        client_run_for(f.loop, 2);
    }
    client_wait_text(&c, "limit_exceeded");
    ASSERT_TRUE(strstr(buf_string(&c.in), "HTTP/1.1 413") == buf_string(&c.in));
    client_wait_eof(&c);
    client_close(&c);
    free(chunk);
    teardown(&f);
}

TEST(survives_what_is_not_http)
{
    static const char *const junk[] = {
        "\r\n\r\n\r\n",
        "GET\r\n\r\n",
        "hello world\r\n\r\n",
        "GET /query HTTP/9.9\r\n\r\n",
        "POST /echo/x HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
        "POST /echo/x HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "POST /echo/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    };
    struct fixture f;
    setup(&f);
    for (size_t i = 0; i < ARRAY_SIZE(junk); i++) {
        struct client c;
        client_connect(&c, f.loop, f.path);
        client_send_text(&c, junk[i]);
        client_run_for(f.loop, 20);
        client_close(&c);
        client_run_for(f.loop, 5);
    }
    answers(&f, "GET /query HTTP/1.1\r\nHost: h\r\n\r\n", 200, "-");
    teardown(&f);
}

TEST(refuses_headers_beyond_the_limit)
{
    struct fixture f;
    struct client c;
    setup(&f);
    client_connect(&c, f.loop, f.path);
    client_send_text(&c, "GET /query HTTP/1.1\r\nHost: h\r\nX-Long: ");
    char *big = calloc(1, 100 * 1024 + 1);
    ASSERT_TRUE(big != NULL);
    memset(big, 'x', 100 * 1024);
    client_send_some(&c, big, 100 * 1024);
    client_wait_text(&c, "HTTP/1.1 4");
    client_close(&c);
    free(big);
    answers(&f, "GET /query HTTP/1.1\r\nHost: h\r\n\r\n", 200, "-");
    teardown(&f);
}

TEST(closes_a_client_that_never_completes_its_request)
{
    struct fixture f;
    struct client c;
    setup_with(&f, 1, 0);
    client_connect(&c, f.loop, f.path);
    client_send_text(&c, "GET /query HTTP/1.1\r\nHost:");
    client_wait_eof(&c);
    client_close(&c);
    teardown(&f);
}

TEST(notices_a_client_that_ends_with_its_last_bytes)
{
    static const char *const halves[] = {"GET /query HTTP/1.1\r\nHost:",
                                         "POST /query HTTP/1.1\r\nHost: h\r\n"};
    struct client clients[20];
    struct fixture f;

    setup(&f);
    for (size_t i = 0; i < ARRAY_SIZE(clients); i++)
        client_connect(&clients[i], f.loop, f.path);
    client_run_for(f.loop, 50);
    ASSERT_EQ(http_server_connections(f.server), ARRAY_SIZE(clients));
    /* Bytes and end are both there before the server looks. Over TCP a client that closes shows no
     * more than this. */
    for (size_t i = 0; i < ARRAY_SIZE(clients); i++) {
        const char *half = halves[i % ARRAY_SIZE(halves)];

        ASSERT_EQ(client_send_some(&clients[i], half, strlen(half)), strlen(half));
        ASSERT_OK(shutdown(clients[i].fd, SHUT_WR));
    }
    client_run_for(f.loop, 300);
    ASSERT_EQ(http_server_connections(f.server), 0);
    for (size_t i = 0; i < ARRAY_SIZE(clients); i++)
        client_close(&clients[i]);
    teardown(&f);
}

TEST(a_waiting_request_outlives_the_idle_limit_and_answers_later)
{
    struct fixture f;
    struct client c;
    setup_with(&f, 1, 0);
    client_connect(&c, f.loop, f.path);
    client_send_text(&c, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
    client_run_for(f.loop, 1500);
    ASSERT_TRUE(seen.held != NULL);
    request_answer_empty(seen.held, 204);
    client_wait_text(&c, "HTTP/1.1 204");
    client_run_until(f.loop, &seen.over);
    ASSERT_EQ(seen.why, REQUEST_DONE);
    client_close(&c);
    teardown(&f);
}

TEST(tells_the_handler_that_its_client_is_gone)
{
    struct fixture f;
    struct client c;
    setup(&f);
    client_connect(&c, f.loop, f.path);
    client_send_text(&c, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
    client_run_for(f.loop, 20);
    ASSERT_TRUE(seen.held != NULL);
    /* Half-closed is not gone. */
    ASSERT_OK(shutdown(c.fd, SHUT_WR));
    client_run_for(f.loop, 20);
    ASSERT_FALSE(seen.over);
    client_close(&c);
    client_run_until(f.loop, &seen.over);
    ASSERT_EQ(seen.why, REQUEST_GONE);
    answers(&f, "GET /query HTTP/1.1\r\nHost: h\r\n\r\n", 200, "-");
    teardown(&f);
}

TEST(takes_an_upload_only_as_fast_as_its_handler)
{
    struct fixture f;
    struct client c;
    size_t total = 3 * 1024 * 1024, sent = 0;
    setup(&f);
    char *data = calloc(1, total);
    ASSERT_TRUE(data != NULL);
    seen.room = 100000;
    client_connect(&c, f.loop, f.path);
    client_send_text(&c, "PUT /upload/now HTTP/1.1\r\nHost: h\r\nContent-Length: 3145728\r\n\r\n");
    for (int i = 0; i < 50; i++) {
        sent += client_send_some(&c, data + sent, total - sent);
        client_run_for(f.loop, 2);
    }
    ASSERT_EQ(seen.body, 100000);
    ASSERT_TRUE(seen.paused);
    ASSERT_TRUE(sent < total);
    while (!seen.body_ended) {
        seen.room = 65536;
        request_body_more(seen.held);
        sent += client_send_some(&c, data + sent, total - sent);
        ASSERT_OK(loop_run_once(f.loop, USEC_PER_MSEC));
    }
    ASSERT_EQ(seen.body, total);
    request_answer_empty(seen.held, 204);
    client_wait_text(&c, "HTTP/1.1 204");
    client_close(&c);
    free(data);
    teardown(&f);
}

TEST(answers_an_upload_before_its_body)
{
    struct fixture f;
    struct client c;
    struct error err;
    setup(&f);
    client_connect(&c, f.loop, f.path);
    client_send_text(&c, "PUT /upload/later HTTP/1.1\r\nHost: h\r\nContent-Length: 3145728\r\n"
                         "Expect: 100-continue\r\n\r\n");
    client_run_for(f.loop, 20);
    ASSERT_EQ(c.in.size, 0);
    error_set_code(&err, ERR_PATH_NOT_FOUND, "no");
    request_answer_error(seen.held, &err);
    client_wait_text(&c, "path_not_found");
    ASSERT_TRUE(strstr(buf_string(&c.in), "HTTP/1.1 404") == buf_string(&c.in));
    client_close(&c);
    teardown(&f);
}

TEST(answers_in_the_middle_of_an_endless_upload)
{
    struct fixture f;
    struct client c;
    struct error err;
    static char data[65536];
    setup(&f);
    seen.room = 10000;
    client_connect(&c, f.loop, f.path);
    client_send_text(&c, "PUT /upload/now HTTP/1.1\r\nHost: h\r\nContent-Length: 3145728\r\n\r\n");
    client_send(&c, data, sizeof(data));
    client_run_until(f.loop, &seen.paused);
    error_set_code(&err, ERR_NO_SPACE, "full");
    request_answer_error(seen.held, &err);
    client_wait_text(&c, "no_space");
    ASSERT_TRUE(strstr(buf_string(&c.in), "HTTP/1.1 507") == buf_string(&c.in));
    client_wait_eof(&c);
    client_close(&c);
    teardown(&f);
}

TEST(an_upload_may_be_empty)
{
    struct fixture f;
    struct client c;
    setup(&f);
    client_connect(&c, f.loop, f.path);
    client_send_text(&c, "PUT /upload/now HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
    client_run_until(f.loop, &seen.body_ended);
    request_answer_empty(seen.held, 204);
    client_wait_text(&c, "HTTP/1.1 204");
    client_close(&c);
    teardown(&f);
}

TEST(a_slow_reader_of_a_stream_fills_its_own_buffer_only)
{
    struct fixture f;
    struct client c;
    static char data[16384];
    size_t wrote = 0;
    setup(&f);
    client_connect(&c, f.loop, f.path);
    client_send_text(&c, "GET /download HTTP/1.1\r\nHost: h\r\n\r\n");
    client_run_for(f.loop, 10);
    for (int i = 0; i < 200; i++) {
        if (request_stream_room(seen.held) >= sizeof(data)) {
            ASSERT_OK(request_stream_write(seen.held, data, sizeof(data)));
            wrote += sizeof(data);
        }
        client_run_for(f.loop, 1);
    }
    /* The socket's buffer and ours are full, nobody turns in circles. */
    ASSERT_TRUE(wrote < 2 * 1024 * 1024);
    ASSERT_TRUE(seen.drained < wrote);
    ASSERT_ERR(request_stream_write(seen.held, data, 65537), ENOBUFS);
    answers(&f, "GET /query HTTP/1.1\r\nHost: h\r\n\r\n", 200, "-");
    request_stream_end(seen.held, true);
    client_wait_text(&c, "\r\n0\r\n\r\n");
    ASSERT_EQ(seen.drained, wrote);
    client_run_until(f.loop, &seen.over);
    ASSERT_EQ(seen.why, REQUEST_DONE);
    client_close(&c);
    teardown(&f);
}

TEST(a_cut_stream_lacks_its_last_chunk)
{
    struct fixture f;
    struct client c;
    setup(&f);
    client_connect(&c, f.loop, f.path);
    client_send_text(&c, "GET /download HTTP/1.1\r\nHost: h\r\n\r\n");
    client_run_for(f.loop, 10);
    ASSERT_OK(request_stream_write(seen.held, "abc", 3));
    request_stream_end(seen.held, false);
    client_wait_eof(&c);
    ASSERT_TRUE(strstr(buf_string(&c.in), "abc") != NULL);
    ASSERT_TRUE(strstr(buf_string(&c.in), "\r\n0\r\n") == NULL);
    client_close(&c);
    teardown(&f);
}

#define UPGRADE "Connection: Upgrade\r\nUpgrade: hearth-stream\r\n"

TEST(upgrades_a_post_with_a_body_and_hands_over_the_bytes_behind)
{
    struct fixture f;
    struct client c;
    setup(&f);
    answers(&f, "POST /upgrade HTTP/1.1\r\nHost: h\r\n\r\n", 400, "needs the headers");
    client_connect(&c, f.loop, f.path);
    client_send_text(&c, "POST /upgrade HTTP/1.1\r\nHost: h\r\n" UPGRADE
                         "Content-Length: 2\r\n\r\n{}behind");
    client_wait_text(&c, "hi:behind");
    ASSERT_TRUE(strstr(buf_string(&c.in), "HTTP/1.1 101") == buf_string(&c.in));
    ASSERT_TRUE(strcasestr(buf_string(&c.in), "upgrade: hearth-stream") != NULL);
    ASSERT_TRUE(seen.up != NULL);
    ASSERT_FALSE(seen.over);
    seen.up = upgrade_close(seen.up);
    client_wait_eof(&c);
    client_close(&c);
    teardown(&f);
}

TEST(upgrades_later)
{
    struct fixture f;
    struct client c;
    setup(&f);
    client_connect(&c, f.loop, f.path);
    client_send_text(&c, "POST /upgrade HTTP/1.1\r\nHost: h\r\n" UPGRADE
                         "Content-Length: 11\r\n\r\n{\"later\":1}");
    client_run_for(f.loop, 20);
    request_upgrade(seen.held, "hearth-stream", on_upgraded);
    client_wait_text(&c, "hi:");
    client_close(&c);
    client_run_for(f.loop, 10);
    teardown(&f);
    ASSERT_TRUE(seen.over);
    ASSERT_EQ(seen.why, REQUEST_STOPPED);
}

TEST(stopping_ends_waiting_requests)
{
    struct fixture f;
    struct client c;
    setup(&f);
    client_connect(&c, f.loop, f.path);
    client_send_text(&c, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
    client_run_for(f.loop, 20);
    ASSERT_TRUE(seen.held != NULL);
    teardown(&f);
    ASSERT_TRUE(seen.over);
    ASSERT_EQ(seen.why, REQUEST_STOPPED);
    client_close(&c);
}

TEST(serves_requests_one_after_the_other_on_one_connection)
{
    struct fixture f;
    struct client c;
    setup(&f);
    client_connect(&c, f.loop, f.path);
    for (int i = 0; i < 3; i++) {
        client_send_text(&c, "GET /query?path=x HTTP/1.1\r\nHost: h\r\n\r\n");
        client_wait_text(&c, "\r\n\r\nx");
        buf_clear(&c.in);
    }
    /* Two at once. */
    client_send_text(&c, "GET /query?path=1 HTTP/1.1\r\nHost: h\r\n\r\n"
                         "GET /query?path=2 HTTP/1.1\r\nHost: h\r\n\r\n");
    client_wait_text(&c, "\r\n\r\n1HTTP/1.1 200");
    client_wait_text(&c, "\r\n\r\n2");
    client_close(&c);
    teardown(&f);
}

TEST(holds_no_more_connections_than_its_limit)
{
    struct fixture f;
    struct client c[4], late;
    setup_with(&f, 0, 4);
    for (int i = 0; i < 4; i++) {
        client_connect(&c[i], f.loop, f.path);
        client_send_text(&c[i], "GET /query HTTP/1.1\r\nHost: h\r\n\r\n");
        client_wait_text(&c[i], "HTTP/1.1 200");
    }
    client_connect(&late, f.loop, f.path);
    client_send_text(&late, "GET /query HTTP/1.1\r\nHost: h\r\n\r\n");
    client_run_for(f.loop, 50);
    ASSERT_EQ(late.in.size, 0);
    client_close(&c[0]);
    if (!late.eof)
        client_wait_text(&late, "HTTP/1.1 200");
    for (int i = 1; i < 4; i++)
        client_close(&c[i]);
    client_close(&late);
    teardown(&f);
}
