#include "core/events.h"

#include <stdlib.h>

#include "core/sandbox-private.h"

struct core_listener {
    struct core *core; /* weak */
    core_change_fn fn;
    void *userdata;
    struct core_listener *prev, *next; /* in core->listeners */
};

int core_listen(struct core *core, core_change_fn fn, void *userdata, struct core_listener **ret)
{
    struct core_listener *l = calloc(1, sizeof(*l));

    if (!l)
        return -ENOMEM;
    *l = (struct core_listener){core, fn, userdata, NULL, core->listeners};
    if (l->next)
        l->next->prev = l;
    core->listeners = l;
    *ret = l;
    return 0;
}

struct core_listener *core_listener_free(struct core_listener *l)
{
    if (!l)
        return NULL;
    if (l->core->telling == l)
        l->core->telling = l->next;
    if (l->prev)
        l->prev->next = l->next;
    else
        l->core->listeners = l->next;
    if (l->next)
        l->next->prev = l->prev;
    free(l);
    return NULL;
}

void core_tell(const struct sandbox *sb, const char *what)
{
    struct core *core = sb->core;

    if (core->closing || sb->pooled) /* nobody knows of that one yet */
        return;
    /* `telling` is who comes next: a listener that is freed meanwhile moves it on. */
    for (core->telling = core->listeners; core->telling;) {
        struct core_listener *l = core->telling;

        core->telling = l->next;
        l->fn(sb, what, l->userdata);
    }
}
