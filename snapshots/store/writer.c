#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"
#include "store/scan.h"
#include "store/step.h"
#include "store/store-internal.h"

#define EARLY_WRITE_BYTES ((off_t)32 * 1024 * 1024)

struct snapshot_writer {
    struct snapshot_store *store; /* ref */
    char id[MANIFEST_ID_SIZE];
    char *dir; /* owned; NULL once it is sealed */
};

int snapshot_writer_new(struct snapshot_store *s, struct snapshot_writer **ret, struct error *err)
{
    struct snapshot_writer *w = calloc(1, sizeof(*w));
    unsigned char random[16];
    int r;

    if (!w)
        return error_set(err, ENOMEM, "new snapshot: out of memory");
    randombytes_buf(random, sizeof(random));
    hex_encode(random, sizeof(random), w->id);
    w->store = s;
    w->dir = store_dir(s, STORE_NEW_PREFIX, w->id);
    r = !w->dir ? -ENOMEM : s->read_only ? -EROFS : store_step("mkdir");
    if (r >= 0 && mkdir(w->dir, 0700) < 0)
        r = -errno;
    if (r < 0) {
        free(w->dir);
        free(w);
        return error_set(err, -r, "new snapshot in '%s': %s", s->root, errno_text(-r));
    }
    *ret = w;
    return 0;
}

const char *snapshot_writer_id(const struct snapshot_writer *w)
{
    return w->id;
}

const char *snapshot_writer_dir(const struct snapshot_writer *w)
{
    return w->dir;
}

struct snapshot_writer *snapshot_writer_free(struct snapshot_writer *w)
{
    if (!w)
        return NULL;
    if (w->dir)
        (void)dir_remove(w->dir, NULL);
    free(w->dir);
    free(w);
    return NULL;
}

/* ---- seal ---- */

/* The parent's seal and memory size; it exists and the chain does not get too long. */
static int check_parent(struct snapshot_store *s, const struct snapshot_info *info,
                        char ret_seal[DIGEST_TEXT_SIZE], uint64_t *ret_memory, struct error *err)
{
    struct snapshot_manifest m = {0};
    _cleanup_free_ char *dir = NULL;
    unsigned depth = 1;
    int r;

    if (info->parent.template_id[0]) {
        struct template_base base = {0};

        r = template_base_open(s->templates, info->parent.template_id, /* digest= */ false, &base,
                               err);
        if (r < 0)
            return r;
        memcpy(ret_seal, base.seal, DIGEST_TEXT_SIZE);
        *ret_memory = base.memory_bytes;
        template_base_done(&base);
        return 0;
    }
    (void)pthread_mutex_lock(&s->lock);
    for (struct entry *e = store_find(s, info->parent.snapshot_id); e && e->parent[0]; depth++)
        e = store_find(s, e->parent);
    (void)pthread_mutex_unlock(&s->lock);
    if (depth >= SNAPSHOT_CHAIN_MAX)
        return error_set(err, E2BIG, "it would lie over %u others, flatten one first", depth);
    dir = store_dir(s, "", info->parent.snapshot_id);
    if (!dir)
        return error_set(err, ENOMEM, "out of memory");
    r = snapshot_manifest_read(dir, info->parent.snapshot_id, &m, err);
    if (r < 0) {
        error_wrap(err, "its parent");
        return r;
    }
    memcpy(ret_seal, m.seal, DIGEST_TEXT_SIZE);
    *ret_memory = m.info.memory_bytes;
    snapshot_manifest_done(&m);
    return 0;
}

static int check_info(const struct snapshot_info *info, struct error *err)
{
    const bool over_template = info->parent.template_id[0],
               over_other = info->parent.snapshot_id[0];

    if (over_template == over_other)
        return error_set(err, EINVAL, "it needs one parent");
    if ((unsigned)info->kind > SNAPSHOT_FORK || memchr(info->name, 0, sizeof(info->name)) == NULL ||
        memchr(info->sandbox, 0, sizeof(info->sandbox)) == NULL)
        return error_set(err, EINVAL, "bad kind, name or sandbox");
    if (info->meta) {
        size_t size = json_dumpb(info->meta, NULL, 0, JSON_COMPACT);

        if (size == 0 || size > SNAPSHOT_META_MAX)
            return error_set(err, E2BIG, "its meta data is larger than %u bytes",
                             SNAPSHOT_META_MAX);
    }
    return 0;
}

static int sync_fd(int fd, const char *path, struct error *err)
{
    int r = store_step("sync");

    if (r >= 0 && fsync(fd) < 0)
        r = -errno;
    return r < 0 ? error_set(err, -r, "sync '%s': %s", path, errno_text(-r)) : 0;
}

static int open_written(const char *dir, const char *name, char **ret_path, int *ret_fd,
                        uint64_t *ret_size, struct error *err)
{
    _cleanup_free_ char *path = string_printf("%s/%s", dir, name);
    _cleanup_close_ int fd = -EBADF;
    struct stat st;

    if (!path)
        return error_set(err, ENOMEM, "out of memory");
    fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &st) < 0)
        return error_set(err, errno, "open '%s': %s", path, errno_text(errno));
    if (!S_ISREG(st.st_mode))
        return error_set(err, EINVAL, "'%s' is not a regular file", path);
    *ret_path = TAKE_PTR(path);
    *ret_fd = TAKE_FD(fd);
    *ret_size = (uint64_t)st.st_size;
    return 0;
}

static int seal_state(const char *dir, struct manifest_file *ret, struct error *err)
{
    _cleanup_free_ char *path = NULL;
    _cleanup_close_ int fd = -EBADF;
    int r = open_written(dir, SNAPSHOT_STATE, &path, &fd, &ret->size_bytes, err);

    if (r < 0)
        return r;
    r = blake_fd(fd, ret->digest);
    if (r < 0)
        return error_set(err, -r, "read '%s': %s", path, errno_text(-r));
    r = scan_punch(fd); /* QEMU's is mostly tables of queues that no device has */
    if (r < 0)
        return error_set(err, -r, "make holes in '%s': %s", path, errno_text(-r));
    (void)snprintf(ret->name, sizeof(ret->name), "%s", SNAPSHOT_STATE);
    return sync_fd(fd, path, err);
}

/* `files` are the data file and its map. */
static int seal_data(const char *dir, const char *name, bool memory, struct manifest_file *files,
                     uint64_t *ret_bytes, struct error *err)
{
    _cleanup_(map_done) struct map map = {0};
    _cleanup_free_ char *path = NULL, *map_name = string_printf("%s.map", name);
    _cleanup_close_ int fd = -EBADF;
    struct stat st;
    int r;

    if (!map_name)
        return error_set(err, ENOMEM, "out of memory");
    r = open_written(dir, name, &path, &fd, &files[0].size_bytes, err);
    if (r < 0)
        return r;
    /* The kernel starts to write while the digests are made; of a small file the zeros go first. */
    if (fstat(fd, &st) == 0 && st.st_blocks * 512 >= EARLY_WRITE_BYTES)
        (void)sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    r = scan_file(fd, path, /* keep_zeros= */ memory, &map, err);
    if (r >= 0)
        r = sync_fd(fd, path, err);
    if (r >= 0)
        r = store_write_map(dir, map_name, &map, &files[1], err);
    if (r < 0)
        return r;
    (void)snprintf(files[0].name, sizeof(files[0].name), "%s", name);
    *ret_bytes = map_bytes(&map, MAP_DATA) + map_bytes(&map, MAP_ZERO);
    return 0;
}

static int seal_files(struct snapshot_writer *w, struct snapshot_manifest *m, struct error *err)
{
    uint64_t disk_bytes;
    int r = seal_state(w->dir, &m->files[SNAPSHOT_FILE_STATE], err);

    if (r >= 0)
        r = seal_data(w->dir, SNAPSHOT_MEMORY, true, &m->files[SNAPSHOT_FILE_MEMORY],
                      &m->info.changed_bytes, err);
    if (r >= 0 && m->files[SNAPSHOT_FILE_MEMORY].size_bytes != m->info.memory_bytes)
        r = error_set(err, EINVAL, "its memory has %llu bytes, its parent's has %llu",
                      (unsigned long long)m->files[SNAPSHOT_FILE_MEMORY].size_bytes,
                      (unsigned long long)m->info.memory_bytes);
    if (r >= 0)
        r = seal_data(w->dir, SNAPSHOT_DISK, false, &m->files[SNAPSHOT_FILE_DISK], &disk_bytes,
                      err);
    return r;
}

/* The manifest last: a directory without one is rubbish. */
static int seal_manifest(struct snapshot_writer *w, struct snapshot_manifest *m, struct error *err)
{
    _cleanup_free_ char *text = NULL;
    size_t size;
    int r = snapshot_manifest_print(m, &text, &size, err);

    if (r >= 0)
        r = store_write_file(w->dir, SNAPSHOT_MANIFEST, text, size, err);
    if (r < 0)
        return r;
    r = store_step("sync directory");
    if (r >= 0)
        r = store_sync_dir(w->dir);
    return r < 0 ? error_set(err, -r, "sync '%s': %s", w->dir, errno_text(-r)) : 0;
}

static int publish(struct snapshot_writer *w, const struct snapshot_manifest *m, struct error *err)
{
    struct snapshot_store *s = w->store;
    _cleanup_free_ char *to = store_dir(s, "", w->id);
    int r;

    if (!to)
        return error_set(err, ENOMEM, "out of memory");
    r = store_step("rename");
    if (r >= 0) {
        (void)pthread_mutex_lock(&s->lock);
        r = store_insert(s, m);
        if (r >= 0 && rename(w->dir, to) < 0) {
            r = -errno;
            store_forget(s, store_find(s, w->id));
        }
        (void)pthread_mutex_unlock(&s->lock);
    }
    if (r < 0)
        return error_set(err, -r, "rename '%s' to '%s': %s", w->dir, to, errno_text(-r));
    r = store_step("sync root");
    if (r >= 0)
        r = store_sync_dir(s->root);
    if (r < 0) {
        /* Not known to be there after a crash: then it is not there now either. */
        (void)pthread_mutex_lock(&s->lock);
        store_forget(s, store_find(s, w->id));
        (void)rename(to, w->dir);
        (void)pthread_mutex_unlock(&s->lock);
        return error_set(err, -r, "sync '%s': %s", s->root, errno_text(-r));
    }
    free(w->dir);
    w->dir = NULL;
    return 0;
}

static int seal(struct snapshot_writer *w, struct snapshot_manifest *m, struct error *err)
{
    struct utsname host;
    int r = check_info(&m->info, err);

    if (r >= 0)
        r = check_parent(w->store, &m->info, m->parent_digest, &m->info.memory_bytes, err);
    if (r < 0)
        return r;
    memcpy(m->info.id, w->id, MANIFEST_ID_SIZE);
    m->info.created_wall_usec = clock_wall_usec();
    m->info.compressed = false;
    if (uname(&host) == 0)
        (void)snprintf(m->info.host_kernel, sizeof(m->info.host_kernel), "%.64s", host.release);
    r = seal_files(w, m, err);
    if (r < 0)
        return r;
    m->info.stored_bytes = store_dir_bytes(w->dir);
    r = store_reserve(w->store, m->info.stored_bytes, err);
    if (r >= 0)
        r = seal_manifest(w, m, err);
    if (r < 0)
        return r;
    m->info.stored_bytes = store_dir_bytes(w->dir);
    m->info.written_bytes = store_dir_own_bytes(w->dir);
    return publish(w, m, err);
}

int snapshot_writer_seal(struct snapshot_writer *w, struct snapshot_info *info, struct error *err)
{
    struct snapshot_manifest m = {.info = *info}; /* meta stays the caller's */
    const char *parent = info->parent.snapshot_id;
    int r = 0;

    if (!w->dir)
        return error_set(err, EINVAL, "snapshot '%s' is sealed", w->id);
    if (parent[0]) {
        r = store_pin(w->store, parent, /* removed_too= */ true);
        if (r < 0)
            (void)error_set_code(err, ERR_SNAPSHOT_NOT_FOUND, "its parent '%s' is missing", parent);
    }
    if (r >= 0) {
        r = seal(w, &m, err);
        if (parent[0])
            store_unpin(w->store, parent);
    }
    if (r < 0) {
        error_wrap(err, "snapshot of '%s'", info->sandbox);
        return r;
    }
    *info = m.info;
    return 0;
}
