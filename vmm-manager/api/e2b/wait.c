#include "api/e2b/wait.h"

#include <stdlib.h>

struct e2b_wait {
    struct request *req;       /* weak */
    struct sandbox_wait *wait; /* owned */
    e2b_ready_fn fn;
    e2b_failed_fn failed;
};

static void wait_free(struct e2b_wait *w)
{
    w->wait = sandbox_wait_free(w->wait);
    free(w);
}

static void on_over(void *state, enum request_end why)
{
    (void)why;
    wait_free(state);
}

static void on_done(struct sandbox *sb, const struct error *err, void *userdata)
{
    struct e2b_wait *w = userdata;
    struct request *req = w->req;
    e2b_ready_fn fn = w->fn;
    e2b_failed_fn failed = w->failed;
    struct error why = {0};

    if (err)
        error_copy(&why, err);
    request_own(req, NULL, NULL);
    wait_free(w);
    if (err)
        failed(req, &why);
    else
        fn(req, sb, /* woken= */ true);
}

static void wait_start(struct request *req, struct sandbox *sb, bool sleep, e2b_ready_fn fn,
                       e2b_failed_fn failed)
{
    static const struct sandbox_wait_callbacks callbacks = {.on_done = on_done};
    struct e2b_wait *w = calloc(1, sizeof(*w));
    struct error err = {0};
    int r;

    if (!w) {
        (void)error_set(&err, ENOMEM, "out of memory");
        failed(req, &err);
        return;
    }
    w->req = req;
    w->fn = fn;
    w->failed = failed;
    r = sleep ? sandbox_hibernate(sb, &callbacks, w, &w->wait, &err)
              : sandbox_touch(sb, &callbacks, w, &w->wait, &err);
    if (r == 0) {
        request_own(req, w, on_over);
        return;
    }
    wait_free(w);
    if (r < 0)
        failed(req, &err);
    else
        fn(req, sb, /* woken= */ false);
}

void e2b_touch(struct request *req, struct sandbox *sb, e2b_ready_fn fn, e2b_failed_fn failed)
{
    wait_start(req, sb, /* sleep= */ false, fn, failed);
}

void e2b_sleep(struct request *req, struct sandbox *sb, e2b_ready_fn fn, e2b_failed_fn failed)
{
    wait_start(req, sb, /* sleep= */ true, fn, failed);
}
