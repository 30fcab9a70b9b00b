#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/fd.h"
#include "erofs/format.h"
#include "erofs/store.h"
#include "erofs/writer.h"
#include "layers/stack.h"

/* From layers to the EROFS file that a sandbox boots from. */

static int make_ready(const struct record *record, const char *path, struct error *err)
{
    _cleanup_stack_ struct stack stack = {0};
    _cleanup_store_work_ struct store_work work = {.lock_fd = -EBADF};
    _cleanup_close_ int hold = -EBADF;
    _cleanup_free_ const char **packs = NULL;
    char made[272], sha256[65];
    uint64_t size;
    int r = store_hold(&hold, err);

    if (r == 0)
        r = stack_open(record->layers, &stack, err);
    if (r == 0)
        r = store_work_init(&work, err);
    if (r < 0)
        return r;
    (void)snprintf(made, sizeof(made), "%s/image", work.dir);
    store_layers_digest(record->layers, /* packs= */ true, sha256);
    if (strcmp(sha256, record->sha256) == 0) {
        packs = calloc(stack.n + 1, sizeof(packs[0]));
        if (!packs)
            return error_set(err, ENOMEM, "out of memory");
        for (size_t i = 0; i < stack.n; i++)
            packs[i] = record->layers[i] + strlen("sha256:");
    }
    r = fault_check("image-write", err);
    if (r == 0)
        r = erofs_write(stack.tree, stack.layers, stack.n, packs, made, &size, err);
    if (r == 0)
        r = fault_check("image-written", err);
    if (r < 0)
        return r;
    if (chmod(made, 0444) < 0 || rename(made, path) < 0)
        return error_set(err, errno, "rename '%s' to '%s': %s", made, path, errno_text(errno));
    (void)fault_at("image-stored");
    return 0;
}

/* A file beside, because the image's own times are watched. */
void image_note_use(const char *sha256)
{
    char path[256];

    if (store_hash_path(path, "blobs", sha256, ".used", NULL) < 0)
        return;
    if (utimensat(AT_FDCWD, path, NULL, 0) < 0) {
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

        (void)fd_close(fd);
    }
}

int image_ready(const char *name, struct image *ret, struct error *err)
{
    _cleanup_record_ struct record record = {0};
    _cleanup_close_ int lock = -EBADF;
    char lock_path[256];
    int r = image_find(name, ret, err);

    if (r < 0)
        return r;
    if (ret->ready) {
        image_note_use(ret->sha256);
        return 0;
    }
    /* One at a time makes it; the others wait and find it. */
    r = store_hash_path(lock_path, "blobs", ret->sha256, ".lock", err);
    if (r < 0)
        return r;
    lock = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock < 0 || flock(lock, LOCK_EX) < 0)
        return error_set(err, errno, "lock '%s': %s", lock_path, errno_text(errno));
    if (!store_is_whole(ret->path)) {
        r = record_find(name, &record, err);
        if (r == 0)
            r = make_ready(&record, ret->path, err);
    }
    (void)unlink(lock_path);
    if (r < 0) {
        error_wrap(err, "image '%s'", name);
        return r;
    }
    image_note_use(ret->sha256);
    return image_find(name, ret, err);
}
