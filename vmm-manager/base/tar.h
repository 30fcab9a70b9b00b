#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"

/* Writing tar archives: a header for each entry, its content padded to whole blocks, two empty
 * blocks at the end. Names of any length and bytes, large numbers and extended attributes go into
 * a pax header before it. */
#define TAR_BLOCK 512u

enum tar_type {
    TAR_FILE = '0',
    TAR_HARDLINK = '1',
    TAR_SYMLINK = '2',
    TAR_CHAR = '3',
    TAR_BLOCKDEV = '4',
    TAR_DIR = '5',
    TAR_FIFO = '6',
};

struct tar_xattr {
    const char *name;
    const void *value;
    size_t size;
};

/* Strings are weak. */
struct tar_entry {
    const char *path;
    const char *target; /* of links; NULL otherwise */
    enum tar_type type;
    unsigned mode; /* permission bits */
    uint64_t uid, gid;
    uint64_t size; /* of a file */
    int64_t mtime;
    uint32_t mtime_nsec;
    unsigned major, minor; /* of devices */
    const struct tar_xattr *xattrs;
    size_t n_xattrs;
};

/* The type of a file of this mode; false: archives have none (a socket). */
bool tar_type_of(mode_t mode, enum tar_type *ret);
/* Appends the header. -ENOBUFS, -ENOMEM. */
int tar_put_header(struct buf *out, const struct tar_entry *entry);
/* Bytes of padding behind content of this size. */
size_t tar_padding(uint64_t size);
/* Appends what ends an archive. */
int tar_put_end(struct buf *out);
