#include "api/front/touch.h"

#include <stdlib.h>

/* A request that waits for its sandbox. */
struct touch {
    struct request *req;       /* weak */
    struct sandbox_wait *wait; /* owned */
    struct touch_ops ops;
};

static void on_over(void *state, enum request_end why)
{
    struct touch *t = state;

    (void)why;
    t->wait = sandbox_wait_free(t->wait);
    free(t);
}

/* The wait is over, or there was none: whoever asked has the request again. */
static void answer(struct request *req, const struct touch_ops *ops, struct sandbox *sb,
                   bool waited, const struct error *err)
{
    if (err && ops->failed)
        ops->failed(req, err);
    else if (err)
        request_answer_error(req, err);
    else if (ops->go)
        ops->go(req);
    else
        ops->ready(req, sb, waited);
}

static void on_done(struct sandbox *sb, const struct error *err, void *userdata)
{
    struct touch t = *(struct touch *)userdata;
    struct error why = {0};

    error_copy(&why, err);
    request_own(t.req, NULL, NULL);
    on_over(userdata, REQUEST_DONE);
    answer(t.req, &t.ops, sb, /* waited= */ true, err ? &why : NULL);
}

static void start(struct request *req, struct sandbox *sb, bool sleep, const struct touch_ops *ops)
{
    static const struct sandbox_wait_callbacks callbacks = {NULL, on_done};
    struct touch *t = calloc(1, sizeof(*t));
    struct error err = {0};
    int r = -ENOMEM;

    if (t) {
        *t = (struct touch){.req = req, .ops = *ops};
        r = sleep ? sandbox_hibernate(sb, &callbacks, t, &t->wait, &err)
                  : sandbox_touch(sb, &callbacks, t, &t->wait, &err);
    }
    if (r == 0) {
        request_own(req, t, on_over);
        return;
    }
    free(t);
    if (r < 0)
        (void)error_fill(&err, r, "sandbox '%s'", sandbox_id(sb));
    answer(req, ops, sb, /* waited= */ false, r < 0 ? &err : NULL);
}

void touch_then(struct request *req, struct sandbox *sb, void (*go)(struct request *req))
{
    const struct touch_ops ops = {.go = go};

    start(req, sb, /* sleep= */ false, &ops);
}

void touch_wait(struct request *req, struct sandbox *sb, const struct touch_ops *ops)
{
    start(req, sb, /* sleep= */ false, ops);
}

void sleep_wait(struct request *req, struct sandbox *sb, const struct touch_ops *ops)
{
    start(req, sb, /* sleep= */ true, ops);
}
