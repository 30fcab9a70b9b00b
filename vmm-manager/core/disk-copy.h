#pragma once

#include "backend/backend.h"
#include "core/core.h"

/*
 * The writable disk of a new sandbox: a copy of a template's, or with `from` NULL an empty one of
 * disk_mib. `done` comes once from the loop, unless the core is being freed.
 */
struct disk_copy;

int disk_copy_start(struct core *core, const char *from, const char *to, uint32_t disk_mib,
                    backend_done_fn done, void *userdata, struct disk_copy **ret);
/* Only after `done`, or when the core ends. Always NULL. */
struct disk_copy *disk_copy_free(struct disk_copy *copy);
/* The core ends and its uring is gone: `done` will not come. NULL is fine. */
void disk_copy_quiesce(struct disk_copy *copy);
