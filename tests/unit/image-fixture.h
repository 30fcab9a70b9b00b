#pragma once

#include <archive.h>
#include <stddef.h>
#include <sys/stat.h>
#include <time.h>

#include "base/error.h"
#include "erofs/image.h"

/* An image store in a temporary directory, and archives to fill it with. */

extern char cache[128], scratch[128], tar_path[192];

/* Empties both directories and makes the cache that of this process. Comes first in each test. */
void fresh(void);
/* Path in the scratch directory, owned by the caller. */
char *in_scratch(const char *name);

struct item {
    const char *name;
    mode_t mode;         /* with the type; 0: a hard link */
    const char *content; /* of a file, target of a link */
    time_t mtime;
};

#define DIR_ITEM(n)                                                                                \
    {                                                                                              \
        .name = n, .mode = S_IFDIR | 0755, .mtime = 1000                                           \
    }
#define FILE_ITEM(n, c)                                                                            \
    {                                                                                              \
        .name = n, .mode = S_IFREG | 0644, .content = c, .mtime = 2000                             \
    }

/* A small root file system with a symlink, a hard link and a set-uid program. */
#define PLAIN_COUNT 8
extern const struct item plain[PLAIN_COUNT];

/* Writes tar_path, at once or entry by entry with one of ARCHIVE_FILTER_*. */
void make_tar(const struct item *items, size_t count);
struct archive *tar_open(int filter);
void tar_add(struct archive *a, const struct item *item);
void tar_close(struct archive *a);

/* image_import without progress. */
int import(const char *name, const char *source, struct image *ret, struct error *err);

/* Files and directories below dir. */
size_t count_files(const char *dir);
/* Nothing but the store's own three directories and its two locks. */
void assert_store_is_empty(void);
