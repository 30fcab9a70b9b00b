#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/fd.h"
#include "harness/test.h"
#include "host/files.h"
#include "host-peer.h"
#include "protocol/frame.h"

#define BYTES_MAX (4u << 20)

struct seen {
    unsigned calls, batches, entries;
    bool done;
    struct error err;
    struct file_info info; /* strings are not kept */
    char path[64];
    enum file_event_kind kinds[8];
    struct file_call *call;       /* owned */
    struct file_call **free_call; /* in the next callback */
    struct console **free_console;
};

static void destroy(struct seen *s)
{
    if (s->free_call)
        *s->free_call = file_call_free(*s->free_call);
    if (s->free_console)
        *s->free_console = console_free(*s->free_console);
    s->free_call = NULL;
    s->free_console = NULL;
}

static void on_done(const struct error *err, void *userdata)
{
    struct seen *s = userdata;

    s->calls++;
    s->done = true;
    if (err)
        s->err = *err;
    destroy(s);
}

static void on_info(const struct file_info *info, const struct error *err, void *userdata)
{
    struct seen *s = userdata;

    s->calls++;
    s->done = true;
    if (err)
        s->err = *err;
    if (info) {
        s->info = *info;
        (void)snprintf(s->path, sizeof(s->path), "%s>%s", info->path,
                       info->link_target ? info->link_target : "");
    }
    destroy(s);
}

static void on_list(const struct file_info *infos, size_t count, bool last, const struct error *err,
                    void *userdata)
{
    struct seen *s = userdata;

    s->calls++;
    s->batches += count > 0;
    s->entries += (unsigned)count;
    s->done = last;
    if (err)
        s->err = *err;
    if (count > 0)
        (void)snprintf(s->path, sizeof(s->path), "%s", infos[count - 1].path);
    destroy(s);
}

static void on_watch(enum file_event_kind kind, const char *path, const struct error *err,
                     void *userdata)
{
    struct seen *s = userdata;

    s->kinds[s->calls++ % 8] = kind;
    if (path)
        (void)snprintf(s->path, sizeof(s->path), "%s", path);
    if (err) {
        s->err = *err;
        s->done = true;
    }
    destroy(s);
}

/* The request and the windows that come with it. */
static uint32_t expect_file(struct peer *p, int op_case, bool content)
{
    uint32_t ch;
    Hearth__V1__Request *request = peer_request(p, &ch);

    ASSERT_EQ(request->op_case, HEARTH__V1__REQUEST__OP_FILE);
    ASSERT_EQ(request->file->op_case, op_case);
    hearth__v1__request__free_unpacked(request, NULL);
    ASSERT_EQ(peer_expect(p, HEARTH__V1__REQUEST__OP_WINDOW), ch);
    if (content)
        ASSERT_EQ(peer_expect(p, HEARTH__V1__REQUEST__OP_WINDOW), ch);
    return ch;
}

static void put_ok(struct buf *b, uint32_t ch, uint64_t *at)
{
    Hearth__V1__Reply reply = HEARTH__V1__REPLY__INIT;
    Hearth__V1__Done done = HEARTH__V1__DONE__INIT;

    reply.reply_case = HEARTH__V1__REPLY__REPLY_OK;
    reply.ok = &done;
    put_reply(b, ch, at, &reply);
}

static void put_ready(struct buf *b, uint32_t ch, uint64_t *at, uint64_t size)
{
    Hearth__V1__Reply reply = HEARTH__V1__REPLY__INIT;
    Hearth__V1__Ready ready = HEARTH__V1__READY__INIT;

    ready.size = size;
    reply.reply_case = HEARTH__V1__REPLY__REPLY_READY;
    reply.ready = &ready;
    put_reply(b, ch, at, &reply);
}

static void put_failure(struct buf *b, uint32_t ch, uint64_t *at, int errnum)
{
    Hearth__V1__Reply reply = HEARTH__V1__REPLY__INIT;
    Hearth__V1__Error error = HEARTH__V1__ERROR__INIT;

    error.code = HEARTH__V1__CODE__CODE_SYSTEM;
    error.errnum = (uint32_t)errnum;
    reply.reply_case = HEARTH__V1__REPLY__REPLY_ERROR;
    reply.error = &error;
    put_reply(b, ch, at, &reply);
}

static void put_entries(struct buf *b, uint32_t ch, uint64_t *at, const char *const *names,
                        size_t count)
{
    Hearth__V1__Reply reply = HEARTH__V1__REPLY__INIT;
    Hearth__V1__FileEntries entries = HEARTH__V1__FILE_ENTRIES__INIT;
    Hearth__V1__FileInfo infos[4];
    Hearth__V1__FileInfo *list[4] = {&infos[0], &infos[1], &infos[2], &infos[3]};
    char *copy[4];

    for (size_t i = 0; i < count; i++) {
        hearth__v1__file_info__init(&infos[i]);
        copy[i] = strdup(names[i]);
        infos[i].path.data = (uint8_t *)copy[i];
        infos[i].path.len = strlen(names[i]);
        infos[i].type = HEARTH__V1__FILE_TYPE__FILE_TYPE_FILE;
    }
    entries.entries = list;
    entries.n_entries = count;
    reply.reply_case = HEARTH__V1__REPLY__REPLY_ENTRIES;
    reply.entries = &entries;
    put_reply(b, ch, at, &reply);
    for (size_t i = 0; i < count; i++)
        free(copy[i]);
}

TEST(stat_answers_with_the_path_that_was_asked_for)
{
    Hearth__V1__Reply reply = HEARTH__V1__REPLY__INIT;
    Hearth__V1__FileInfo info = HEARTH__V1__FILE_INFO__INIT;
    uint8_t target[] = "to", evil[] = "../../etc";
    char owner[] = "ro\not";
    _cleanup_buf_ struct buf b = {0};
    struct seen s = {0};
    struct error err = {0};
    uint64_t at = 0;
    uint32_t ch;
    struct peer p;

    buf_init(&b, BYTES_MAX);
    peer_open(&p);
    ASSERT_OK(file_stat(p.console, "user", "/a/b", false, on_info, &s, &s.call, &err));
    ch = expect_file(&p, HEARTH__V1__FILE_OP__OP_STAT, false);
    info.path.data = evil;
    info.path.len = sizeof(evil) - 1;
    info.type = HEARTH__V1__FILE_TYPE__FILE_TYPE_SYMLINK;
    info.symlink_target.data = target;
    info.symlink_target.len = 2;
    info.mode = 0777;
    info.owner = owner;
    reply.reply_case = HEARTH__V1__REPLY__REPLY_INFO;
    reply.info = &info;
    put_started(&b, ch, 7);
    put_reply(&b, ch, &at, &reply);
    put_exit(&b, ch, 0, 0, 0);
    put_stream_end(&b, ch, 3, at);
    put_closed(&b, ch, "");
    peer_send(&p, &b);
    PEER_WAIT(&p, s.done);
    for (int i = 0; i < 3; i++)
        peer_turn(&p);
    ASSERT_EQ(s.calls, 1);
    ASSERT_EQ(s.err.errnum, 0);
    ASSERT_STREQ(s.path, "/a/b>to");
    ASSERT_STREQ(s.info.owner, "ro\\x0aot");
    ASSERT_STREQ(file_type_name(s.info.type), "symlink");
    ASSERT_EQ(p.broken, 0);
    s.call = file_call_free(s.call);
    peer_end(&p);
}

TEST(file_errors_become_stable_codes)
{
    static const struct {
        int errnum;
        enum error_code expected;
    } rows[] = {
        {ENOENT, ERR_PATH_NOT_FOUND},
        {ENOTDIR, ERR_PATH_NOT_DIRECTORY},
        {EISDIR, ERR_PATH_IS_DIRECTORY},
        {EACCES, ERR_PERMISSION_DENIED},
        {ENOSPC, ERR_NO_SPACE},
        {EEXIST, ERR_ALREADY_EXISTS},
        {ENAMETOOLONG, ERR_LIMIT_EXCEEDED},
        {ENOTEMPTY, ERR_CONFLICT},
    };
    _cleanup_buf_ struct buf b = {0};
    struct peer p;

    buf_init(&b, BYTES_MAX);
    peer_open(&p);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct seen s = {0};
        struct error err = {0};
        uint64_t at = 0;
        uint32_t ch;

        ASSERT_OK(file_mkdir(p.console, NULL, "/x", true, 0755, on_done, &s, &s.call, &err));
        ch = expect_file(&p, HEARTH__V1__FILE_OP__OP_MKDIR, false);
        put_started(&b, ch, 7);
        put_failure(&b, ch, &at, rows[i].errnum);
        put_closed(&b, ch, "");
        peer_send(&p, &b);
        PEER_WAIT(&p, s.done);
        ASSERT_EQ(s.err.code, rows[i].expected);
        ASSERT_TRUE(strstr(s.err.text, "making directory '/x'"));
        ASSERT_EQ(peer_expect(&p, HEARTH__V1__REQUEST__OP_SIGNAL), ch);
        ASSERT_EQ(peer_expect(&p, HEARTH__V1__REQUEST__OP_WINDOW), ch);
        s.call = file_call_free(s.call);
    }
    peer_end(&p);
}

TEST(paths_are_checked_before_anything_is_sent)
{
    _cleanup_free_ char *deep = malloc(5001);
    struct error err = {0};
    struct file_call *call;
    struct transfer *t;
    struct peer p;

    memset(deep, '/', 5000);
    deep[5000] = '\0';
    peer_open(&p);
    ASSERT_ERR(file_remove(p.console, NULL, "relative", false, on_done, NULL, &call, &err), EINVAL);
    ASSERT_ERR(file_stat(p.console, NULL, deep, false, on_info, NULL, &call, &err), E2BIG);
    ASSERT_ERR(file_move(p.console, NULL, "/a", "b", false, on_done, NULL, &call, &err), EINVAL);
    ASSERT_ERR(file_symlink(p.console, NULL, "", "/b", on_done, NULL, &call, &err), EINVAL);
    ASSERT_ERR(file_read_start(p.console, NULL, NULL, 0, 0, NULL, NULL, &t, &err), EINVAL);
    ASSERT_ERR(dial_start(p.console, NULL, 0, 0, NULL, NULL, &t, &err), EINVAL);
    ASSERT_TRUE(peer_quiet(&p));
    peer_end(&p);
}

TEST(list_comes_in_batches_split_anywhere)
{
    static const char *const first[] = {"a", "b/c", "..d"}, *const second[] = {"e"};
    _cleanup_buf_ struct buf b = {0};
    size_t total = 1;

    buf_init(&b, BYTES_MAX);
    for (size_t split = 0; split < total; split += 3) {
        struct seen s = {0};
        struct error err = {0};
        uint64_t at = 0;
        uint32_t ch;
        struct peer p;

        peer_open(&p);
        ASSERT_OK(file_list(p.console, NULL, "/", 2, on_list, &s, &s.call, &err));
        ch = expect_file(&p, HEARTH__V1__FILE_OP__OP_LIST, false);
        put_started(&b, ch, 7);
        put_entries(&b, ch, &at, first, 3);
        put_entries(&b, ch, &at, second, 1);
        put_ok(&b, ch, &at);
        total = b.size;
        peer_send_bytes(&p, buf_data(&b), split);
        peer_turn(&p);
        buf_consume(&b, split);
        peer_send(&p, &b);
        PEER_WAIT(&p, s.done);
        ASSERT_EQ(s.entries, 4);
        ASSERT_EQ(s.batches, 2);
        ASSERT_STREQ(s.path, "e");
        s.call = file_call_free(s.call);
        peer_end(&p);
    }
}

TEST(listed_paths_cannot_leave_the_directory)
{
    static const char *const bad[] = {"../x", "a/../../x", "/etc", "..", "", "a//b", "a/", "."};
    _cleanup_buf_ struct buf b = {0};

    buf_init(&b, BYTES_MAX);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct seen s = {0};
        struct error err = {0};
        uint64_t at = 0;
        uint32_t ch;
        struct peer p;

        peer_open(&p);
        ASSERT_OK(file_list(p.console, NULL, "/", 2, on_list, &s, &s.call, &err));
        ch = expect_file(&p, HEARTH__V1__FILE_OP__OP_LIST, false);
        put_entries(&b, ch, &at, &bad[i], 1);
        peer_send(&p, &b);
        PEER_WAIT(&p, p.broken == 1);
        ASSERT_EQ(p.reason.code, ERR_GUEST_PROTOCOL);
        ASSERT_EQ(s.entries, 0);
        ASSERT_TRUE(s.done);
        s.call = file_call_free(s.call);
        peer_end(&p);
    }
}

TEST(call_may_be_freed_between_replies_of_one_frame)
{
    static const char *const names[] = {"a"};

    for (int what = 0; what < 3; what++) {
        _cleanup_buf_ struct buf b = {0}, replies = {0};
        struct seen s = {0};
        struct error err = {0};
        uint64_t at = 0;
        uint32_t ch;
        struct peer p;

        buf_init(&b, BYTES_MAX);
        buf_init(&replies, BYTES_MAX);
        peer_open(&p);
        ASSERT_OK(file_list(p.console, NULL, "/", 2, on_list, &s, &s.call, &err));
        ch = expect_file(&p, HEARTH__V1__FILE_OP__OP_LIST, false);
        /* Both replies in one DATA frame. */
        put_entries(&b, ch, &at, names, 1);
        ASSERT_OK(
            buf_append(&replies, buf_data(&b) + FRAME_HEADER_SIZE, b.size - FRAME_HEADER_SIZE));
        ASSERT_OK(
            buf_append(&replies, buf_data(&b) + FRAME_HEADER_SIZE, b.size - FRAME_HEADER_SIZE));
        buf_clear(&b);
        put_data(&b, ch, 3, 0, buf_data(&replies), replies.size);
        s.free_call = what != 1 ? &s.call : NULL;
        s.free_console = what != 0 ? &p.console : NULL;
        peer_send(&p, &b);
        PEER_WAIT(&p, s.calls == 1);
        for (int i = 0; i < 3; i++)
            peer_turn(&p);
        ASSERT_EQ(s.calls, 1);
        ASSERT_EQ(p.broken, 0);
        if (what == 0)
            ASSERT_EQ(peer_expect(&p, HEARTH__V1__REQUEST__OP_SIGNAL), ch);
        s.call = file_call_free(s.call);
        peer_end(&p);
    }
}

TEST(malformed_replies_break_the_console)
{
    static const struct {
        const char *bytes;
        size_t size;
        const char *text;
    } rows[] = {
        {"\xff\xff\xff\x7f", 4, "announced a reply"},
        {"\x02\0\0\0\xff\xff", 6, "malformed reply"},
        {"\0\0\0\0", 4, "unexpected reply"},
    };
    _cleanup_buf_ struct buf b = {0};

    buf_init(&b, BYTES_MAX);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct seen s = {0};
        struct error err = {0};
        struct peer p;

        peer_open(&p);
        ASSERT_OK(file_remove(p.console, NULL, "/x", false, on_done, &s, &s.call, &err));
        put_data(&b, expect_file(&p, HEARTH__V1__FILE_OP__OP_REMOVE, false), 3, 0, rows[i].bytes,
                 rows[i].size);
        peer_send(&p, &b);
        PEER_WAIT(&p, p.broken == 1);
        ASSERT_TRUE(strstr(p.reason.text, rows[i].text));
        ASSERT_EQ(s.err.code, ERR_GUEST_PROTOCOL);
        s.call = file_call_free(s.call);
        peer_end(&p);
    }
}

TEST(operation_that_breaks_off_fails_alone)
{
    _cleanup_buf_ struct buf b = {0};
    struct seen s = {0};
    struct error err = {0};
    struct peer p;

    buf_init(&b, BYTES_MAX);
    peer_open(&p);
    ASSERT_OK(file_remove(p.console, NULL, "/x", true, on_done, &s, &s.call, &err));
    put_closed(&b, expect_file(&p, HEARTH__V1__FILE_OP__OP_REMOVE, false), "");
    peer_send(&p, &b);
    PEER_WAIT(&p, s.done);
    ASSERT_EQ(s.err.code, ERR_INTERNAL);
    ASSERT_EQ(p.broken, 0);
    s.call = file_call_free(s.call);
    peer_end(&p);
}

TEST(watch_is_armed_tells_events_and_ends_when_freed)
{
    Hearth__V1__Reply reply = HEARTH__V1__REPLY__INIT;
    Hearth__V1__FileEvent event = HEARTH__V1__FILE_EVENT__INIT;
    uint8_t name[] = "new";
    _cleanup_buf_ struct buf b = {0};
    struct seen s = {0};
    struct error err = {0};
    uint64_t at = 0;
    uint32_t ch;
    struct peer p;

    buf_init(&b, BYTES_MAX);
    peer_open(&p);
    ASSERT_OK(file_watch(p.console, NULL, "/d", true, on_watch, &s, &s.call, &err));
    ch = expect_file(&p, HEARTH__V1__FILE_OP__OP_WATCH, false);
    put_ready(&b, ch, &at, 0);
    event.kind = HEARTH__V1__FILE_EVENT__KIND__CREATE;
    event.path.data = name;
    event.path.len = 3;
    reply.reply_case = HEARTH__V1__REPLY__REPLY_EVENT;
    reply.event = &event;
    put_reply(&b, ch, &at, &reply);
    peer_send(&p, &b);
    PEER_WAIT(&p, s.calls == 2);
    ASSERT_EQ(s.kinds[0], 0);
    ASSERT_EQ(s.kinds[1], FILE_EVENT_CREATE);
    ASSERT_STREQ(s.path, "new");
    /* Freed in its own callback; what comes after is thrown away. */
    s.free_call = &s.call;
    put_reply(&b, ch, &at, &reply);
    put_reply(&b, ch, &at, &reply);
    peer_send(&p, &b);
    PEER_WAIT(&p, s.calls == 3);
    ASSERT_EQ(peer_expect(&p, HEARTH__V1__REQUEST__OP_SIGNAL), ch);
    ASSERT_EQ(s.calls, 3);
    ASSERT_EQ(p.broken, 0);
    peer_end(&p);
}

/* ---- transfers ---- */

struct flow {
    struct transfer *t; /* owned */
    unsigned ready, writable, done;
    uint64_t size, got;
    bool hold;
    struct error err;
    bool free_at_data;
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

    (void)data;
    f->got += size;
    if (!f->hold)
        transfer_consumed(t, size);
    if (f->free_at_data)
        f->t = transfer_free(f->t);
}

static void flow_writable(struct transfer *t, void *userdata)
{
    struct flow *f = userdata;

    (void)t;
    f->writable++;
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
    .on_writable = flow_writable,
    .on_done = flow_done,
};

TEST(read_is_done_with_ok_and_the_end_of_content)
{
    _cleanup_buf_ struct buf b = {0};
    struct error err = {0};

    buf_init(&b, BYTES_MAX);
    for (int ok_first = 0; ok_first < 2; ok_first++) {
        struct flow f = {.hold = true};
        uint64_t at = 0;
        uint32_t ch;
        struct peer p;

        peer_open(&p);
        ASSERT_OK(file_read_start(p.console, NULL, "/f", 0, 0, &flow_callbacks, &f, &f.t, &err));
        ch = expect_file(&p, HEARTH__V1__FILE_OP__OP_READ, true);
        put_started(&b, ch, 7);
        put_ready(&b, ch, &at, 6);
        if (ok_first)
            put_ok(&b, ch, &at);
        put_data(&b, ch, 1, 0, "abcdef", 6);
        peer_send(&p, &b);
        PEER_WAIT(&p, f.got == 6);
        ASSERT_EQ(f.size, 6);
        ASSERT_EQ(f.done, 0);
        put_stream_end(&b, ch, 1, 6);
        if (!ok_first)
            put_ok(&b, ch, &at);
        peer_send(&p, &b);
        PEER_WAIT(&p, f.done == 1);
        ASSERT_EQ(f.err.errnum, 0);
        transfer_consumed(f.t, 6); /* late, harmless */
        f.t = transfer_free(f.t);
        peer_end(&p);
    }
}

TEST(write_sends_content_and_is_done_when_the_guest_says_so)
{
    struct file_write_options options = {.mode = 0600, .atomic = true};
    Hearth__V1__Reply reply = HEARTH__V1__REPLY__INIT;
    Hearth__V1__FileInfo info = HEARTH__V1__FILE_INFO__INIT;
    _cleanup_buf_ struct buf b = {0};
    struct error err = {0};
    struct flow f = {0};
    uint64_t at = 0;
    uint32_t ch;
    struct peer p;
    char got[16];

    buf_init(&b, BYTES_MAX);
    peer_open(&p);
    ASSERT_OK(file_write_start(p.console, NULL, "/f", &options, &flow_callbacks, &f, &f.t, &err));
    ch = expect_file(&p, HEARTH__V1__FILE_OP__OP_WRITE, false);
    ASSERT_EQ(transfer_writable(f.t), 0);
    put_started(&b, ch, 7);
    put_window(&b, ch, 0, 10);
    put_ready(&b, ch, &at, 0);
    peer_send(&p, &b);
    PEER_WAIT(&p, f.writable == 1 && f.ready == 1);
    ASSERT_OK(transfer_write(f.t, "content", 7));
    ASSERT_OK(transfer_finish(f.t));
    ASSERT_ERR(transfer_write(f.t, "x", 1), EPIPE);
    ASSERT_EQ(peer_expect_data(&p, ch, 0, 0, got, sizeof(got)), 7);
    ASSERT_EQ(peer_expect(&p, HEARTH__V1__REQUEST__OP_CLOSE_STREAM), ch);
    reply.reply_case = HEARTH__V1__REPLY__REPLY_INFO;
    reply.info = &info;
    put_reply(&b, ch, &at, &reply);
    peer_send(&p, &b);
    PEER_WAIT(&p, f.done == 1);
    ASSERT_EQ(f.err.errnum, 0);
    f.t = transfer_free(f.t);
    peer_end(&p);
}

TEST(freed_transfer_is_broken_off_and_its_rest_swallowed)
{
    static const uint8_t data[FRAME_DATA_MAX];
    _cleanup_buf_ struct buf b = {0};
    struct error err = {0};
    struct flow f = {.free_at_data = true};
    Hearth__V1__Request *request;
    uint32_t ch, other;
    struct peer p;

    buf_init(&b, BYTES_MAX);
    peer_open(&p);
    ASSERT_OK(file_read_start(p.console, NULL, "/f", 0, 0, &flow_callbacks, &f, &f.t, &err));
    ch = expect_file(&p, HEARTH__V1__FILE_OP__OP_READ, true);
    for (uint64_t i = 0; i < 20; i++)
        put_data(&b, ch, 1, i * FRAME_DATA_MAX, data, FRAME_DATA_MAX);
    put_closed(&b, ch, "");
    peer_send_bytes(&p, buf_data(&b), FRAME_DATA_MAX + FRAME_HEADER_SIZE);
    buf_consume(&b, FRAME_DATA_MAX + FRAME_HEADER_SIZE);
    PEER_WAIT(&p, f.got == FRAME_DATA_MAX);
    request = peer_request(&p, &other);
    ASSERT_EQ(request->op_case, HEARTH__V1__REQUEST__OP_SIGNAL);
    ASSERT_EQ(request->signal->signo, SIGTERM);
    hearth__v1__request__free_unpacked(request, NULL);
    peer_send(&p, &b);
    for (int i = 0; i < 5; i++)
        peer_turn(&p);
    ASSERT_EQ(f.got, FRAME_DATA_MAX);
    ASSERT_EQ(f.done, 0);
    ASSERT_EQ(p.broken, 0);
    peer_end(&p);
}

TEST(dial_is_full_duplex_and_its_errors_are_the_connections)
{
    _cleanup_buf_ struct buf b = {0};
    struct error err = {0};
    struct flow f = {0};
    Hearth__V1__Request *request;
    uint64_t at = 0;
    uint32_t ch;
    struct peer p;

    buf_init(&b, BYTES_MAX);
    peer_open(&p);
    ASSERT_OK(dial_start(p.console, NULL, 8080, 1000, &flow_callbacks, &f, &f.t, &err));
    request = peer_request(&p, &ch);
    ASSERT_EQ(request->op_case, HEARTH__V1__REQUEST__OP_DIAL);
    ASSERT_EQ(request->dial->port, 8080);
    hearth__v1__request__free_unpacked(request, NULL);
    put_failure(&b, ch, &at, ECONNREFUSED);
    peer_send(&p, &b);
    PEER_WAIT(&p, f.done == 1);
    ASSERT_EQ(f.err.code, ERR_UNAVAILABLE);
    ASSERT_TRUE(strstr(f.err.text, "127.0.0.1:8080"));
    f.t = transfer_free(f.t);
    peer_end(&p);
}
