#include "api-fixture.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/native/range.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"

/* The guests of these tests see this machine's files: all paths lie in the test's own directory. */
static char *dir_path(const char *name)
{
    char *path = string_printf("%s/%s", test_tmpdir(), name);
    ASSERT_TRUE(path != NULL);
    return path;
}

static char *file_url(struct api_fixture *f, const char *verb, const char *name, const char *more)
{
    char *url = string_printf("/v1/sandboxes/%s/files%s?path=%s/%s%s", f->id, verb, test_tmpdir(),
                              name, more);
    ASSERT_TRUE(url != NULL);
    return url;
}

static unsigned put(struct api_fixture *f, const char *name, const char *more, const char *data,
                    size_t size, struct client *c)
{
    _cleanup_free_ char *url = file_url(f, "", name, more);
    char *head =
        string_printf("PUT %s HTTP/1.1\r\nHost: h\r\nContent-Length: %zu\r\n\r\n", url, size);
    unsigned status;
    client_connect(c, f->core.loop, f->path);
    client_send_text(c, head);
    client_send(c, data, size);
    client_wait_text(c, "\r\n\r\n");
    ASSERT_EQ(sscanf(buf_string(&c->in), "HTTP/1.1 %u", &status), 1);
    free(head);
    return status;
}

static void put_ok(struct api_fixture *f, const char *name, const char *more, const char *data,
                   size_t size)
{
    struct client c;
    unsigned status = put(f, name, more, data, size, &c);
    if (status != 204)
        test_fail(__FILE__, __LINE__, "%s", buf_string(&c.in));
    client_close(&c);
}

/* A chunked answer, put together. */
static void get(struct api_fixture *f, const char *name, const char *more, struct buf *out)
{
    _cleanup_free_ char *url = file_url(f, "", name, more);
    char *head = string_printf("GET %s HTTP/1.1\r\nHost: h\r\n\r\n", url);
    struct client c;
    client_connect(&c, f->core.loop, f->path);
    client_send_text(&c, head);
    free(head);
    client_wait_text(&c, "\r\n\r\n");
    if (strncmp(buf_string(&c.in), "HTTP/1.1 200", 12) != 0)
        test_fail(__FILE__, __LINE__, "%s", buf_string(&c.in));
    buf_consume(&c.in, (size_t)(strstr(buf_string(&c.in), "\r\n\r\n") + 4 - buf_string(&c.in)));
    for (;;) {
        client_wait_text(&c, "\r\n");
        char *end;
        size_t size = strtoul(buf_string(&c.in), &end, 16);
        size_t line = (size_t)(end - buf_string(&c.in)) + 2;
        client_wait_size(&c, line + size + 2);
        if (size == 0)
            break;
        ASSERT_OK(buf_append(out, buf_data(&c.in) + line, size));
        buf_consume(&c.in, line + size + 2);
    }
    client_close(&c);
}

TEST(a_large_file_goes_in_and_out_unchanged)
{
    struct api_fixture f;
    struct buf out;
    size_t size = 5 * 1024 * 1024 + 17;
    api_begin(&f);
    char *data = malloc(size);
    ASSERT_TRUE(data != NULL);
    for (size_t i = 0; i < size; i++)
        data[i] = (char)(i * 31 + i / 1021);
    buf_init(&out, 16 * 1024 * 1024);
    put_ok(&f, "large", "&mode=0640", data, size);
    get(&f, "large", "", &out);
    ASSERT_EQ(out.size, size);
    ASSERT_MEMEQ(buf_data(&out), data, size);
    buf_clear(&out);
    get(&f, "large", "&offset=1000&length=99", &out);
    ASSERT_EQ(out.size, 99);
    ASSERT_MEMEQ(buf_data(&out), data + 1000, 99);
    put_ok(&f, "empty", "", "", 0);
    buf_clear(&out);
    get(&f, "empty", "", &out);
    ASSERT_EQ(out.size, 0);
    buf_done(&out);
    free(data);
    api_end(&f);
}

static void ask_range(struct api_fixture *f, const char *range, unsigned wanted, const char *header,
                      const char *body)
{
    _cleanup_free_ char *url = file_url(f, "", "ranged", "");
    char *request = string_printf(
        "GET %s HTTP/1.1\r\nHost: h\r\nRange: %s\r\nConnection: close\r\n\r\n", url, range);
    struct client c;
    unsigned status;
    client_connect(&c, f->core.loop, f->path);
    client_send_text(&c, request);
    client_wait_eof(&c);
    ASSERT_EQ(sscanf(buf_string(&c.in), "HTTP/1.1 %u", &status), 1);
    if (status != wanted || !strstr(buf_string(&c.in), header) || !strstr(buf_string(&c.in), body))
        test_fail(__FILE__, __LINE__, "Range: %s: %s", range, buf_string(&c.in));
    client_close(&c);
    free(request);
}

TEST(a_range_of_a_file_is_what_comes)
{
    struct api_fixture f;
    api_begin(&f);
    put_ok(&f, "ranged", "", "0123456789", 10);
    ask_range(&f, "bytes=2-4", 206, "Content-Range: bytes 2-4/10\r\n", "\r\n\r\n234");
    ask_range(&f, "bytes=2-4", 206, "Content-Length: 3\r\n", "");
    ask_range(&f, "bytes=7-", 206, "Content-Range: bytes 7-9/10\r\n", "\r\n\r\n789");
    ask_range(&f, "bytes=-1", 206, "Content-Range: bytes 9-9/10\r\n", "\r\n\r\n9");
    ask_range(&f, "bytes=8-99", 206, "Content-Range: bytes 8-9/10\r\n", "\r\n\r\n89");
    ask_range(&f, "bytes=10-", 416, "Content-Range: bytes */10\r\n", "range_not_satisfiable");
    ask_range(&f, "lines=1-2", 200, "Accept-Ranges: bytes\r\n", "0123456789");
    ask_range(&f, "bytes=0-1,4-5", 200, "", "0123456789");
    api_end(&f);
}

TEST(ranges_that_make_no_sense_are_ignored)
{
    static const char *const ignored[] = {"bytes=",
                                          "bytes=-",
                                          "bytes=5-2",
                                          "bytes=a-b",
                                          "bytes=1-2-3",
                                          "bytes=0x1-2",
                                          "bytes=99999999999999999999999-",
                                          "bytes",
                                          "",
                                          "bytes=+1-2",
                                          "bytes= 1-2"};
    struct byte_range range;
    for (size_t i = 0; i < ARRAY_SIZE(ignored); i++)
        ASSERT_EQ(byte_range_parse(ignored[i], 10, &range), 0);
    ASSERT_EQ(byte_range_parse(NULL, 10, &range), 0);
    ASSERT_EQ(byte_range_parse("bytes=-99", 10, &range), 1);
    ASSERT_EQ(range.offset, 0);
    ASSERT_EQ(range.length, 10);
    ASSERT_ERR(byte_range_parse("bytes=-0", 10, &range), ERANGE);
}

TEST(stat_list_move_and_remove)
{
    struct api_fixture f;
    json_t *answer;
    api_begin(&f);
    _cleanup_free_ char *base = dir_path("tree");
    char *body =
        string_printf("{\"path\": \"%s/sub\", \"parents\": true, \"mode\": \"0750\"}", base);
    ASSERT_EQ(api_ask_box(&f, "POST", "/files/mkdir", body, NULL), 204);
    free(body);
    put_ok(&f, "tree/a", "&mode=0604", "hello", 5);
    body = string_printf("{\"target\": \"a\", \"path\": \"%s/l\"}", base);
    ASSERT_EQ(api_ask_box(&f, "POST", "/files/symlink", body, NULL), 204);
    free(body);

    char *url = file_url(&f, "/stat", "tree/a", "");
    ASSERT_EQ(api_ask(&f, "GET", url, NULL, &answer), 200);
    ASSERT_STREQ(api_string(answer, "type"), "file");
    ASSERT_STREQ(api_string(answer, "mode"), "0604");
    ASSERT_EQ(api_int(answer, "size"), 5);
    json_decref(answer);
    free(url);

    url = file_url(&f, "/list", "tree", "");
    ASSERT_EQ(api_ask(&f, "GET", url, NULL, &answer), 200);
    ASSERT_EQ(json_array_size(json_object_get(answer, "entries")), 3);
    json_decref(answer);
    free(url);

    body = string_printf(
        "{\"path\": \"%s/a\", \"mode\": \"0600\", \"mtime_nsec\": 1500000000000000000}", base);
    ASSERT_EQ(api_ask_box(&f, "POST", "/files/attr", body, NULL), 204);
    free(body);
    body = string_printf("{\"from\": \"%s/a\", \"to\": \"%s/sub/b\"}", base, base);
    ASSERT_EQ(api_ask_box(&f, "POST", "/files/move", body, NULL), 204);
    free(body);
    url = file_url(&f, "/stat", "tree/sub/b", "");
    ASSERT_EQ(api_ask(&f, "GET", url, NULL, &answer), 200);
    ASSERT_STREQ(api_string(answer, "mode"), "0600");
    ASSERT_EQ(api_int(answer, "mtime_nsec"), 1500000000000000000);
    json_decref(answer);
    free(url);

    url = file_url(&f, "", "tree", "&recursive=1");
    ASSERT_EQ(api_ask(&f, "DELETE", url, NULL, NULL), 204);
    free(url);
    ASSERT_FALSE(file_exists(base));
    api_end(&f);
}

TEST(bad_paths_and_values_are_named)
{
    struct api_fixture f;
    struct client c;
    api_begin(&f);
    api_fails(&f, "GET", "files?path=/no/such", NULL, 404, "path_not_found");
    api_fails(&f, "GET", "files?path=/tmp", NULL, 409, "path_is_directory");
    api_fails(&f, "GET", "files/stat?path=/etc/passwd/x", NULL, 409, "path_not_directory");
    api_fails(&f, "GET", "files?path=relative", NULL, 400, "invalid_argument");
    api_fails(&f, "GET", "files", NULL, 400, "invalid_argument");
    api_fails(&f, "GET", "files?path=/a%00b", NULL, 400, "invalid_argument");
    api_fails(&f, "GET", "files?path=/x&offset=-1", NULL, 400, "invalid_argument");
    api_fails(&f, "DELETE", "files?path=/x&recursive=perhaps", NULL, 400, "invalid_argument");
    api_fails(&f, "POST", "files/mkdir", "{\"path\": \"/x\", \"mode\": \"9\"}", 400,
              "invalid_argument");
    api_fails(&f, "POST", "files/move", "{\"from\": \"/x\"}", 400, "invalid_argument");
    /* The error comes before the body was taken. */
    ASSERT_EQ(put(&f, "no/such/dir/f", "", "x", 1, &c), 404);
    client_wait_text(&c, "path_not_found");
    client_close(&c);
    put_ok(&f, "once", "&exclusive=true", "x", 1);
    ASSERT_EQ(put(&f, "once", "&exclusive=true", "x", 1, &c), 409);
    client_wait_text(&c, "already_exists");
    client_close(&c);
    api_end(&f);
}

TEST(an_upload_that_breaks_off_leaves_the_old_file)
{
    struct api_fixture f;
    struct client c;
    struct buf out;
    static char data[300000];
    api_begin(&f);
    put_ok(&f, "kept", "", "old", 3);
    _cleanup_free_ char *url = file_url(&f, "", "kept", "");
    char *head =
        string_printf("PUT %s HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n", url);
    client_connect(&c, f.core.loop, f.path);
    client_send_text(&c, head);
    free(head);
    client_send(&c, data, sizeof(data));
    client_run_for(f.core.loop, 50);
    client_close(&c);
    client_run_for(f.core.loop, 50);
    buf_init(&out, 1024);
    get(&f, "kept", "", &out);
    ASSERT_STREQ(buf_string(&out), "old");
    buf_done(&out);
    api_end(&f);
}

TEST(a_slow_download_stalls_only_itself)
{
    struct api_fixture f;
    struct client c;
    api_begin(&f);
    client_connect(&c, f.core.loop, f.path);
    char *head = string_printf(
        "GET /v1/sandboxes/%s/files?path=/dev/zero HTTP/1.1\r\nHost: h\r\n\r\n", f.id);
    client_send_text(&c, head);
    free(head);
    client_run_for(f.core.loop, 100);
    put_ok(&f, "meanwhile", "", "x", 1);
    client_wait_size(&c, 3 * 1024 * 1024); /* reads at last */
    client_close(&c);
    client_run_for(f.core.loop, 20);
    put_ok(&f, "after", "", "x", 1);
    api_end(&f);
}

TEST(watch_tells_events_as_lines)
{
    struct api_fixture f;
    struct client c;
    api_begin(&f);
    _cleanup_free_ char *base = dir_path("watched");
    ASSERT_OK(dir_create(base, 0755, NULL));
    _cleanup_free_ char *url = file_url(&f, "/watch", "watched", "");
    char *head = string_printf("GET %s HTTP/1.1\r\nHost: h\r\n\r\n", url);
    client_connect(&c, f.core.loop, f.path);
    client_send_text(&c, head);
    free(head);
    client_wait_text(&c, "{\"kind\":\"armed\"}\n");
    put_ok(&f, "watched/new", "", "x", 1);
    client_wait_text(&c, "\"kind\":\"create\"");
    client_close(&c);
    client_run_for(f.core.loop, 20);
    api_fails(&f, "GET", "files/watch?path=/no/such", NULL, 404, "path_not_found");
    api_end(&f);
}

static int listen_tcp(uint16_t *ret_port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ASSERT_OK(fd);
    ASSERT_OK(bind(fd, (struct sockaddr *)&address, sizeof(address)));
    ASSERT_OK(listen(fd, 4));
    ASSERT_OK(getsockname(fd, (struct sockaddr *)&address, &size));
    *ret_port = ntohs(address.sin_port);
    return fd;
}

TEST(dial_joins_a_port_of_the_guest_both_ways)
{
    struct api_fixture f;
    struct client c;
    char body[64], data[64];
    uint16_t port;
    api_begin(&f);
    int listener = listen_tcp(&port);
    (void)snprintf(body, sizeof(body), "{\"port\": %u}", port);
    api_upgrade(&f, &c, "/dial", body);
    int service = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    ASSERT_OK(service);
    client_send_text(&c, "ping");
    ASSERT_OK(shutdown(c.fd, SHUT_WR));
    size_t got = 0;
    for (int i = 0; i < 1000; i++) {
        ssize_t n = recv(service, data + got, sizeof(data) - got, 0);
        if (n == 0)
            break;
        got += n > 0 ? (size_t)n : 0;
        client_run_for(f.core.loop, 2);
    }
    ASSERT_EQ(got, 4);
    ASSERT_MEMEQ(data, "ping", 4);
    ASSERT_EQ(send(service, "pong", 4, MSG_NOSIGNAL), 4);
    (void)fd_close(service);
    client_wait_eof(&c);
    ASSERT_STREQ(buf_string(&c.in), "pong");
    client_close(&c);
    (void)fd_close(listener);

    /* Nobody listens there now. */
    char *request = string_printf("POST /v1/sandboxes/%s/dial HTTP/1.1\r\nHost: h\r\n"
                                  "Connection: Upgrade\r\nUpgrade: hearth-stream\r\n"
                                  "Content-Length: %zu\r\n\r\n%s",
                                  f.id, strlen(body), body);
    ASSERT_EQ(client_exchange(&c, f.core.loop, f.path, request), 503);
    ASSERT_TRUE(strstr(buf_string(&c.in), "unavailable") != NULL);
    client_close(&c);
    free(request);
    api_end(&f);
}
