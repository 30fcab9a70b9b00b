#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/strv.h"
#include "guest/file-ops.h"
#include "guest/reply.h"
#include "guest/walk.h"

#define WATCHES_MAX 16384u
#define WATCH_MASK                                                                                 \
    (IN_CREATE | IN_MODIFY | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB |                 \
     IN_DELETE_SELF | IN_MOVE_SELF | IN_DONT_FOLLOW | IN_EXCL_UNLINK)

/* Paths are relative to the watched one; "" is itself. */
struct watch {
    int wd;
    char *path; /* owned */
};

struct watcher {
    int fd; /* inotify */
    const char *top;
    bool recursive;
    struct watch *watches; /* owned */
    size_t n;
};

static void send_event(Hearth__V1__FileEvent__Kind kind, const char *path)
{
    Hearth__V1__FileEvent event = HEARTH__V1__FILE_EVENT__INIT;
    Hearth__V1__Reply reply = HEARTH__V1__REPLY__INIT;

    event.kind = kind;
    event.path = (ProtobufCBinaryData){.len = strlen(path), .data = (uint8_t *)(uintptr_t)path};
    reply.reply_case = HEARTH__V1__REPLY__REPLY_EVENT;
    reply.event = &event;
    reply_send(&reply);
}

static struct watch *find(struct watcher *w, int wd)
{
    for (size_t i = 0; i < w->n; i++) {
        if (w->watches[i].wd == wd)
            return &w->watches[i];
    }
    return NULL;
}

static void forget(struct watcher *w, struct watch *watch)
{
    free(watch->path);
    *watch = w->watches[--w->n];
}

static int add(struct watcher *w, const char *path)
{
    char full[PATH_MAX];
    struct watch *known;
    char *copy;
    int wd;

    if (snprintf(full, sizeof(full), "%s%s%s", w->top, path[0] ? "/" : "", path) >=
        (int)sizeof(full))
        return -ENAMETOOLONG;
    if (w->n >= WATCHES_MAX)
        return -ENOSPC;
    /* Only the path that was asked for may be a symlink. */
    wd = inotify_add_watch(w->fd, full,
                           path[0] ? WATCH_MASK : WATCH_MASK & ~(uint32_t)IN_DONT_FOLLOW);
    if (wd < 0)
        return -errno;
    copy = strdup(path);
    if (!copy)
        return -ENOMEM;
    known = find(w, wd);
    if (known) {
        free(known->path);
        known->path = copy;
        return 0;
    }
    w->watches[w->n++] = (struct watch){.wd = wd, .path = copy};
    return 0;
}

/* A directory and what stands in it; `announce` tells of its entries, which nobody saw come. */
struct scan {
    struct watcher *w;
    const char *prefix;
    bool announce;
};

static int scan_entry(const struct walk_entry *e, void *userdata)
{
    struct scan *s = userdata;
    char path[PATH_MAX];
    int r;

    if (e->order == WALK_AFTER)
        return 0;
    r = snprintf(path, sizeof(path), "%s%s%s", s->prefix, s->prefix[0] ? "/" : "", e->path);
    if (r < 0 || (size_t)r >= sizeof(path))
        return 0;
    if (s->announce)
        send_event(HEARTH__V1__FILE_EVENT__KIND__CREATE, path);
    if (!S_ISDIR(e->st.st_mode))
        return 0;
    r = add(s->w, path);
    return r == -ENOSPC || r == -ENOMEM ? r : 0;
}

static int add_tree(struct watcher *w, const char *path, bool announce)
{
    struct scan scan = {.w = w, .prefix = path, .announce = announce};
    char full[PATH_MAX];
    int fd, r;

    r = add(w, path);
    if (r < 0 || !w->recursive)
        return r;
    if (snprintf(full, sizeof(full), "%s%s%s", w->top, path[0] ? "/" : "", path) >=
        (int)sizeof(full))
        return -ENAMETOOLONG;
    fd = open(full, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (path[0] ? O_NOFOLLOW : 0));
    if (fd < 0)
        return errno == ENOTDIR ? 0 : -errno;
    return walk_tree_consume(fd, WALK_DEPTH_MAX, scan_entry, &scan);
}

/* A directory moved away: what lies under its old name is no longer ours to tell. */
static void forget_tree(struct watcher *w, const char *path)
{
    size_t size = strlen(path);

    for (size_t i = 0; i < w->n;) {
        struct watch *watch = &w->watches[i];

        if (strncmp(watch->path, path, size) == 0 &&
            (watch->path[size] == '\0' || watch->path[size] == '/')) {
            (void)inotify_rm_watch(w->fd, watch->wd);
            forget(w, watch);
        } else {
            i++;
        }
    }
}

static Hearth__V1__FileEvent__Kind kind_of(uint32_t mask)
{
    if (mask & (IN_CREATE | IN_MOVED_TO))
        return HEARTH__V1__FILE_EVENT__KIND__CREATE;
    if (mask & IN_MODIFY)
        return HEARTH__V1__FILE_EVENT__KIND__WRITE;
    if (mask & (IN_DELETE | IN_DELETE_SELF))
        return HEARTH__V1__FILE_EVENT__KIND__REMOVE;
    if (mask & (IN_MOVED_FROM | IN_MOVE_SELF))
        return HEARTH__V1__FILE_EVENT__KIND__RENAME;
    if (mask & IN_ATTRIB)
        return HEARTH__V1__FILE_EVENT__KIND__CHMOD;
    return HEARTH__V1__FILE_EVENT__KIND__UNSPECIFIED;
}

/* Returns false when the watched path itself is gone. */
static bool handle(struct watcher *w, const struct inotify_event *e)
{
    struct watch *watch = find(w, e->wd);
    Hearth__V1__FileEvent__Kind kind = kind_of(e->mask);
    char path[PATH_MAX];
    bool top;
    int r;

    if (e->mask & IN_Q_OVERFLOW) {
        send_event(HEARTH__V1__FILE_EVENT__KIND__OVERFLOW, "");
        return true;
    }
    if (!watch)
        return true;
    top = watch->path[0] == '\0';
    if (e->mask & IN_IGNORED) {
        forget(w, watch);
        return !top;
    }
    /* A directory below tells of its own end through its parent. */
    if (e->len == 0 && !top)
        return true;
    r = snprintf(path, sizeof(path), "%s%s%s", watch->path, !top && e->len ? "/" : "",
                 e->len ? e->name : "");
    if (r < 0 || (size_t)r >= sizeof(path) || kind == HEARTH__V1__FILE_EVENT__KIND__UNSPECIFIED)
        return true;
    send_event(kind, path);
    if ((e->mask & IN_ISDIR) && w->recursive && e->len > 0) {
        if (e->mask & IN_MOVED_FROM)
            forget_tree(w, path);
        if ((e->mask & (IN_CREATE | IN_MOVED_TO)) && add_tree(w, path, true) == -ENOSPC)
            send_event(HEARTH__V1__FILE_EVENT__KIND__OVERFLOW, path);
    }
    return !(e->mask & IN_MOVE_SELF) || !top;
}

static bool read_events(struct watcher *w)
{
    _Alignas(struct inotify_event) char data[16384];
    ssize_t n = read(w->fd, data, sizeof(data));

    if (n < 0)
        return errno == EINTR || errno == EAGAIN;
    for (char *p = data; p < data + n;) {
        const struct inotify_event *e = (const struct inotify_event *)(void *)p;

        if (!handle(w, e))
            return false;
        p += sizeof(*e) + e->len;
    }
    return true;
}

int file_op_watch(const Hearth__V1__FileWatch *op)
{
    _cleanup_free_ char *path = path_from_request(&op->path);
    struct watcher w = {.top = path, .recursive = op->recursive};
    struct pollfd pollfd = {.events = POLLIN};
    int r;

    if (!path)
        return 1;
    w.watches = calloc(WATCHES_MAX, sizeof(*w.watches));
    if (!w.watches)
        return reply_errno(ENOMEM, "watch", path);
    w.fd = pollfd.fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (w.fd < 0)
        return reply_errno(errno, "watch", path);
    r = add_tree(&w, "", false);
    if (r < 0)
        return reply_errno(-r, "watch", path);
    reply_ready(0);
    for (;;) {
        if (poll(&pollfd, 1, -1) < 0 && errno != EINTR)
            return reply_errno(errno, "watch", path);
        if (pollfd.revents && !read_events(&w))
            return reply_error(HEARTH__V1__CODE__CODE_SYSTEM, ENOENT, "it was removed or moved");
    }
}
