#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "harness/test.h"
#include "host-guest.h"
#include "host/files.h"

/* The console against the real server of the guest: files, watches and connections. */

struct result {
    unsigned calls, entries;
    bool done;
    struct error err;
    struct file_info info; /* strings are not kept */
    char link_target[64];
    char names[512];
    enum file_event_kind kinds[16];
    struct file_call *call; /* owned */
};

static void on_done(const struct error *err, void *userdata)
{
    struct result *r = userdata;

    r->done = true;
    if (err)
        r->err = *err;
}

static void on_info(const struct file_info *info, const struct error *err, void *userdata)
{
    struct result *r = userdata;

    if (info) {
        r->info = *info;
        (void)snprintf(r->link_target, sizeof(r->link_target), "%s",
                       info->link_target ? info->link_target : "");
    }
    on_done(err, userdata);
}

static void on_list(const struct file_info *infos, size_t count, bool last, const struct error *err,
                    void *userdata)
{
    struct result *r = userdata;

    for (size_t i = 0; i < count; i++) {
        size_t used = strlen(r->names);

        (void)snprintf(r->names + used, sizeof(r->names) - used, "[%s %s]", infos[i].path,
                       file_type_name(infos[i].type));
        r->entries++;
    }
    if (last)
        on_done(err, userdata);
}

static void on_watch(enum file_event_kind kind, const char *path, const struct error *err,
                     void *userdata)
{
    struct result *r = userdata;
    size_t used = strlen(r->names);

    if (r->calls < ARRAY_SIZE(r->kinds))
        r->kinds[r->calls] = kind;
    r->calls++;
    (void)snprintf(r->names + used, sizeof(r->names) - used, "[%d %s]", (int)kind,
                   path ? path : "-");
    if (err)
        on_done(err, userdata);
}

/* Starts, waits, frees; the code that came back. */
#define CALL(g, r, start)                                                                          \
    ({                                                                                             \
        struct error call_err = {0};                                                               \
        (r) = (struct result){0};                                                                  \
        ASSERT_OK(start);                                                                          \
        GUEST_WAIT(g, (r).done);                                                                   \
        (r).call = file_call_free((r).call);                                                       \
        (r).err.code;                                                                              \
    })

static const char *at(const char *name)
{
    static char path[4][256];
    static unsigned next;

    next = (next + 1) % 4;
    (void)snprintf(path[next], sizeof(path[next]), "%s/%s", test_tmpdir(), name);
    return path[next];
}

TEST(file_operations_do_what_they_say)
{
    struct file_attr attr = {.set_mode = true,
                             .mode = 0640,
                             .set_mtime = true,
                             .mtime_nsec = UINT64_C(1500000000123456789)};
    struct guest g;
    struct result r;
    struct console *c;

    guest_start(&g, true);
    c = g.console;
    ASSERT_EQ(CALL(&g, r,
                   file_mkdir(c, NULL, at("ops/sub"), true, 0755, on_done, &r, &r.call, &call_err)),
              ERR_NONE);
    ASSERT_EQ(
        CALL(&g, r,
             file_mkdir(c, NULL, at("ops/sub"), false, 0755, on_done, &r, &r.call, &call_err)),
        ERR_ALREADY_EXISTS);
    ASSERT_EQ(
        CALL(&g, r, file_stat(c, NULL, at("ops/none"), true, on_info, &r, &r.call, &call_err)),
        ERR_PATH_NOT_FOUND);
    ASSERT_TRUE(strstr(r.err.text, "ops/none"));
    ASSERT_EQ(
        CALL(&g, r, file_symlink(c, NULL, "sub", at("ops/link"), on_done, &r, &r.call, &call_err)),
        ERR_NONE);
    ASSERT_EQ(
        CALL(&g, r, file_stat(c, NULL, at("ops/link"), false, on_info, &r, &r.call, &call_err)),
        ERR_NONE);
    ASSERT_EQ(r.info.type, FILE_TYPE_LINK);
    ASSERT_STREQ(r.link_target, "sub");
    ASSERT_EQ(
        CALL(&g, r, file_stat(c, NULL, at("ops/link"), true, on_info, &r, &r.call, &call_err)),
        ERR_NONE);
    ASSERT_EQ(r.info.type, FILE_TYPE_DIRECTORY);
    ASSERT_EQ(
        CALL(&g, r, file_mkfifo(c, NULL, at("ops/fifo"), 0600, on_done, &r, &r.call, &call_err)),
        ERR_NONE);
    ASSERT_EQ(
        CALL(&g, r, file_set_attr(c, NULL, at("ops/fifo"), &attr, on_done, &r, &r.call, &call_err)),
        ERR_NONE);
    ASSERT_EQ(
        CALL(&g, r, file_stat(c, NULL, at("ops/fifo"), true, on_info, &r, &r.call, &call_err)),
        ERR_NONE);
    ASSERT_EQ(r.info.type, FILE_TYPE_PIPE);
    ASSERT_EQ(r.info.mode, 0640);
    ASSERT_EQ(r.info.mtime_nsec, UINT64_C(1500000000123456789));
    ASSERT_EQ(CALL(&g, r,
                   file_move(c, NULL, at("ops/fifo"), at("ops/sub/moved"), false, on_done, &r,
                             &r.call, &call_err)),
              ERR_NONE);
    ASSERT_EQ(CALL(&g, r, file_list(c, NULL, at("ops"), 2, on_list, &r, &r.call, &call_err)),
              ERR_NONE);
    ASSERT_EQ(r.entries, 3);
    ASSERT_TRUE(strstr(r.names, "[sub directory]"));
    ASSERT_TRUE(strstr(r.names, "[sub/moved fifo]"));
    ASSERT_TRUE(strstr(r.names, "[link symlink]"));
    ASSERT_EQ(CALL(&g, r, file_remove(c, NULL, at("ops"), false, on_done, &r, &r.call, &call_err)),
              ERR_CONFLICT);
    ASSERT_EQ(CALL(&g, r, file_remove(c, NULL, at("ops"), true, on_done, &r, &r.call, &call_err)),
              ERR_NONE);
    ASSERT_FALSE(file_exists(at("ops")));
    ASSERT_EQ(CALL(&g, r, file_list(c, NULL, at("ops"), 1, on_list, &r, &r.call, &call_err)),
              ERR_PATH_NOT_FOUND);
    ASSERT_EQ(CALL(&g, r, file_list(c, "nobody-such", "/", 1, on_list, &r, &r.call, &call_err)),
              ERR_USER_NOT_FOUND);
    guest_stop(&g);
}

TEST(thousands_of_entries_are_listed)
{
    struct guest g;
    struct result r;
    char name[64];

    ASSERT_OK(mkdir(at("many"), 0755));
    for (int i = 0; i < 5000; i++) {
        (void)snprintf(name, sizeof(name), "many/a-file-with-some-name-%d", i);
        ASSERT_OK(fd_close(open(at(name), O_CREAT | O_WRONLY | O_CLOEXEC, 0600)) == -EBADF ? 0
                                                                                           : -1);
    }
    guest_start(&g, true);
    ASSERT_EQ(
        CALL(&g, r, file_list(g.console, NULL, at("many"), 1, on_list, &r, &r.call, &call_err)),
        ERR_NONE);
    ASSERT_EQ(r.entries, 5000);
    guest_stop(&g);
}

TEST(watch_tells_what_happens_until_it_is_freed)
{
    struct error err = {0};
    struct result r = {0};
    struct guest g;
    int fd;

    ASSERT_OK(mkdir(at("watched"), 0755));
    guest_start(&g, true);
    ASSERT_OK(file_watch(g.console, NULL, at("watched"), true, on_watch, &r, &r.call, &err));
    GUEST_WAIT(&g, r.calls == 1);
    ASSERT_EQ(r.kinds[0], 0);
    fd = open(at("watched/x"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    ASSERT_OK(fd);
    ASSERT_EQ(write(fd, "1", 1), 1);
    fd_close(fd);
    ASSERT_OK(unlink(at("watched/x")));
    GUEST_WAIT(&g, strstr(r.names, "[1 x]") && strstr(r.names, "[3 x]"));
    r.call = file_call_free(r.call);
    /* It ends in the guest too: its channel is closed, and nothing breaks. */
    r = (struct result){0};
    ASSERT_EQ(CALL(&g, r, file_stat(g.console, NULL, "/", true, on_info, &r, &r.call, &call_err)),
              ERR_NONE);
    guest_stop(&g);
}

/* ---- content ---- */

struct flow {
    struct transfer *t; /* owned */
    unsigned ready, done;
    uint64_t size;
    struct buf got;
    struct error err;
};

static void flow_ready(struct transfer *t, uint64_t size, void *userdata)
{
    struct flow *f = userdata;

    (void)t;
    f->ready++;
    f->size = size;
}

static void flow_data(struct transfer *t, const uint8_t *data, size_t size, void *userdata)
{
    struct flow *f = userdata;

    ASSERT_OK(buf_append(&f->got, data, size));
    transfer_consumed(t, size);
}

static void flow_done(struct transfer *t, const struct error *err, void *userdata)
{
    struct flow *f = userdata;

    (void)t;
    f->done++;
    if (err)
        f->err = *err;
}

static const struct transfer_callbacks flow_callbacks = {
    .on_ready = flow_ready,
    .on_data = flow_data,
    .on_done = flow_done,
};

static void flow_init(struct flow *f)
{
    *f = (struct flow){0};
    buf_init(&f->got, 16u << 20);
}

static void flow_end(struct flow *f)
{
    f->t = transfer_free(f->t);
    buf_done(&f->got);
}

static void write_all(struct guest *g, struct flow *f, const uint8_t *data, size_t size)
{
    while (size > 0 && !f->done) {
        size_t n;

        GUEST_WAIT(g, transfer_writable(f->t) > 0 || f->done);
        n = transfer_writable(f->t);
        n = n < size ? n : size;
        if (n > 0)
            ASSERT_OK(transfer_write(f->t, data, n));
        data += n;
        size -= n;
    }
}

TEST(content_goes_there_and_back)
{
    enum { SIZE = 3 << 20 };
    struct file_write_options options = {.mode = 0600, .parents = true, .atomic = true};
    _cleanup_free_ uint8_t *data = malloc(SIZE);
    struct error err = {0};
    struct guest g;
    struct flow f;

    for (size_t i = 0; i < SIZE; i++)
        data[i] = (uint8_t)(i * 2654435761u >> 11);
    guest_start(&g, true);
    flow_init(&f);
    ASSERT_OK(file_write_start(g.console, NULL, at("deep/er/file"), &options, &flow_callbacks, &f,
                               &f.t, &err));
    write_all(&g, &f, data, SIZE);
    ASSERT_OK(transfer_finish(f.t));
    GUEST_WAIT(&g, f.done);
    ASSERT_EQ(f.err.errnum, 0);
    flow_end(&f);

    flow_init(&f);
    ASSERT_OK(file_read_start(g.console, NULL, at("deep/er/file"), 0, 0, &flow_callbacks, &f, &f.t,
                              &err));
    GUEST_WAIT(&g, f.done);
    ASSERT_EQ(f.err.errnum, 0);
    ASSERT_EQ(f.size, SIZE);
    ASSERT_EQ(f.got.size, SIZE);
    ASSERT_MEMEQ(buf_data(&f.got), data, SIZE);
    flow_end(&f);

    flow_init(&f);
    ASSERT_OK(file_read_start(g.console, NULL, at("deep/er/file"), 1000, 10, &flow_callbacks, &f,
                              &f.t, &err));
    GUEST_WAIT(&g, f.done);
    ASSERT_EQ(f.got.size, 10);
    ASSERT_MEMEQ(buf_data(&f.got), data + 1000, 10);
    flow_end(&f);

    flow_init(&f);
    ASSERT_OK(file_read_start(g.console, NULL, at("deep"), 0, 0, &flow_callbacks, &f, &f.t, &err));
    GUEST_WAIT(&g, f.done);
    ASSERT_EQ(f.err.code, ERR_PATH_IS_DIRECTORY);
    flow_end(&f);
    guest_stop(&g);
}

TEST(broken_off_atomic_write_leaves_the_old_file)
{
    struct file_write_options options = {.atomic = true};
    static const uint8_t data[100000];
    struct error err = {0};
    struct guest g;
    struct result r;
    struct flow f;
    char *old;
    size_t size;

    ASSERT_OK(mkdir(at("atomic"), 0755));
    ASSERT_OK(file_write_atomic(at("atomic/f"), "old", 3, 0600, &err));
    guest_start(&g, true);
    flow_init(&f);
    ASSERT_OK(file_write_start(g.console, NULL, at("atomic/f"), &options, &flow_callbacks, &f, &f.t,
                               &err));
    write_all(&g, &f, data, sizeof(data));
    GUEST_WAIT(&g, f.ready);
    flow_end(&f); /* not finished */
    /* Nothing is left beside it, as soon as the operation is gone. */
    do {
        ASSERT_EQ(
            CALL(&g, r,
                 file_list(g.console, NULL, at("atomic"), 1, on_list, &r, &r.call, &call_err)),
            ERR_NONE);
    } while (r.entries > 1);
    ASSERT_OK(file_read(at("atomic/f"), 100, &old, &size, &err));
    ASSERT_STREQ(old, "old");
    free(old);
    guest_stop(&g);
}

TEST(broken_off_read_leaves_the_console_whole)
{
    struct error err = {0};
    struct guest g;
    struct result r;

    guest_start(&g, true);
    for (int i = 0; i < 20; i++) {
        struct flow f;

        flow_init(&f);
        ASSERT_OK(
            file_read_start(g.console, NULL, "/dev/zero", 0, 0, &flow_callbacks, &f, &f.t, &err));
        GUEST_WAIT(&g, f.got.size > (size_t)i * 20000 || f.done);
        flow_end(&f);
    }
    ASSERT_EQ(CALL(&g, r, file_stat(g.console, NULL, "/", true, on_info, &r, &r.call, &call_err)),
              ERR_NONE);
    guest_stop(&g);
}

TEST(dial_reaches_a_port_of_the_guest)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int listener, fd;
    struct error err = {0};
    char text[16] = "";
    struct guest g;
    struct flow f;

    guest_start(&g, true); /* first: its process must not hold the socket too */
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_OK(listener);
    ASSERT_OK(bind(listener, (struct sockaddr *)&address, sizeof(address)));
    ASSERT_OK(listen(listener, 1));
    ASSERT_OK(getsockname(listener, (struct sockaddr *)&address, &length));
    flow_init(&f);
    ASSERT_OK(dial_start(g.console, NULL, ntohs(address.sin_port), 1000, &flow_callbacks, &f, &f.t,
                         &err));
    GUEST_WAIT(&g, f.ready);
    fd = accept(listener, NULL, NULL);
    ASSERT_OK(fd);
    write_all(&g, &f, (const uint8_t *)"ping", 4);
    ASSERT_EQ(fd_read_full(fd, text, 4), 4);
    ASSERT_STREQ(text, "ping");
    ASSERT_OK(fd_write_full(fd, "pong!", 5));
    GUEST_WAIT(&g, f.got.size == 5);
    /* Half closed: the other direction goes on. */
    ASSERT_OK(transfer_finish(f.t));
    while (read(fd, text, sizeof(text)) > 0)
        ;
    ASSERT_OK(fd_write_full(fd, "late", 4));
    fd_close(fd);
    GUEST_WAIT(&g, f.done);
    ASSERT_EQ(f.err.errnum, 0);
    ASSERT_STREQ(buf_string(&f.got), "pong!late");
    flow_end(&f);

    fd_close(listener);
    flow_init(&f);
    ASSERT_OK(dial_start(g.console, NULL, ntohs(address.sin_port), 1000, &flow_callbacks, &f, &f.t,
                         &err));
    GUEST_WAIT(&g, f.done);
    ASSERT_EQ(f.err.code, ERR_UNAVAILABLE);
    flow_end(&f);
    guest_stop(&g);
}
