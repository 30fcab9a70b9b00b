#pragma once

#include "base/loop.h"
#include "host/console.h"

/*
 * Makes a freshly booted, thawed guest ready to be saved as a template: runs the image's shell
 * once, so that its pages and those of the guest's own ways are in the memory that all clones
 * share, then freezes it. A shell that is missing or fails is no error. Owned by the caller;
 * freeing cancels.
 */
struct template_warm;

typedef void (*template_warm_fn)(const struct error *err, void *userdata);

int template_warm_new(struct console *console, uint64_t deadline_usec, template_warm_fn done,
                      void *userdata, struct template_warm **ret, struct error *err);
struct template_warm *template_warm_free(struct template_warm *w);
