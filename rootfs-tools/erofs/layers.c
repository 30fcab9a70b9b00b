#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"
#include "erofs/packs.h"
#include "erofs/store.h"
#include "layers/layer.h"

/* Layers in the store: which there are, and which nobody needs any more. */

int store_layer_paths(const char *diff_id, char pack[256], char index[256], struct error *err)
{
    int r = store_hash_path(pack, "layers", diff_id + 7, ".pack", err);

    return r < 0 ? r : store_hash_path(index, "layers", diff_id + 7, ".index", err);
}

int store_add_layer(const char *made_pack, const char *made_index, const char *diff_id,
                    struct error *err)
{
    char pack[256], index[256];
    int r = store_layer_paths(diff_id, pack, index, err);

    if (r == 0)
        r = fault_check("layer-store", err);
    if (r < 0)
        return r;
    if (chmod(made_pack, 0444) < 0 || rename(made_pack, pack) < 0)
        return error_set(err, errno, "rename '%s': %s", made_pack, errno_text(errno));
    r = fault_check("layer-half", err);
    if (r == 0 && rename(made_index, index) < 0)
        r = error_set(err, errno, "rename '%s': %s", made_index, errno_text(errno));
    return r < 0 ? r : fault_check("layer-stored", err);
}

/*
 * The index is renamed into place last. Both are as long as the index says unless the machine went
 * down before they were on disk; then the layer counts as missing and is brought again.
 */
bool store_has_layer(const char *diff_id)
{
    char pack[256], index[256];
    struct layer layer;

    if (store_layer_paths(diff_id, pack, index, NULL) < 0 ||
        layer_open(pack, index, &layer, NULL) < 0)
        return false;
    layer_close(&layer);
    return true;
}

bool store_layers_in_blocks(char *const *layers)
{
    bool good = true;
    char pack[256], index[256];
    struct layer layer;

    for (size_t i = 0; good && layers && layers[i]; i++) {
        good = store_layer_paths(layers[i], pack, index, NULL) == 0 &&
               layer_open(pack, index, &layer, NULL) == 0;
        if (good) {
            good = layer.in_blocks;
            layer_close(&layer);
        }
    }
    return good;
}

uint64_t store_layers_bytes(char *const *layers)
{
    uint64_t total = 0;
    char pack[256], index[256];
    struct layer layer;

    for (size_t i = 0; layers && layers[i]; i++)
        if (store_layer_paths(layers[i], pack, index, NULL) == 0 &&
            layer_open(pack, index, &layer, NULL) == 0) {
            total += (uint64_t)lseek(layer.pack_fd, 0, SEEK_END);
            layer_close(&layer);
        }
    return total;
}

/* Layers that some name needs. */
static int needed_by_names(char ***ret_layers)
{
    _cleanup_free_ struct image *images = NULL;
    size_t count = 0;
    int r = image_list(&images, &count, NULL);

    for (size_t i = 0; r == 0 && i < count; i++) {
        _cleanup_record_ struct record record = {0};

        if (images[i].n_layers > 0)
            r = record_find(images[i].name, &record, NULL);
        for (size_t k = 0; r == 0 && record.layers && record.layers[k]; k++)
            r = strv_append(ret_layers, record.layers[k] + 7);
    }
    return r;
}

/* What sandboxes and snapshots stand on may have no name any more: its file is kept, and so this.
 */
static int needed_by_files(char ***ret_layers)
{
    struct dirent *entry;
    char path[256];
    DIR *dir;
    int r = store_path(path, "blobs", NULL);

    dir = r == 0 ? opendir(path) : NULL;
    if (r == 0 && !dir && errno != ENOENT)
        r = -errno;
    while (dir && r == 0 && (entry = readdir(dir))) {
        struct image_packs packs = {0};

        if (strlen(entry->d_name) != 64 + strlen(".erofs"))
            continue;
        r = store_hash_path(path, "blobs", entry->d_name, ".erofs", NULL);
        /* One that is damaged is no good with its packs either. */
        if (r == 0 && image_packs_read(path, &packs, NULL) < 0)
            continue;
        for (size_t i = 0; r == 0 && i < packs.n; i++)
            r = strv_append(ret_layers, packs.pack[i].sha256);
    }
    if (dir)
        (void)closedir(dir);
    return r;
}

static bool is_needed(char *const *list, const char *file)
{
    for (size_t i = 0; list && list[i]; i++)
        if (strncmp(list[i], file, 64) == 0)
            return true;
    return false;
}

static void sweep(const char *sub, char *const *keep)
{
    char path[256];
    struct dirent *entry;
    DIR *dir;

    if (store_path(path, sub, NULL) < 0)
        return;
    dir = opendir(path);
    while (dir && (entry = readdir(dir))) {
        if (strlen(entry->d_name) >= 64 && !is_needed(keep, entry->d_name))
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
    }
    if (dir)
        (void)closedir(dir);
}

void store_collect(void)
{
    _cleanup_strv_ char **layers = NULL;
    _cleanup_close_ int fd = -EBADF;
    char path[256];

    if (store_path(path, ".hold", NULL) < 0)
        return;
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0)
        return; /* somebody works with layers that have no name yet; the next one collects */
    if (needed_by_names(&layers) < 0 || needed_by_files(&layers) < 0)
        return;
    sweep("layers", layers);
}

void store_tidy(void)
{
    _cleanup_close_ int lock = -EBADF;

    if (store_lock(&lock, NULL) == 0)
        store_collect();
}
