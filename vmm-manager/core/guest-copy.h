#pragma once

#include "base/loop.h"
#include "base/worker.h"
#include "host/console.h"

/*
 * Copies a file, link or directory of this host to exactly `to` in a guest, as root: modes are
 * kept, owners are root, what is there is replaced.
 */
struct guest_copy;

struct guest_copy_callbacks {
    void (*on_progress)(uint64_t done_bytes, uint64_t total_bytes, void *userdata);
    /* Once, from the loop; guest_copy_free() is legal inside. */
    void (*on_done)(const struct error *err, void *userdata);
};

/* `console` and `workers` are weak and outlive it. */
int guest_copy_new(struct console *console, struct workers *workers, const char *from,
                   const char *to, const struct guest_copy_callbacks *cb, void *userdata,
                   struct guest_copy **ret, struct error *err);
/* Breaks it off. Always NULL. */
struct guest_copy *guest_copy_free(struct guest_copy *copy);
