#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "guest/file-ops.h"
#include "guest/reply.h"
#include "guest/users.h"
#include "guest/walk.h"

#define BATCH 64u          /* entries of one Reply */
#define BATCH_BYTES 49152u /* of paths: the host takes Replies of 64 KiB */
#define ENTRY_BYTES 96u    /* beside the paths, at most, without the names */

/* One FileInfo and what its pointers point to. */
struct entry {
    Hearth__V1__FileInfo info;
    char path[PATH_MAX];
    char target[PATH_MAX];
    char owner[USER_NAME_MAX], group[USER_NAME_MAX];
};

struct listing {
    struct users users;
    struct entry entries[BATCH];
    size_t n, bytes;
};

static Hearth__V1__FileType type_of(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG:
        return HEARTH__V1__FILE_TYPE__FILE_TYPE_FILE;
    case S_IFDIR:
        return HEARTH__V1__FILE_TYPE__FILE_TYPE_DIRECTORY;
    case S_IFLNK:
        return HEARTH__V1__FILE_TYPE__FILE_TYPE_SYMLINK;
    case S_IFIFO:
        return HEARTH__V1__FILE_TYPE__FILE_TYPE_FIFO;
    case S_IFSOCK:
        return HEARTH__V1__FILE_TYPE__FILE_TYPE_SOCKET;
    case S_IFCHR:
        return HEARTH__V1__FILE_TYPE__FILE_TYPE_CHARACTER_DEVICE;
    case S_IFBLK:
        return HEARTH__V1__FILE_TYPE__FILE_TYPE_BLOCK_DEVICE;
    default:
        return HEARTH__V1__FILE_TYPE__FILE_TYPE_UNSPECIFIED;
    }
}

/* `name` is in dir_fd; `path` is what is shown. */
static void fill(struct entry *e, const struct users *users, int dir_fd, const char *name,
                 const char *path, const struct stat *st)
{
    Hearth__V1__FileInfo *info = &e->info;
    size_t size = MIN(strlen(path), sizeof(e->path));

    hearth__v1__file_info__init(info);
    memcpy(e->path, path, size);
    info->path = (ProtobufCBinaryData){.len = size, .data = (uint8_t *)e->path};
    info->type = type_of(st->st_mode);
    info->size = (uint64_t)st->st_size;
    info->mode = st->st_mode & 07777;
    info->uid = st->st_uid;
    info->gid = st->st_gid;
    info->mtime_nsec = st->st_mtim.tv_sec < 0 ? 0
                                              : (uint64_t)st->st_mtim.tv_sec * NSEC_PER_SEC +
                                                    (uint64_t)st->st_mtim.tv_nsec;
    if (S_ISLNK(st->st_mode)) {
        ssize_t n = readlinkat(dir_fd, name, e->target, sizeof(e->target));

        if (n > 0)
            info->symlink_target =
                (ProtobufCBinaryData){.len = (size_t)n, .data = (uint8_t *)e->target};
    }
    users_name_of_uid(users, st->st_uid, e->owner);
    users_name_of_gid(users, st->st_gid, e->group);
    info->owner = e->owner;
    info->group = e->group;
}

int file_op_stat(const Hearth__V1__FileStat *op)
{
    _cleanup_free_ char *path = path_from_request(&op->path);
    Hearth__V1__Reply reply = HEARTH__V1__REPLY__INIT;
    static struct listing l;
    struct stat st;

    if (!path)
        return 1;
    if (fstatat(AT_FDCWD, path, &st, op->follow ? 0 : AT_SYMLINK_NOFOLLOW) < 0)
        return reply_errno(errno, "stat", path);
    if (users_load(&l.users) < 0)
        return reply_error(HEARTH__V1__CODE__CODE_SYSTEM, ENOMEM, "out of memory");
    fill(&l.entries[0], &l.users, AT_FDCWD, path, path, &st);
    reply.reply_case = HEARTH__V1__REPLY__REPLY_INFO;
    reply.info = &l.entries[0].info;
    reply_send(&reply);
    users_done(&l.users);
    return 0;
}

static void flush(struct listing *l)
{
    Hearth__V1__FileEntries entries = HEARTH__V1__FILE_ENTRIES__INIT;
    Hearth__V1__Reply reply = HEARTH__V1__REPLY__INIT;
    Hearth__V1__FileInfo *pointers[BATCH];

    if (l->n == 0)
        return;
    for (size_t i = 0; i < l->n; i++)
        pointers[i] = &l->entries[i].info;
    entries.entries = pointers;
    entries.n_entries = l->n;
    reply.reply_case = HEARTH__V1__REPLY__REPLY_ENTRIES;
    reply.entries = &entries;
    reply_send(&reply);
    l->n = l->bytes = 0;
}

static int list_entry(const struct walk_entry *e, void *userdata)
{
    struct listing *l = userdata;
    struct entry *entry;

    if (e->order == WALK_AFTER)
        return 0;
    entry = &l->entries[l->n++];
    fill(entry, &l->users, e->dir_fd, e->name, e->path, &e->st);
    l->bytes += entry->info.path.len + entry->info.symlink_target.len + ENTRY_BYTES;
    if (l->n == BATCH || l->bytes >= BATCH_BYTES)
        flush(l);
    return 0;
}

int file_op_list(const Hearth__V1__FileList *op)
{
    _cleanup_free_ char *path = path_from_request(&op->path);
    static struct listing l;
    int fd, r;

    if (!path)
        return 1;
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return reply_errno(errno, "list", path);
    if (users_load(&l.users) < 0)
        return reply_error(HEARTH__V1__CODE__CODE_SYSTEM, ENOMEM, "out of memory");
    r = walk_tree_consume(fd, op->depth > 1 ? op->depth : 1, list_entry, &l);
    if (r < 0)
        return reply_errno(-r, "list", path);
    flush(&l);
    users_done(&l.users);
    return reply_ok();
}
