#include "api/native/handlers.h"
#include "api/native/work.h"

static const struct sandbox_wait_callbacks callbacks = {work_progress, work_sandbox_done};

typedef int (*sleep_fn)(struct sandbox *sb, const struct sandbox_wait_callbacks *cb, void *userdata,
                        struct sandbox_wait **ret, struct error *err);

static void sleep_with(struct request *req, sleep_fn fn)
{
    struct sandbox *sb = native_sandbox(req);
    struct work *w = sb ? work_new(req, "sandbox", 200) : NULL;
    struct error err = {0};
    int r;

    if (!w)
        return;
    r = fn(sb, &callbacks, w, &w->wait, &err);
    if (r < 0)
        work_fail(w, &err);
    else if (r > 0) /* it is what it shall be */
        work_sandbox_done(sb, NULL, w);
}

void handle_hibernate(struct request *req)
{
    sleep_with(req, sandbox_hibernate);
}

void handle_resume(struct request *req)
{
    sleep_with(req, sandbox_touch);
}
