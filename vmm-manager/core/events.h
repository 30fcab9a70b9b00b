#pragma once

#include "core/core.h"

/*
 * Who wants to hear of every change of every sandbox: it is in another state, or gone. Called from
 * where it happens: a listener only takes a note. Of what was there before, it hears nothing.
 */
struct core_listener;

/* `what` is the name of its new state, or "removed": then this is the last word of it. */
typedef void (*core_change_fn)(const struct sandbox *sb, const char *what, void *userdata);

int core_listen(struct core *core, core_change_fn fn, void *userdata, struct core_listener **ret);
/* Legal inside a call. Always NULL. */
struct core_listener *core_listener_free(struct core_listener *listener);

/* Of the core: tells all. */
void core_tell(const struct sandbox *sb, const char *what);
