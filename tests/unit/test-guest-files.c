#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "guest-client.h"
#include "harness/test.h"

/* File operations, watch and dial through guest_serve(). */

static const struct guest_options options = {.thawed_from_start = true, .fake_identity = true};

static char *path_in(const char *name)
{
    static char text[8][512];
    static unsigned next;
    char *p = text[next++ % 8];

    (void)snprintf(p, sizeof(text[0]), "%s/%s", test_tmpdir(), name);
    return p;
}

static void put(const char *path, const char *content)
{
    ASSERT_OK(file_write_atomic(path, content, strlen(content), 0644, NULL));
}

static void assert_content(const char *path, const char *content)
{
    char *data;
    size_t size;

    ASSERT_OK(file_read(path, 1 << 20, &data, &size, NULL));
    ASSERT_STREQ(data, content);
    free(data);
}

/* Waits for the next reply of the operation. */
static Hearth__V1__Reply *next_reply(struct client *c, struct run *r)
{
    Hearth__V1__Reply *reply;

    for (;;) {
        reply = run_reply(r);
        if (reply)
            return reply;
        ASSERT_FALSE(r->closed || r->failed);
        client_step(c);
    }
}

static void expect(struct client *c, struct run *r, int reply_case)
{
    Hearth__V1__Reply *reply = next_reply(c, r);

    if ((int)reply->reply_case != reply_case && reply->reply_case == HEARTH__V1__REPLY__REPLY_ERROR)
        test_fail(__FILE__, __LINE__, "error: %s", reply->error->message);
    ASSERT_EQ(reply->reply_case, reply_case);
    hearth__v1__reply__free_unpacked(reply, NULL);
}

static void expect_errno(struct client *c, struct run *r, int errnum)
{
    Hearth__V1__Reply *reply = next_reply(c, r);

    ASSERT_EQ(reply->reply_case, HEARTH__V1__REPLY__REPLY_ERROR);
    ASSERT_EQ(reply->error->errnum, errnum);
    hearth__v1__reply__free_unpacked(reply, NULL);
    CLIENT_WAIT(c, r->closed);
    ASSERT_EQ(r->status, 1);
}

static void expect_ok(struct client *c, struct run *r)
{
    expect(c, r, HEARTH__V1__REPLY__REPLY_OK);
    CLIENT_WAIT(c, r->closed);
    ASSERT_EQ(r->status, 0);
}

#define OP(kind, field, type)                                                                      \
    static struct run *op_##field(struct client *c, type m)                                        \
    {                                                                                              \
        Hearth__V1__FileOp op = HEARTH__V1__FILE_OP__INIT;                                         \
                                                                                                   \
        op.op_case = HEARTH__V1__FILE_OP__OP_##kind;                                               \
        op.field = &m;                                                                             \
        return client_file(c, "", &op);                                                            \
    }
OP(STAT, stat, Hearth__V1__FileStat)
OP(LIST, list, Hearth__V1__FileList)
OP(MKDIR, mkdir, Hearth__V1__FileMkdir)
OP(MOVE, move, Hearth__V1__FileMove)
OP(REMOVE, remove, Hearth__V1__FileRemove)
OP(READ, read, Hearth__V1__FileRead)
OP(WRITE, write, Hearth__V1__FileWrite)
OP(MKFIFO, mkfifo, Hearth__V1__FileMkfifo)
OP(SYMLINK, symlink, Hearth__V1__FileSymlink)
OP(SET_ATTR, set_attr, Hearth__V1__FileSetAttr)
OP(WATCH, watch, Hearth__V1__FileWatch)

TEST(stat_tells_what_is_there)
{
    Hearth__V1__FileStat m = HEARTH__V1__FILE_STAT__INIT;
    Hearth__V1__Reply *reply;
    struct client c;
    struct run *r;

    put(path_in("f"), "12345");
    ASSERT_EQ(symlink("f", path_in("l")), 0);
    client_start(&c, &options);
    m.path = bytes_of(path_in("l"));
    r = op_stat(&c, m);
    reply = next_reply(&c, r);
    ASSERT_EQ(reply->reply_case, HEARTH__V1__REPLY__REPLY_INFO);
    ASSERT_EQ(reply->info->type, HEARTH__V1__FILE_TYPE__FILE_TYPE_SYMLINK);
    ASSERT_EQ(reply->info->symlink_target.len, 1);
    hearth__v1__reply__free_unpacked(reply, NULL);
    CLIENT_WAIT(&c, r->closed);
    /* Streams that the operation has no content for do not exist. */
    ASSERT_FALSE(r->present[0] || r->present[1]);
    m.follow = true;
    r = op_stat(&c, m);
    reply = next_reply(&c, r);
    ASSERT_EQ(reply->info->type, HEARTH__V1__FILE_TYPE__FILE_TYPE_FILE);
    ASSERT_EQ(reply->info->size, 5);
    ASSERT_EQ(reply->info->mode, 0644);
    hearth__v1__reply__free_unpacked(reply, NULL);
    m.path = bytes_of(path_in("missing"));
    expect_errno(&c, op_stat(&c, m), ENOENT);
    m.path = bytes_of("relative");
    expect_errno(&c, op_stat(&c, m), EINVAL);
    m.path = bytes_of("");
    expect_errno(&c, op_stat(&c, m), EINVAL);
    client_stop(&c);
}

TEST(list_goes_as_deep_as_asked)
{
    Hearth__V1__FileList m = HEARTH__V1__FILE_LIST__INIT;
    struct client c;
    struct run *r;

    ASSERT_OK(dir_create(path_in("deep/a/b/c"), 0755, NULL));
    for (int i = 0; i < 500; i++) {
        char name[64];

        (void)snprintf(name, sizeof(name), "deep/a/file-%d", i);
        put(path_in(name), "");
    }
    client_start(&c, &options);
    m.path = bytes_of(path_in("deep"));
    for (uint32_t depth = 0; depth < 5; depth++) {
        static const size_t expected[] = {1, 1, 502, 503, 503};
        size_t count = 0;

        m.depth = depth;
        r = op_list(&c, m);
        for (;;) {
            Hearth__V1__Reply *reply = next_reply(&c, r);
            bool last = reply->reply_case == HEARTH__V1__REPLY__REPLY_OK;

            if (!last) {
                ASSERT_EQ(reply->reply_case, HEARTH__V1__REPLY__REPLY_ENTRIES);
                count += reply->entries->n_entries;
                ASSERT_TRUE(reply->entries->entries[0]->path.data[0] != '/');
            }
            hearth__v1__reply__free_unpacked(reply, NULL);
            if (last)
                break;
        }
        ASSERT_EQ(count, expected[depth]);
    }
    m.path = bytes_of("/etc/passwd");
    expect_errno(&c, op_list(&c, m), ENOTDIR);
    client_stop(&c);
}

TEST(directories_come_and_go)
{
    Hearth__V1__FileMkdir make = HEARTH__V1__FILE_MKDIR__INIT;
    Hearth__V1__FileMove move = HEARTH__V1__FILE_MOVE__INIT;
    Hearth__V1__FileRemove rm = HEARTH__V1__FILE_REMOVE__INIT;
    struct client c;

    client_start(&c, &options);
    make.path = bytes_of(path_in("d/e/f"));
    expect_errno(&c, op_mkdir(&c, make), ENOENT);
    make.parents = true;
    make.mode = 0700;
    expect_ok(&c, op_mkdir(&c, make));
    expect_ok(&c, op_mkdir(&c, make));
    make.parents = false;
    expect_errno(&c, op_mkdir(&c, make), EEXIST);
    put(path_in("d/x"), "x");
    put(path_in("d/y"), "y");
    ASSERT_EQ(symlink("/etc", path_in("d/link")), 0);
    move.from = bytes_of(path_in("d/x"));
    move.to = bytes_of(path_in("d/y"));
    move.no_replace = true;
    expect_errno(&c, op_move(&c, move), EEXIST);
    move.no_replace = false;
    expect_ok(&c, op_move(&c, move));
    assert_content(path_in("d/y"), "x");
    rm.path = bytes_of(path_in("d"));
    expect_errno(&c, op_remove(&c, rm), ENOTEMPTY);
    rm.recursive = true;
    expect_ok(&c, op_remove(&c, rm));
    ASSERT_FALSE(file_exists(path_in("d")));
    ASSERT_TRUE(file_exists("/etc/passwd"));
    expect_errno(&c, op_remove(&c, rm), ENOENT);
    client_stop(&c);
}

TEST(content_is_read_whole_and_in_parts)
{
    Hearth__V1__FileRead m = HEARTH__V1__FILE_READ__INIT;
    size_t size = 1500000;
    char *data = malloc(size);
    struct client c;
    struct run *r;

    ASSERT_TRUE(data != NULL);
    for (size_t i = 0; i < size; i++)
        data[i] = (char)(i * 13 + i / 255);
    ASSERT_OK(file_write_atomic(path_in("big"), data, size, 0644, NULL));
    client_start(&c, &options);
    m.path = bytes_of(path_in("big"));
    r = op_read(&c, m);
    expect(&c, r, HEARTH__V1__REPLY__REPLY_READY);
    CLIENT_WAIT(&c, r->closed);
    ASSERT_EQ(r->out[1].size, size);
    ASSERT_MEMEQ(buf_data(&r->out[1]), data, size);
    m.offset = 1000;
    m.length = 70000;
    r = op_read(&c, m);
    CLIENT_WAIT(&c, r->closed);
    ASSERT_EQ(r->out[1].size, 70000);
    ASSERT_MEMEQ(buf_data(&r->out[1]), data + 1000, 70000);
    m.path = bytes_of("/etc");
    expect_errno(&c, op_read(&c, m), EISDIR);
    free(data);
    client_stop(&c);
}

static size_t count_entries(const char *path)
{
    DIR *d = opendir(path);
    size_t n = 0;

    ASSERT_TRUE(d != NULL);
    while (readdir(d))
        n++;
    (void)closedir(d);
    return n - 2;
}

TEST(content_is_written)
{
    Hearth__V1__FileWrite m = HEARTH__V1__FILE_WRITE__INIT;
    struct client c;
    struct run *r;
    struct stat st;

    client_start(&c, &options);
    m.path = bytes_of(path_in("w/new/file"));
    expect_errno(&c, op_write(&c, m), ENOENT);
    m.parents = true;
    m.mode = 0751;
    r = op_write(&c, m);
    expect(&c, r, HEARTH__V1__REPLY__REPLY_READY);
    run_write(&c, r, 0, "hello ", 6);
    run_close(&c, r, 0);
    expect(&c, r, HEARTH__V1__REPLY__REPLY_INFO);
    CLIENT_WAIT(&c, r->closed);
    assert_content(path_in("w/new/file"), "hello ");
    ASSERT_EQ(stat(path_in("w/new/file"), &st), 0);
    ASSERT_EQ(st.st_mode & 07777, 0751);
    m.append = true;
    m.mode = 0;
    r = op_write(&c, m);
    run_write(&c, r, 0, "world", 5);
    run_close(&c, r, 0);
    CLIENT_WAIT(&c, r->closed);
    assert_content(path_in("w/new/file"), "hello world");
    m.append = false;
    m.exclusive = true;
    expect_errno(&c, op_write(&c, m), EEXIST);
    m.atomic = true;
    expect_errno(&c, op_write(&c, m), EEXIST);
    m.exclusive = false;
    r = op_write(&c, m);
    run_write(&c, r, 0, "atomic", 6);
    assert_content(path_in("w/new/file"), "hello world");
    run_close(&c, r, 0);
    CLIENT_WAIT(&c, r->closed);
    assert_content(path_in("w/new/file"), "atomic");
    ASSERT_EQ(stat(path_in("w/new/file"), &st), 0);
    ASSERT_EQ(st.st_mode & 07777, 0751);
    ASSERT_EQ(count_entries(path_in("w/new")), 1);
    client_stop(&c);
}

TEST(a_write_broken_off_leaves_the_old_file_and_no_litter)
{
    Hearth__V1__FileWrite m = HEARTH__V1__FILE_WRITE__INIT;
    struct client c;
    struct run *r;

    ASSERT_OK(dir_create(path_in("b"), 0755, NULL));
    put(path_in("b/file"), "old");
    client_start(&c, &options);
    m.path = bytes_of(path_in("b/file"));
    m.atomic = true;
    r = op_write(&c, m);
    expect(&c, r, HEARTH__V1__REPLY__REPLY_READY);
    run_write(&c, r, 0, "half", 4);
    ASSERT_EQ(count_entries(path_in("b")), 2);
    run_signal(&c, r, SIGKILL, HEARTH__V1__SIGNAL__SCOPE__TREE);
    CLIENT_WAIT(&c, r->closed);
    ASSERT_EQ(count_entries(path_in("b")), 1);
    assert_content(path_in("b/file"), "old");
    /* The host goes away in the middle. */
    r = op_write(&c, m);
    expect(&c, r, HEARTH__V1__REPLY__REPLY_READY);
    run_write(&c, r, 0, "half", 4);
    client_hello(&c);
    for (int i = 0; i < 500 && count_entries(path_in("b")) != 1; i++)
        (void)client_try(&c, 10);
    ASSERT_EQ(count_entries(path_in("b")), 1);
    assert_content(path_in("b/file"), "old");
    client_stop(&c);
}

TEST(links_fifos_and_attributes)
{
    Hearth__V1__FileSymlink link = HEARTH__V1__FILE_SYMLINK__INIT;
    Hearth__V1__FileMkfifo fifo = HEARTH__V1__FILE_MKFIFO__INIT;
    Hearth__V1__FileSetAttr attr = HEARTH__V1__FILE_SET_ATTR__INIT;
    struct client c;
    struct stat st;

    client_start(&c, &options);
    link.target = bytes_of("any where");
    link.path = bytes_of(path_in("sl"));
    expect_ok(&c, op_symlink(&c, link));
    expect_errno(&c, op_symlink(&c, link), EEXIST);
    fifo.path = bytes_of(path_in("ff"));
    expect_ok(&c, op_mkfifo(&c, fifo));
    ASSERT_EQ(stat(path_in("ff"), &st), 0);
    ASSERT_TRUE(S_ISFIFO(st.st_mode));
    attr.path = bytes_of(path_in("ff"));
    attr.set_mode = attr.set_mtime = true;
    attr.mode = 0600;
    attr.mtime_nsec = 1000000000ull * 12345 + 6;
    expect_ok(&c, op_set_attr(&c, attr));
    ASSERT_EQ(stat(path_in("ff"), &st), 0);
    ASSERT_EQ(st.st_mode & 07777, 0600);
    ASSERT_EQ(st.st_mtim.tv_sec, 12345);
    client_stop(&c);
}

static void expect_event(struct client *c, struct run *r, int kind, const char *path)
{
    for (;;) {
        Hearth__V1__Reply *reply = next_reply(c, r);
        bool hit;

        ASSERT_EQ(reply->reply_case, HEARTH__V1__REPLY__REPLY_EVENT);
        hit = (int)reply->event->kind == kind && reply->event->path.len == strlen(path) &&
              memcmp(reply->event->path.data, path, strlen(path)) == 0;
        hearth__v1__reply__free_unpacked(reply, NULL);
        if (hit)
            return;
    }
}

TEST(watch_tells_of_changes_below)
{
    Hearth__V1__FileWatch m = HEARTH__V1__FILE_WATCH__INIT;
    struct client c;
    struct run *r;

    ASSERT_OK(dir_create(path_in("watched/sub"), 0755, NULL));
    client_start(&c, &options);
    m.path = bytes_of(path_in("watched"));
    m.recursive = true;
    r = op_watch(&c, m);
    expect(&c, r, HEARTH__V1__REPLY__REPLY_READY);
    put(path_in("watched/sub/f"), "1");
    expect_event(&c, r, HEARTH__V1__FILE_EVENT__KIND__CREATE, "sub/f");
    ASSERT_OK(dir_create(path_in("watched/new/er"), 0755, NULL));
    expect_event(&c, r, HEARTH__V1__FILE_EVENT__KIND__CREATE, "new/er");
    ASSERT_EQ(chmod(path_in("watched/sub/f"), 0600), 0);
    expect_event(&c, r, HEARTH__V1__FILE_EVENT__KIND__CHMOD, "sub/f");
    ASSERT_EQ(rename(path_in("watched/sub/f"), path_in("watched/new/g")), 0);
    expect_event(&c, r, HEARTH__V1__FILE_EVENT__KIND__RENAME, "sub/f");
    expect_event(&c, r, HEARTH__V1__FILE_EVENT__KIND__CREATE, "new/g");
    ASSERT_EQ(unlink(path_in("watched/new/g")), 0);
    expect_event(&c, r, HEARTH__V1__FILE_EVENT__KIND__REMOVE, "new/g");
    run_signal(&c, r, SIGKILL, HEARTH__V1__SIGNAL__SCOPE__TREE);
    CLIENT_WAIT(&c, r->closed);
    m.path = bytes_of(path_in("nowhere"));
    expect_errno(&c, op_watch(&c, m), ENOENT);
    client_stop(&c);
}

static struct run *dial(struct client *c, const char *host, uint32_t port)
{
    Hearth__V1__Dial m = HEARTH__V1__DIAL__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;
    struct run *r;

    m.host = (char *)(uintptr_t)host;
    m.port = port;
    request.op_case = HEARTH__V1__REQUEST__OP_DIAL;
    request.dial = &m;
    r = client_request(c, &request);
    r->window = 65536;
    run_window(c, r, 1, 65536);
    run_window(c, r, 3, 65536);
    return r;
}

TEST(dial_carries_bytes_both_ways)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(a);
    int listener, peer;
    struct client c;
    struct run *r;
    char text[16] = "";

    /* First, so that the server does not inherit the listener. */
    client_start(&c, &options);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(bind(listener, (struct sockaddr *)&a, sizeof(a)), 0);
    ASSERT_EQ(listen(listener, 1), 0);
    ASSERT_EQ(getsockname(listener, (struct sockaddr *)&a, &size), 0);
    r = dial(&c, "", ntohs(a.sin_port));
    peer = accept(listener, NULL, NULL);
    ASSERT_TRUE(peer >= 0);
    expect(&c, r, HEARTH__V1__REPLY__REPLY_READY);
    run_write(&c, r, 0, "ping", 4);
    ASSERT_EQ(recv(peer, text, 4, MSG_WAITALL), 4);
    ASSERT_STREQ(text, "ping");
    ASSERT_EQ(write(peer, "pong", 4), 4);
    CLIENT_WAIT(&c, r->out[1].size == 4);
    run_close(&c, r, 0);
    ASSERT_EQ(recv(peer, text, 1, 0), 0);
    ASSERT_EQ(write(peer, "rest", 4), 4);
    (void)close(peer);
    expect_ok(&c, r);
    ASSERT_STREQ(buf_string(&r->out[1]), "pongrest");
    (void)close(listener);
    expect_errno(&c, dial(&c, "127.0.0.1", ntohs(a.sin_port)), ECONNREFUSED);
    expect_errno(&c, dial(&c, "no such host", 80), EINVAL);
    expect_errno(&c, dial(&c, "", 0), EINVAL);
    client_stop(&c);
}
