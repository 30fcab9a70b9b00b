#pragma once

#include <jansson.h>

#include "host/files.h"

/* EntryInfo of the service filesystem.Filesystem. */

/*
 * `path` is the whole path; `target` (may be NULL) is what a symlink leads to, as file_stat() with
 * follow found it. NULL: out of memory.
 */
json_t *entry_to_json(const struct file_info *info, const char *path,
                      const struct file_info *target);
/* "-rw-r--r--"; a symlink begins with 'L'. */
void entry_permissions(const struct file_info *info, char ret[static 16]);
