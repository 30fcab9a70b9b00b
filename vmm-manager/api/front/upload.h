#pragma once

#include "host/files.h"

/*
 * One file written into a guest: as the user first, and where the user may not, as root with the
 * user as the new owner (what E2B's clients expect of uploads). Owned by whoever started it.
 */
struct upload;

struct upload_ops {
    /* It takes more now. */
    void (*writable)(void *owner);
    /* Written (err NULL), or failed; the last call. upload_free() is legal inside. */
    void (*done)(void *owner, const struct error *err);
};

struct upload_target {
    struct console *c;
    const char *user; /* of the guest */
    uint32_t uid, gid;
    const char *path; /* absolute */
};
int upload_start(const struct upload_target *target, const struct upload_ops *ops, void *owner,
                 struct upload **ret, struct error *err);
/* Takes some and returns how much. */
size_t upload_write(struct upload *u, const uint8_t *data, size_t size);
/* No more follows. */
void upload_finish(struct upload *u);
struct upload *upload_free(struct upload *u); /* always NULL */
