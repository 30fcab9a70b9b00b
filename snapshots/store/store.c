#include <dirent.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"
#include "base/strv.h"
#include "store/scan.h"
#include "store/step.h"
#include "store/store-internal.h"

char *store_dir(const struct snapshot_store *s, const char *prefix, const char *id)
{
    return string_printf("%s/%s%s", s->root, prefix, id);
}

/* ---- the table ---- */

struct entry *store_find(struct snapshot_store *s, const char *id)
{
    for (size_t i = 0; i < s->n_entries; i++)
        if (strcmp(s->entries[i]->id, id) == 0)
            return s->entries[i];
    return NULL;
}

unsigned store_children(struct snapshot_store *s, const char *id)
{
    unsigned count = 0;

    for (size_t i = 0; i < s->n_entries; i++)
        count += strcmp(s->entries[i]->parent, id) == 0;
    return count;
}

static int add_entry(struct snapshot_store *s, const char *id, struct entry **ret)
{
    struct entry *e;

    if (s->n_entries == STORE_SNAPSHOTS_MAX)
        return -E2BIG;
    if (s->n_entries == s->room) {
        size_t room = s->room ? s->room * 2 : 32;
        struct entry **larger = reallocarray(s->entries, room, sizeof(struct entry *));

        if (!larger)
            return -ENOMEM;
        s->entries = larger;
        s->room = room;
    }
    e = calloc(1, sizeof(*e));
    if (!e)
        return -ENOMEM;
    memcpy(e->id, id, MANIFEST_ID_SIZE);
    s->entries[s->n_entries++] = e;
    *ret = e;
    return 0;
}

int store_insert(struct snapshot_store *s, const struct snapshot_manifest *m)
{
    struct entry *e;
    int r = add_entry(s, m->info.id, &e);

    if (r < 0)
        return r;
    e->info = m->info;
    e->info.meta = NULL;
    memcpy(e->parent, m->info.parent.snapshot_id, MANIFEST_ID_SIZE);
    memcpy(e->template_id, m->info.parent.template_id, MANIFEST_ID_SIZE);
    return 0;
}

void store_forget(struct snapshot_store *s, struct entry *e)
{
    for (size_t i = 0; i < s->n_entries; i++)
        if (s->entries[i] == e) {
            s->entries[i] = s->entries[--s->n_entries];
            free(e);
            return;
        }
}

int store_pin(struct snapshot_store *s, const char *id, bool removed_too)
{
    struct entry *e;
    int r = -ENOENT;

    if (s->read_only)
        return 0; /* it keeps files by having them open */
    (void)pthread_mutex_lock(&s->lock);
    e = store_find(s, id);
    if (e && (removed_too || !e->removed)) {
        e->pins++;
        r = 0;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return r;
}

void store_unpin(struct snapshot_store *s, const char *id)
{
    struct entry *e;

    (void)pthread_mutex_lock(&s->lock);
    e = store_find(s, id);
    if (e && --e->pins == 0 && e->removed)
        (void)store_sweep(s);
    (void)pthread_mutex_unlock(&s->lock);
}

void snapshot_note_use(struct snapshot_store *s, const char *id)
{
    struct entry *e;

    (void)pthread_mutex_lock(&s->lock);
    e = store_find(s, id);
    if (e)
        e->info.opened_wall_usec = clock_wall_usec();
    (void)pthread_mutex_unlock(&s->lock);
}

/* ---- small files ---- */

int store_sync_dir(const char *dir)
{
    _cleanup_close_ int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    return fsync(fd) < 0 ? -errno : 0;
}

int store_write_file(const char *dir, const char *name, const void *data, size_t size,
                     struct error *err)
{
    _cleanup_free_ char *path = string_printf("%s/%s", dir, name);
    _cleanup_close_ int fd = -EBADF;
    int r;

    if (!path)
        return error_set(err, ENOMEM, "out of memory");
    r = store_step("create");
    if (r >= 0) {
        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
        r = fd < 0 ? -errno : store_step("write");
    }
    if (r >= 0)
        r = fd_write_full(fd, data, size);
    if (r >= 0)
        r = store_step("sync");
    if (r >= 0 && fsync(fd) < 0)
        r = -errno;
    if (r < 0)
        return error_set(err, -r, "write '%s': %s", path, errno_text(-r));
    return 0;
}

int store_write_map(const char *dir, const char *name, const struct map *map,
                    struct manifest_file *ret, struct error *err)
{
    _cleanup_free_ uint8_t *data = NULL;
    size_t size;
    int r = map_encode(map, &data, &size, err);

    if (r >= 0)
        r = store_write_file(dir, name, data, size, err);
    if (r < 0)
        return r;
    (void)snprintf(ret->name, sizeof(ret->name), "%s", name);
    ret->size_bytes = size;
    blake_text(data, size, ret->digest);
    return 0;
}

static uint64_t dir_bytes(const char *dir, bool own)
{
    DIR *d = opendir(dir);
    uint64_t bytes = 0;

    if (!d)
        return 0;
    for (;;) {
        struct dirent *entry = readdir(d);
        struct stat st;

        if (!entry)
            break;
        if (fstatat(dirfd(d), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(st.st_mode) && (!own || st.st_nlink == 1))
            bytes += (uint64_t)st.st_blocks * 512;
    }
    (void)closedir(d);
    return bytes;
}

uint64_t store_dir_bytes(const char *dir)
{
    return dir_bytes(dir, /* own= */ false);
}

uint64_t store_dir_own_bytes(const char *dir)
{
    return dir_bytes(dir, /* own= */ true);
}

/* ---- open ---- */

static int load_entry(struct snapshot_store *s, const char *id)
{
    _cleanup_free_ char *dir = store_dir(s, "", id);
    _cleanup_free_ char *mark = dir ? string_printf("%s/" STORE_REMOVED, dir) : NULL;
    struct snapshot_manifest m = {0};
    struct error why = {0};
    struct entry *e;
    int r;

    if (!mark)
        return -ENOMEM;
    r = snapshot_manifest_read(dir, id, &m, &why);
    if (r >= 0) {
        r = store_insert(s, &m);
        snapshot_manifest_done(&m);
        if (r < 0)
            return r;
        e = s->entries[s->n_entries - 1];
    } else {
        log_debug("Snapshot '%s': %s", id, why.text);
        r = add_entry(s, id, &e);
        if (r < 0)
            return r;
        e->broken = true;
    }
    e->info.stored_bytes = store_dir_bytes(dir);
    e->removed = file_exists(mark);
    return 0;
}

static bool is_leftover(const char *name)
{
    return string_starts_with(name, STORE_NEW_PREFIX) ||
           string_starts_with(name, STORE_GONE_PREFIX);
}

static int load_root(struct snapshot_store *s, struct error *err)
{
    DIR *d = opendir(s->root);
    int r = 0;

    if (!d)
        return error_set(err, errno, "open snapshot store '%s': %s", s->root, errno_text(errno));
    while (r >= 0) {
        struct dirent *entry = readdir(d);

        if (!entry)
            break;
        if (is_leftover(entry->d_name)) {
            _cleanup_free_ char *path = store_dir(s, "", entry->d_name);

            r = path ? dir_remove(path, err) : -ENOMEM;
        } else if (strlen(entry->d_name) == MANIFEST_ID_SIZE - 1 && name_is_valid(entry->d_name)) {
            r = load_entry(s, entry->d_name);
        }
    }
    (void)closedir(d);
    return error_fill(err, r, "open snapshot store '%s'", s->root);
}

static int open_store(const char *root, const char *templates, bool read_only,
                      struct snapshot_store **ret, struct error *err)
{
    struct snapshot_store *s = calloc(1, sizeof(*s));
    int r;

    if (!s || sodium_init() < 0) {
        free(s);
        return error_set(err, ENOMEM, "open snapshot store: out of memory");
    }
    (void)pthread_mutex_init(&s->lock, NULL);
    s->read_only = read_only;
    s->root = strdup(root);
    s->templates = strdup(templates);
    if (!s->root || !s->templates)
        r = error_set(err, ENOMEM, "open snapshot store: out of memory");
    else
        r = read_only ? 0 : dir_create(root, 0700, err);
    if (r >= 0 && !read_only)
        r = scan_probe(root, err);
    if (r >= 0 && !read_only)
        r = load_root(s, err);
    if (r >= 0)
        (void)snapshot_collect(s, NULL, NULL); /* whoever had a removed one open died with it */
    if (r < 0) {
        (void)snapshot_store_close(s);
        return r;
    }
    *ret = s;
    return 0;
}

int snapshot_store_open(const char *root, const char *templates, struct snapshot_store **ret,
                        struct error *err)
{
    return open_store(root, templates, /* read_only= */ false, ret, err);
}

int snapshot_store_open_read_only(const char *root, const char *templates,
                                  struct snapshot_store **ret, struct error *err)
{
    return open_store(root, templates, /* read_only= */ true, ret, err);
}

struct snapshot_store *snapshot_store_close(struct snapshot_store *s)
{
    if (!s)
        return NULL;
    for (size_t i = 0; i < s->n_entries; i++)
        free(s->entries[i]);
    free(s->entries);
    free(s->root);
    free(s->templates);
    (void)pthread_mutex_destroy(&s->lock);
    free(s);
    return NULL;
}

/* ---- list ---- */

int snapshot_each(struct snapshot_store *s, snapshot_each_fn fn, void *userdata, struct error *err)
{
    char(*ids)[MANIFEST_ID_SIZE];
    size_t count = 0;

    (void)pthread_mutex_lock(&s->lock);
    ids = calloc(s->n_entries + 1, sizeof(*ids));
    for (size_t i = 0; ids && i < s->n_entries; i++)
        if (!s->entries[i]->removed && !s->entries[i]->broken)
            memcpy(ids[count++], s->entries[i]->id, MANIFEST_ID_SIZE);
    (void)pthread_mutex_unlock(&s->lock);
    if (!ids)
        return error_set(err, ENOMEM, "list snapshots: out of memory");
    for (size_t i = 0; i < count; i++) {
        _cleanup_free_ char *dir = store_dir(s, "", ids[i]);
        struct snapshot_manifest m;
        struct entry *e;

        /* One that went in the meantime is no longer listed. */
        if (!dir || snapshot_manifest_read(dir, ids[i], &m, NULL) < 0)
            continue;
        (void)pthread_mutex_lock(&s->lock);
        e = store_find(s, ids[i]);
        if (e) {
            m.info.stored_bytes = e->info.stored_bytes;
            m.info.opened_wall_usec = e->info.opened_wall_usec;
        }
        (void)pthread_mutex_unlock(&s->lock);
        if (e)
            fn(&m.info, userdata);
        snapshot_manifest_done(&m);
    }
    free(ids);
    return 0;
}

bool snapshot_template_in_use(struct snapshot_store *s, const char *template_id)
{
    bool used = false;

    (void)pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->n_entries && !used; i++)
        used = strcmp(s->entries[i]->template_id, template_id) == 0;
    (void)pthread_mutex_unlock(&s->lock);
    return used;
}

uint64_t snapshot_store_bytes(struct snapshot_store *s)
{
    uint64_t bytes;

    (void)pthread_mutex_lock(&s->lock);
    bytes = store_used(s);
    (void)pthread_mutex_unlock(&s->lock);
    return bytes;
}

unsigned snapshot_depth(struct snapshot_store *s, const char *id)
{
    unsigned depth = 0;

    (void)pthread_mutex_lock(&s->lock);
    for (struct entry *e = store_find(s, id); e && depth < SNAPSHOT_CHAIN_MAX; depth++)
        e = e->parent[0] ? store_find(s, e->parent) : NULL;
    (void)pthread_mutex_unlock(&s->lock);
    return depth;
}
