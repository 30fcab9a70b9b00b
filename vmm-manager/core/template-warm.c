#include "core/template-warm.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/macros.h"
#include "host/exec.h"

#define WARM_MSEC 10000u /* for the shell; a slow one is killed in the guest */

struct template_warm {
    struct console *console; /* weak */
    struct exec *exec;       /* owned */
    uint64_t process_id;
    uint64_t deadline_usec;
    template_warm_fn done;
    void *userdata;
};

struct template_warm *template_warm_free(struct template_warm *w)
{
    if (!w)
        return NULL;
    (void)exec_free(w->exec);
    free(w);
    return NULL;
}

static void finish(struct template_warm *w, const struct error *err)
{
    w->done(err, w->userdata);
}

static void on_frozen(struct console *c, const struct error *err, void *userdata)
{
    (void)c;
    finish(userdata, err);
}

static void freeze(struct template_warm *w)
{
    struct error err = {0};
    int r = console_freeze(w->console, w->deadline_usec, on_frozen, w);

    if (r < 0) {
        (void)error_set(&err, -r, "freeze: %s", errno_text(-r));
        finish(w, &err);
    }
}

/* Also when it failed: there may have been nothing to release. */
static void on_released(struct console *c, const struct error *err, void *userdata)
{
    (void)c;
    if (err)
        log_debug("The warm-up's process was not released: %s", err->text);
    freeze(userdata);
}

static void release(struct template_warm *w)
{
    w->exec = exec_free(w->exec);
    if (w->process_id == 0 ||
        exec_release(w->console, w->process_id, w->deadline_usec, on_released, w) < 0)
        freeze(w);
}

static void on_started(struct exec *e, uint64_t process_id, uint32_t pid,
                       const struct exec_range ranges[EXEC_STREAMS_MAX], void *userdata)
{
    struct template_warm *w = userdata;

    (void)e;
    (void)pid;
    (void)ranges;
    w->process_id = process_id;
}

static void on_output(struct exec *e, uint8_t stream, uint64_t offset, const uint8_t *data,
                      size_t size, void *userdata)
{
    (void)offset;
    (void)data;
    (void)userdata;
    exec_consumed(e, stream, size);
}

static void on_ended(struct exec *e, const struct exec_exit *exit, void *userdata)
{
    (void)e;
    (void)exit;
    release(userdata);
}

/* No such shell, most likely. A broken console is told by its own callback, which frees us. */
static void on_closed(struct exec *e, const struct error *reason, void *userdata)
{
    struct template_warm *w = userdata;

    (void)e;
    log_debug("The warm-up's process did not run: %s", reason->text);
    if (reason->code != ERR_GUEST_GONE && reason->code != ERR_GUEST_PROTOCOL &&
        reason->code != ERR_GUEST_UNRESPONSIVE)
        release(w);
}

int template_warm_new(struct console *console, uint64_t deadline_usec, template_warm_fn done,
                      void *userdata, struct template_warm **ret, struct error *err)
{
    static const struct exec_callbacks callbacks = {
        .on_started = on_started,
        .on_output = on_output,
        .on_exit = on_ended,
        .on_closed = on_closed,
    };
    static char shell[] = "/bin/sh", option[] = "-c",
                text[] = "bash -c :; ls / >/dev/null; cat </dev/null; cd /tmp; pwd";
    char *const argv[] = {shell, option, text, NULL};
    const struct exec_spec spec = {
        .argv = argv,
        .close_stdin = true,
        .drop_when_full = true,
        .timeout_msec = WARM_MSEC,
        .label = "warm-up",
    };
    struct template_warm *w = calloc(1, sizeof(*w));
    int r;

    if (!w)
        return error_set(err, ENOMEM, "out of memory");
    w->console = console;
    w->deadline_usec = deadline_usec;
    w->done = done;
    w->userdata = userdata;
    r = exec_start(console, &spec, &callbacks, w, &w->exec, err);
    if (r < 0) {
        free(w);
        return r;
    }
    *ret = w;
    return 0;
}
