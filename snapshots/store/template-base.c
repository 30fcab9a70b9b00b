#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"
#include "store/store-internal.h"

/*
 * The bottom of a chain is the memory of a template: large, never changed. Reading all of it for
 * every restore would cost more than the restore, so this process remembers what it has verified by
 * what stat() says of the file; a write to it changes at least its ctime.
 */
#define VERIFIED_MAX 64u
#define TEMPLATE_MANIFEST_MAX (64u * 1024u)

struct verified {
    struct stat st;
    char digest[DIGEST_TEXT_SIZE];
};

static pthread_mutex_t verified_lock = PTHREAD_MUTEX_INITIALIZER;
static struct verified verified[VERIFIED_MAX];
static unsigned verified_next;

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

static bool is_verified(const struct stat *st, const char *digest)
{
    bool found = false;

    (void)pthread_mutex_lock(&verified_lock);
    for (size_t i = 0; i < VERIFIED_MAX && !found; i++)
        found = same_file(&verified[i].st, st) && strcmp(verified[i].digest, digest) == 0;
    (void)pthread_mutex_unlock(&verified_lock);
    return found;
}

static void set_verified(const struct stat *st, const char *digest)
{
    (void)pthread_mutex_lock(&verified_lock);
    verified[verified_next].st = *st;
    memcpy(verified[verified_next].digest, digest, DIGEST_TEXT_SIZE);
    verified_next = (verified_next + 1) % VERIFIED_MAX;
    (void)pthread_mutex_unlock(&verified_lock);
}

void template_base_done(struct template_base *b)
{
    free(b->memory);
    b->memory = NULL;
}

static int check_memory(const char *path, const struct manifest_file *file, bool digest,
                        struct error *err)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    char found[DIGEST_TEXT_SIZE];
    struct stat st, after;
    int r;

    if (fd < 0 && errno == ENOENT)
        return error_set_code(err, ERR_SNAPSHOT_INVALID, "'%s' is missing", path);
    if (fd < 0 || fstat(fd, &st) < 0)
        return error_set(err, errno, "open '%s': %s", path, errno_text(errno));
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != file->size_bytes)
        return error_set_code(err, ERR_SNAPSHOT_INVALID,
                              "'%s' has %llu bytes, its manifest says %llu", path,
                              (unsigned long long)st.st_size, (unsigned long long)file->size_bytes);
    /* A template from before memory was digested: its size is all there is to check. */
    if (!digest || !file->digest[0] || is_verified(&st, file->digest))
        return 0;
    r = blake_fd(fd, found);
    if (r >= 0 && fstat(fd, &after) < 0)
        r = -errno;
    if (r < 0)
        return error_set(err, -r, "read '%s': %s", path, errno_text(-r));
    if (strcmp(found, file->digest) != 0)
        return error_set_code(err, ERR_SNAPSHOT_INVALID,
                              "'%s' is damaged: it does not have the digest of its manifest", path);
    if (same_file(&st, &after))
        set_verified(&st, file->digest);
    return 0;
}

int template_base_open(const char *templates, const char *id, bool digest,
                       struct template_base *ret, struct error *err)
{
    _cleanup_(template_base_done) struct template_base base = {0};
    _cleanup_free_ char *path = string_printf("%s/%s/manifest.json", templates, id);
    _cleanup_free_ char *text = NULL;
    const struct manifest_file *memory = NULL;
    struct manifest m;
    struct error why = {0};
    size_t size;
    int r;

    base.memory = string_printf("%s/%s/" SNAPSHOT_MEMORY, templates, id);
    if (!path || !base.memory)
        return error_set(err, ENOMEM, "out of memory");
    r = file_read(path, TEMPLATE_MANIFEST_MAX, &text, &size, &why);
    if (r == -ENOENT)
        return error_set_code(err, ERR_SNAPSHOT_INVALID, "its template '%s' is missing", id);
    if (r < 0)
        return error_set(err, -r, "%s", why.text);
    r = manifest_parse(text, size, &m, &why);
    if (r < 0)
        return error_set_code(err, ERR_SNAPSHOT_INVALID, "its template: '%s': %s", path, why.text);
    if (strcmp(m.id, id) != 0)
        return error_set_code(err, ERR_SNAPSHOT_INVALID, "its template: '%s' is that of '%s'", path,
                              m.id);
    for (size_t i = 0; i < m.n_files; i++)
        if (strcmp(m.files[i].name, SNAPSHOT_MEMORY) == 0)
            memory = &m.files[i];
    if (!memory)
        return error_set_code(err, ERR_SNAPSHOT_INVALID, "its template: '%s' has no memory", path);
    r = check_memory(base.memory, memory, digest, err);
    if (r < 0) {
        error_wrap(err, "its template");
        return r;
    }
    blake_text(text, size, base.seal);
    base.memory_bytes = memory->size_bytes;
    *ret = base;
    base.memory = NULL;
    return 0;
}
