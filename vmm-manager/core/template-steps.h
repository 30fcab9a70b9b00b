#pragma once

#include "base/worker.h"
#include "core/recipe.h"
#include "host/console.h"

/* The steps of a recipe in the guest that becomes a template. Owned by the caller. */
struct template_steps;

struct template_steps_callbacks {
    void (*on_progress)(const char *step, int percent, void *userdata);
    /* The end of what a command printed that failed. */
    void (*on_output)(const char *text, size_t size, void *userdata);
    /* Once, from the loop; template_steps_free() is legal inside. */
    void (*on_done)(const struct error *err, void *userdata);
};

/* `recipe`, `console`, `loop` and `workers` are weak and outlive it. */
int template_steps_new(const struct recipe *recipe, struct console *console, struct loop *loop,
                       struct workers *workers, const struct template_steps_callbacks *cb,
                       void *userdata, struct template_steps **ret, struct error *err);
/* Together with its console, or after on_done. Always NULL. */
struct template_steps *template_steps_free(struct template_steps *s);
