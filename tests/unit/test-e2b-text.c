#include <string.h>

#include "api/e2b/connect.h"
#include "api/e2b/entry.h"
#include "api/e2b/filter.h"
#include "api/e2b/passwd.h"
#include "api/e2b/reply-head.h"
#include "api/multipart.h"
#include "api/swerex/tty-text.h"
#include "base/strv.h"
#include "harness/test.h"

/* ---- multipart ---- */

struct form {
    struct buf seen; /* "<name|filename>content;" */
    size_t greed;    /* bytes taken at once */
};

static bool on_begin(void *owner, const struct multipart_part *part, struct error *err)
{
    struct form *f = owner;

    (void)err;
    return buf_printf(&f->seen, "<%s|%s>", part->name, part->filename ? part->filename : "-") >= 0;
}

static size_t on_data(void *owner, const uint8_t *data, size_t size)
{
    struct form *f = owner;
    size_t n = size < f->greed ? size : f->greed;

    return buf_append(&f->seen, data, n) < 0 ? 0 : n;
}

static bool on_end(void *owner, struct error *err)
{
    struct form *f = owner;

    (void)err;
    return buf_append_string(&f->seen, ";") >= 0;
}

static const struct multipart_ops form_ops = {on_begin, on_data, on_end};

/* Feeds the body in pieces of `piece` bytes; the result of the last call that failed, or 0. */
static int feed(struct form *f, const char *type, const char *body, size_t size, size_t piece,
                size_t greed)
{
    struct multipart m;
    struct error err = {0};
    int r = multipart_init(&m, type, &form_ops, f, &err);

    buf_init(&f->seen, 65536);
    f->greed = greed;
    for (size_t at = 0; r >= 0 && at < size;) {
        size_t n = size - at < piece ? size - at : piece;
        ssize_t used = multipart_feed(&m, (const uint8_t *)body + at, n, &err);

        r = used < 0 ? (int)used : 0;
        at += used > 0 ? (size_t)used : 0;
    }
    if (r >= 0)
        r = multipart_finish(&m, &err);
    multipart_done(&m);
    return r;
}

#define TYPE "multipart/form-data; boundary=\"x-y\""
#define FORM                                                                                       \
    "preamble\r\n--x-y\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a/b "          \
    "\\\"c\"\r\n"                                                                                  \
    "Content-Type: text/plain\r\n\r\none\r\n--x-\r\n-\r\r\ntwo\r\n--x-y\r\n"                       \
    "content-disposition: form-data; name=t\r\n\r\n\r\n--x-y--\r\nepilogue"

TEST(a_form_is_the_same_in_pieces_of_any_size)
{
    for (size_t piece = 1; piece < sizeof(FORM); piece++) {
        for (size_t greed = 1; greed <= 4; greed++) {
            struct form f;

            ASSERT_OK(feed(&f, TYPE, FORM, strlen(FORM), piece, greed));
            ASSERT_STREQ(buf_string(&f.seen), "<file|a/b \"c>one\r\n--x-\r\n-\r\r\ntwo;<t|->;");
            buf_done(&f.seen);
        }
    }
}

TEST(a_form_that_ends_early_is_an_error)
{
    for (size_t size = 0; size < strlen(FORM) - strlen("--\r\nepilogue"); size++) {
        struct form f;

        ASSERT_ERR(feed(&f, TYPE, FORM, size, 7, 3), EINVAL);
        buf_done(&f.seen);
    }
}

TEST(forms_without_a_boundary_are_refused)
{
    static const char *const types[] = {
        "text/plain", "multipart/form-data",
        "multipart/form-data; boundary=", "multipart/form-data; boundary=\"a\r\nb\""};
    struct multipart m;
    struct error err = {0};

    for (size_t i = 0; i < ARRAY_SIZE(types); i++)
        ASSERT_ERR(multipart_init(&m, types[i], &form_ops, NULL, &err), EINVAL);
}

TEST(headers_of_a_part_have_a_limit)
{
    struct buf body;
    struct form f;

    buf_init(&body, 1 << 20);
    ASSERT_OK(buf_append_string(&body, "--x-y\r\nX: "));
    for (unsigned i = 0; i < MULTIPART_HEADERS_MAX; i++)
        ASSERT_OK(buf_append_string(&body, "a"));
    ASSERT_ERR(feed(&f, TYPE, buf_string(&body), body.size, 1000, 100), E2BIG);
    buf_done(&f.seen);
    buf_done(&body);
}

/* ---- Connect ---- */

TEST(connect_messages)
{
    struct error err = {0};
    json_t *json = NULL;

    ASSERT_OK(connect_decode(NULL, "{\"a\":1}", 7, &json, &err));
    ASSERT_EQ(json_integer_value(json_object_get(json, "a")), 1);
    json_decref(json);
    ASSERT_OK(connect_decode_frame(NULL, "\0\0\0\0\2{}", 7, &json, &err));
    json_decref(json);
    ASSERT_OK(connect_decode(NULL, "", 0, &json, &err));
    json_decref(json);
    ASSERT_ERR(connect_decode_frame(NULL, "\0\0\0\0\3{}", 7, &json, &err), EINVAL);
    ASSERT_ERR(connect_decode_frame(NULL, "\1\0\0\0\2{}", 7, &json, &err), EINVAL);
    ASSERT_ERR(connect_decode_frame(NULL, "\0\0\0", 3, &json, &err), EINVAL);
    ASSERT_ERR(connect_decode(NULL, "[]", 2, &json, &err), EINVAL);
}

/* ---- lists ---- */

TEST(filters_of_a_list)
{
    char *const metadata[] = {(char[]){"owner=a b"}, (char[]){"k/\xc3\xb6=v=1&2"}, NULL};
    struct list_filter f;
    struct error err = {0};

    ASSERT_OK(list_filter_init(&f, NULL, NULL, &err));
    ASSERT_TRUE(list_filter_fits(&f, true, NULL) && list_filter_fits(&f, false, metadata));
    list_filter_done(&f);
    ASSERT_OK(list_filter_init(&f, "paused", "owner=a%2520b&k%252F%25C3%25B6=v%253D1%25262", &err));
    ASSERT_TRUE(list_filter_fits(&f, true, metadata));
    ASSERT_TRUE(!list_filter_fits(&f, false, metadata) && !list_filter_fits(&f, true, NULL));
    list_filter_done(&f);
    ASSERT_ERR(list_filter_init(&f, "running,asleep", NULL, &err), EINVAL);
    ASSERT_ERR(list_filter_init(&f, NULL, "nothing", &err), EINVAL);
}

/* ---- users ---- */

TEST(users_of_a_guest)
{
    static const char passwd[] = "root:x:0:0::/root:/bin/sh\nbad line\nweb:x:33:34:a:/var/www:\n"
                                 "odd:x:1:x::/:\nnohome:x:7:7:::";
    uint32_t uid, gid;
    char *home = NULL;

    ASSERT_OK(passwd_find(passwd, sizeof(passwd) - 1, "web", &uid, &gid, &home));
    ASSERT_TRUE(uid == 33 && gid == 34);
    ASSERT_STREQ(home, "/var/www");
    free(home);
    ASSERT_OK(passwd_find(passwd, sizeof(passwd) - 1, "nohome", &uid, &gid, &home));
    ASSERT_STREQ(home, "/");
    free(home);
    ASSERT_OK(passwd_find("", 0, "user", &uid, &gid, &home));
    ASSERT_EQ(uid, 1000);
    free(home);
    ASSERT_ERR(passwd_find(passwd, sizeof(passwd) - 1, "odd", &uid, &gid, &home), ENOENT);
    ASSERT_ERR(passwd_find(passwd, sizeof(passwd) - 1, "nobody", &uid, &gid, &home), ENOENT);
}

/* ---- answers of a guest's server ---- */

static int parse(const char *text, struct reply_head *h)
{
    static char copy[4096];
    struct error err = {0};

    (void)snprintf(copy, sizeof(copy), "%s", text);
    return reply_head_parse(copy, h, &err);
}

TEST(heads_of_answers)
{
    struct reply_head h;

    ASSERT_OK(parse("HTTP/1.1 201 Created\r\nContent-Type: a/b\r\nX-A:  b \r\n"
                    "Content-Length: 5\r\nConnection: close\r\n\r\n",
                    &h));
    ASSERT_TRUE(h.status == 201 && h.length == 5 && !h.chunked && h.n_headers == 1);
    ASSERT_STREQ(h.headers[0].value, "b");
    ASSERT_STREQ(h.type, "a/b");
    ASSERT_OK(parse("HTTP/1.0 200\r\nTransfer-Encoding: chunked\r\n\r\n", &h));
    ASSERT_TRUE(h.chunked && h.length == UINT64_MAX);
    ASSERT_ERR(parse("", &h), EPROTO);
    ASSERT_ERR(parse("HTTP/2 200\r\n\r\n", &h), EPROTO);
    ASSERT_ERR(parse("HTTP/1.1 200\r\nno colon\r\n\r\n", &h), EPROTO);
    ASSERT_ERR(parse("HTTP/1.1 200\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", &h), EPROTO);
    ASSERT_ERR(parse("HTTP/1.1 200\r\nTransfer-Encoding: gzip\r\n\r\n", &h), EPROTO);
}

TEST(chunks_in_pieces_of_any_size)
{
    static const char body[] = "3;x=y\r\nabc\r\n0A\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\n";

    for (size_t piece = 1; piece < sizeof(body); piece++) {
        struct unchunk u = {0};
        struct buf out;

        buf_init(&out, 100);
        for (size_t at = 0; at < sizeof(body) - 1 && u.at != UNCHUNK_DONE;) {
            size_t n = sizeof(body) - 1 - at < piece ? sizeof(body) - 1 - at : piece, size;
            const uint8_t *data;
            ssize_t used = unchunk(&u, (const uint8_t *)body + at, n, &data, &size);

            ASSERT_TRUE(used > 0);
            ASSERT_OK(buf_append(&out, data, size));
            at += (size_t)used;
        }
        ASSERT_EQ(u.at, UNCHUNK_DONE);
        ASSERT_STREQ(buf_string(&out), "abc0123456789");
        buf_done(&out);
    }
}

TEST(chunks_that_are_none)
{
    static const char *const bad[] = {"x\r\n", "\r\n", "1\r\nab", "fffffffffffffffff\r\n"};

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct unchunk u = {0};
        const uint8_t *data = (const uint8_t *)bad[i], *piece;
        size_t left = strlen(bad[i]), size;
        ssize_t used = 0;

        while (left > 0 && (used = unchunk(&u, data, left, &piece, &size)) > 0) {
            data += used;
            left -= (size_t)used;
        }
        ASSERT_ERR((int)used, EPROTO);
    }
}

/* ---- entries, terminals ---- */

TEST(permissions_as_go_prints_them)
{
    char text[16];
    struct file_info info = {.type = FILE_TYPE_REGULAR, .mode = 0644};

    entry_permissions(&info, text);
    ASSERT_STREQ(text, "-rw-r--r--");
    info = (struct file_info){.type = FILE_TYPE_DIRECTORY, .mode = 01777};
    entry_permissions(&info, text);
    ASSERT_STREQ(text, "dtrwxrwxrwx");
    info = (struct file_info){.type = FILE_TYPE_LINK, .mode = 0777};
    entry_permissions(&info, text);
    ASSERT_STREQ(text, "Lrwxrwxrwx");
}

TEST(text_of_a_terminal)
{
    static const struct {
        const char *raw, *text;
    } cases[] = {
        {"a\r\nb\r\n", "a\nb\n"},
        {"\033[31mred\033[0m", "red"},
        {"\033[?2004hx", "x"},
        {"a\xff"
         "b",
         "a\\xffb"},
        {"\033", "\033"},
        {"\xc3\xbc\r", "\xc3\xbc\r"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        _cleanup_free_ char *text = tty_text(cases[i].raw, strlen(cases[i].raw));

        ASSERT_STREQ(text, cases[i].text);
    }
    _cleanup_free_ char *repr = text_repr("it's\n\"");
    ASSERT_STREQ(repr, "'it\\'s\\n\"'");
}
