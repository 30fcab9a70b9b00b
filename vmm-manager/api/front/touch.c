#include "api/front/touch.h"

#include <stdlib.h>

/* A request that waits for its sandbox. */
struct touch {
    struct request *req;       /* weak */
    struct sandbox_wait *wait; /* owned */
    void (*go)(struct request *req);
};

static void on_over(void *state, enum request_end why)
{
    struct touch *t = state;

    (void)why;
    t->wait = sandbox_wait_free(t->wait);
    free(t);
}

static void on_done(struct sandbox *sb, const struct error *err, void *userdata)
{
    struct touch *t = userdata;
    struct request *req = t->req;
    void (*go)(struct request *) = t->go;

    (void)sb;
    request_own(req, NULL, NULL);
    on_over(t, REQUEST_DONE);
    if (err)
        request_answer_error(req, err);
    else
        go(req);
}

void touch_then(struct request *req, struct sandbox *sb, void (*go)(struct request *req))
{
    static const struct sandbox_wait_callbacks callbacks = {NULL, on_done};
    struct touch *t = calloc(1, sizeof(*t));
    struct error err = {0};
    int r = -ENOMEM;

    if (t) {
        t->req = req;
        t->go = go;
        r = sandbox_touch(sb, &callbacks, t, &t->wait, &err);
    }
    if (r == 0) {
        request_own(req, t, on_over);
        return;
    }
    free(t);
    if (r < 0) {
        (void)error_fill(&err, r, "sandbox '%s'", sandbox_id(sb));
        request_answer_error(req, &err);
    } else {
        go(req);
    }
}
