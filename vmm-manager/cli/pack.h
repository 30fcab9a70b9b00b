#pragma once

#include "base/error.h"

/*
 * Writes a directory of this host as a tar: files, directories, links and devices with their modes
 * and times. `extra` (may be NULL) is one more file, by what it is called there and its content.
 */
struct pack_file {
    const char *name, *data;
    size_t size;
};
int pack_dir(const char *dir, const struct pack_file *extra, int fd, struct error *err);
