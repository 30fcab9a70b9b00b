#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"

/*
 * Writes a newc cpio archive, the form the kernel unpacks as initramfs. The bytes depend on the
 * calls alone: owner root, time 0, inode numbers counted up.
 */
struct cpio {
    struct buf *out; /* weak */
    uint32_t next_inode;
};

void cpio_init(struct cpio *c, struct buf *out);
/* Each returns -ENOBUFS when the archive would pass the buffer's limit. */
int cpio_add_dir(struct cpio *c, const char *name, mode_t mode);
int cpio_add_file(struct cpio *c, const char *name, mode_t mode, const void *data, size_t size);
int cpio_add_char_device(struct cpio *c, const char *name, mode_t mode, uint32_t major_number,
                         uint32_t minor_number);
int cpio_finish(struct cpio *c);
