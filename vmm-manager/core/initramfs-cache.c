#include "core/initramfs-cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/paths.h"
#include "base/strv.h"
#include "initramfs/initramfs.h"

void initramfs_cache_init(struct initramfs_cache *cache)
{
    *cache = (struct initramfs_cache){0};
    pthread_mutex_init(&cache->lock, NULL);
}

void initramfs_cache_done(struct initramfs_cache *cache)
{
    pthread_mutex_destroy(&cache->lock);
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* A file that is not there is all zeros: appearing is a change too. */
static void look(const char *dir, const char *name, struct stat *ret)
{
    _cleanup_free_ char *path = name ? string_printf("%s/%s", dir, name) : strdup(dir);

    if (!path || stat(path, ret) < 0)
        *ret = (struct stat){0};
}

static bool cache_fits(const struct initramfs_cache *cache, const struct kernel *kernel,
                       const struct stat *init, const struct stat *modules)
{
    return cache->valid && strcmp(cache->kernel_sha256, kernel->sha256) == 0 &&
           same_file(&cache->init, init) && same_file(&cache->modules, modules) &&
           file_exists(cache->path);
}

int initramfs_cache_get(struct initramfs_cache *cache, const struct kernel *kernel,
                        const char *init_path, char ret_path[256], char ret_sha256[65],
                        struct error *err)
{
    struct stat init, modules;
    int r = 0;

    look(init_path ? init_path : paths_program_dir(), init_path ? NULL : "hearth-init", &init);
    look(kernel->modules_dir, "modules.list", &modules);
    pthread_mutex_lock(&cache->lock);
    if (!cache_fits(cache, kernel, &init, &modules)) {
        cache->valid = false;
        r = initramfs_make(kernel, init_path, cache->path, cache->sha256, err);
        if (r >= 0) {
            cache->valid = true;
            memcpy(cache->kernel_sha256, kernel->sha256, sizeof(cache->kernel_sha256));
            cache->init = init;
            cache->modules = modules;
        }
    }
    if (r >= 0) {
        memcpy(ret_path, cache->path, sizeof(cache->path));
        memcpy(ret_sha256, cache->sha256, sizeof(cache->sha256));
    }
    pthread_mutex_unlock(&cache->lock);
    return r;
}
