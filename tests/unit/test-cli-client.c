#include "cli/client.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"
#include "cli/copy.h"
#include "harness/test.h"

/* A daemon whose answers are written down before they are asked for. */
struct peer {
    struct cli cli;
    int fd;
};

static void peer_init(struct peer *p)
{
    int fds[2];

    ASSERT_OK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds));
    cli_init(&p->cli);
    p->cli.options.quiet = true;
    p->fd = fds[1];
    http_set_fd(&p->cli.http, fds[0]);
}

static void peer_done(struct peer *p)
{
    cli_done(&p->cli);
    p->fd = fd_close(p->fd);
}

static void answer(struct peer *p, int status, const char *body)
{
    char text[2048];
    int n = snprintf(text, sizeof(text), "HTTP/1.1 %d X\r\nContent-Length: %zu\r\n\r\n%s", status,
                     strlen(body), body);

    ASSERT_EQ(send(p->fd, text, (size_t)n, 0), n);
}

TEST(an_error_answer_becomes_that_error)
{
    struct error err = {0};
    json_t *json = NULL;
    struct peer p;

    peer_init(&p);
    answer(&p, 404, "{\"code\": \"image_not_found\", \"message\": \"image 'x': none\"}");
    ASSERT_ERR(client_call(&p.cli, "GET", "/v1/images/x", NULL, &json, &err), ENOENT);
    ASSERT_EQ(err.code, ERR_IMAGE_NOT_FOUND);
    ASSERT_STREQ(err.text, "image 'x': none");
    /* A code that is not known, one that means success, and no JSON at all are errors too. */
    answer(&p, 500, "{\"code\": \"from_the_future\", \"message\": \"m\"}");
    ASSERT_ERR(client_call(&p.cli, "GET", "/", NULL, &json, &err), EIO);
    answer(&p, 500, "{\"code\": \"ok\", \"message\": \"m\"}");
    ASSERT_TRUE(client_call(&p.cli, "GET", "/", NULL, &json, &err) < 0);
    answer(&p, 502, "<html>");
    ASSERT_TRUE(client_call(&p.cli, "GET", "/", NULL, &json, &err) < 0);
    ASSERT_TRUE(strstr(err.text, "502") != NULL);
    answer(&p, 200, "{broken");
    ASSERT_ERR(client_call(&p.cli, "GET", "/", NULL, &json, &err), EPROTO);
    ASSERT_TRUE(json == NULL);
    peer_done(&p);
}

TEST(a_progress_report_ends_with_its_result_or_error)
{
    struct error err = {0};
    json_t *json = NULL;
    struct peer p;

    peer_init(&p);
    answer(&p, 200,
           "{\"progress\": {\"step\": \"a\", \"percent\": 10}}\n{\"news\": 1}\n\n"
           "{\"sandbox\": {\"id\": \"x1\"}}\n");
    ASSERT_OK(client_work(&p.cli, "/v1/sandboxes", NULL, "sandbox", &json, &err));
    ASSERT_STREQ(client_string(json, "id"), "x1");
    json_decref(json);
    ASSERT_TRUE(http_is_reusable(&p.cli.http));
    answer(&p, 200, "{\"error\": {\"code\": \"no_space\", \"message\": \"full\"}}\n");
    ASSERT_ERR(client_work(&p.cli, "/", NULL, "sandbox", &json, &err), ENOSPC);
    peer_done(&p);
    peer_init(&p);
    answer(&p, 200, "{\"progress\": {}}\n");
    ASSERT_ERR(client_work(&p.cli, "/", NULL, "sandbox", &json, &err), EPROTO);
    peer_done(&p);
    peer_init(&p);
    answer(&p, 200, "rubbish\n");
    ASSERT_ERR(client_work(&p.cli, "/", NULL, "sandbox", &json, &err), EPROTO);
    peer_done(&p);
}

/* ---- copying out of a guest that lies ---- */

static int copy_directory(struct peer *p, const char *to, struct error *err)
{
    struct copy c = {.cli = &p->cli, .sandbox = "x"};
    struct copy_info info = {.is_directory = true, .mode = 0755};

    return copy_out(&c, "/d", &info, to, err);
}

TEST(names_that_leave_the_target_are_refused)
{
    static const char *const names[] = {"..", ".", "", "../evil", "a/b", "/etc/evil"};
    _cleanup_free_ char *to = string_printf("%s/names", test_tmpdir());

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        _cleanup_free_ char *body = string_printf("{\"entries\": [{\"path\": \"%s\", \"type\": "
                                                  "\"file\", \"size\": 1, \"mode\": \"0644\"}]}",
                                                  names[i]);
        struct error err = {0};
        struct peer p;

        peer_init(&p);
        answer(&p, 200, body);
        answer(&p, 200, "x");
        ASSERT_ERR(copy_directory(&p, to, &err), EPROTO);
        peer_done(&p);
    }
}

TEST(a_link_of_the_guest_is_never_written_through)
{
    _cleanup_free_ char *to = string_printf("%s/links", test_tmpdir());
    _cleanup_free_ char *outside = string_printf("%s/outside", test_tmpdir());
    _cleanup_free_ char *inside = string_printf("%s/x", to);
    _cleanup_free_ char *victim = string_printf("%s/victim", outside);
    _cleanup_free_ char *body = string_printf(
        "{\"entries\": ["
        "{\"path\": \"x\", \"type\": \"symlink\", \"link_target\": \"%s\", \"mode\": \"0777\"},"
        "{\"path\": \"x\", \"type\": \"file\", \"size\": 4, \"mode\": \"4755\"},"
        "{\"path\": \"d\", \"type\": \"symlink\", \"link_target\": \"%s\", \"mode\": \"0777\"},"
        "{\"path\": \"d\", \"type\": \"directory\", \"size\": 0, \"mode\": \"0755\"}]}",
        victim, outside);
    struct error err = {0};
    struct stat st;
    struct peer p;

    ASSERT_OK(dir_create(outside, 0700, &err));
    ASSERT_OK(file_write_atomic(victim, "precious", 8, 0600, &err));
    peer_init(&p);
    answer(&p, 200, body);
    answer(&p, 200, "evil");
    answer(&p, 200,
           "{\"entries\": [{\"path\": \"victim\", \"type\": \"file\", \"size\": 4, \"mode\": "
           "\"0644\"}]}");
    answer(&p, 200, "evil");
    /* "d" is a link by the time it is to be filled: refused. */
    ASSERT_TRUE(copy_directory(&p, to, &err) < 0);
    peer_done(&p);
    ASSERT_OK(stat(victim, &st));
    ASSERT_EQ(st.st_size, 8);
    ASSERT_OK(lstat(inside, &st));
    ASSERT_TRUE(S_ISREG(st.st_mode));
    ASSERT_EQ(st.st_mode & 07777, 0755);
}

TEST(a_tree_is_copied_with_modes_and_links)
{
    _cleanup_free_ char *to = string_printf("%s/tree", test_tmpdir());
    _cleanup_free_ char *file = string_printf("%s/sub/f", to);
    _cleanup_free_ char *link = string_printf("%s/l", to);
    _cleanup_free_ char *data = NULL;
    struct error err = {0};
    char target[16] = "";
    struct stat st;
    struct peer p;

    peer_init(&p);
    answer(
        &p, 200,
        "{\"entries\": ["
        "{\"path\": \"l\", \"type\": \"symlink\", \"link_target\": \"sub/f\", \"mode\": \"0777\"},"
        "{\"path\": \"s\", \"type\": \"socket\", \"size\": 0, \"mode\": \"0755\"},"
        "{\"path_base64\": \"/w==\", \"type\": \"file\", \"size\": 0, \"mode\": \"0755\"},"
        "{\"path\": \"sub\", \"type\": \"directory\", \"size\": 0, \"mode\": \"0500\"}]}");
    answer(
        &p, 200,
        "{\"entries\": [{\"path\": \"f\", \"type\": \"file\", \"size\": 3, \"mode\": \"0640\"}]}");
    answer(&p, 200, "abc");
    ASSERT_OK(copy_directory(&p, to, &err));
    peer_done(&p);
    ASSERT_OK(file_read(file, 100, &data, NULL, &err));
    ASSERT_STREQ(data, "abc");
    ASSERT_OK(stat(file, &st));
    ASSERT_EQ(st.st_mode & 07777, 0640);
    ASSERT_TRUE(readlink(link, target, sizeof(target) - 1) > 0);
    ASSERT_STREQ(target, "sub/f");
}
