#include <stdlib.h>

#include "core/sandbox-private.h"

/* Owned by whoever made it; the sandbox only lists it. */
struct sandbox_watch {
    struct sandbox *sandbox; /* weak; NULL once told */
    sandbox_gone_fn gone;
    void *userdata;
    struct sandbox_watch *next;
};

int sandbox_watch_new(struct sandbox *sb, sandbox_gone_fn gone, void *userdata,
                      struct sandbox_watch **ret)
{
    struct sandbox_watch *w;

    if (!guest_link_console(sb->link))
        return -ENXIO;
    if (sb->n_watches >= CORE_WATCHES_MAX)
        return -EAGAIN;
    w = calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->sandbox = sb;
    w->gone = gone;
    w->userdata = userdata;
    w->next = sb->watches;
    sb->watches = w;
    sb->n_watches++;
    sandbox_used(sb);
    *ret = w;
    return 0;
}

static void unlist(struct sandbox_watch *w)
{
    for (struct sandbox_watch **p = &w->sandbox->watches; *p; p = &(*p)->next) {
        if (*p == w) {
            *p = w->next;
            w->sandbox->n_watches--;
            sandbox_used(w->sandbox);
            break;
        }
    }
    w->sandbox = NULL;
}

struct sandbox_watch *sandbox_watch_free(struct sandbox_watch *w)
{
    if (!w)
        return NULL;
    if (w->sandbox)
        unlist(w);
    free(w);
    return NULL;
}

void sandbox_notify_watches(struct sandbox *sb, const struct error *reason)
{
    while (sb->watches) {
        struct sandbox_watch *w = sb->watches;

        unlist(w);
        w->gone(sb, reason, w->userdata);
    }
}
