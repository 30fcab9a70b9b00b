#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"
#include "store/sparse-digest.h"
#include "store/store-internal.h"
#include "store/verified.h"

/*
 * The bottom of a chain is the memory of a template: large, never changed. Reading all of it for
 * every restore would cost more than the restore, so it is read once per life of this process.
 */
#define TEMPLATE_MANIFEST_MAX (64u * 1024u)

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
    if (!digest || !file->digest[0] || verified_has(&st, file->digest))
        return 0;
    r = sparse_digest(fd, found);
    if (r >= 0 && fstat(fd, &after) < 0)
        r = -errno;
    if (r < 0)
        return error_set(err, -r, "read '%s': %s", path, errno_text(-r));
    if (strcmp(found, file->digest) != 0)
        return error_set_code(err, ERR_SNAPSHOT_INVALID,
                              "'%s' is damaged: it does not have the digest of its manifest", path);
    if (verified_same(&st, &after))
        verified_add(&st, file->digest);
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
