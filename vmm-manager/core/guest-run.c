#include "core/guest-run.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/macros.h"

#define RELEASE_USEC (10 * USEC_PER_SEC)

struct guest_run {
    struct console *console; /* weak */
    struct exec *exec;       /* owned */
    uint64_t process_id;
    guest_run_fn done;
    void *userdata;
    struct guest_run_result result;
    struct error err;
    char tail[GUEST_RUN_TAIL_MAX + 1];
    size_t tail_size;
};

struct guest_run *guest_run_free(struct guest_run *run)
{
    if (!run)
        return NULL;
    (void)exec_free(run->exec);
    free(run);
    return NULL;
}

static void finish(struct guest_run *run)
{
    run->tail[run->tail_size] = '\0';
    run->result.tail = run->tail;
    run->result.tail_size = run->tail_size;
    if (run->err.errnum)
        run->done(NULL, &run->err, run->userdata);
    else
        run->done(&run->result, NULL, run->userdata);
}

static void on_released(struct console *c, const struct error *err, void *userdata)
{
    (void)c;
    if (err)
        log_debug("A process was not released: %s, ignoring", err->text);
    finish(userdata);
}

static void release(struct guest_run *run)
{
    run->exec = exec_free(run->exec);
    if (run->process_id == 0 || exec_release(run->console, run->process_id,
                                             clock_now_usec() + RELEASE_USEC, on_released, run) < 0)
        finish(run);
}

static void on_started(struct exec *e, uint64_t process_id, uint32_t pid,
                       const struct exec_range ranges[EXEC_STREAMS_MAX], void *userdata)
{
    struct guest_run *run = userdata;

    (void)e;
    (void)pid;
    (void)ranges;
    run->process_id = process_id;
}

static void on_output(struct exec *e, uint8_t stream, uint64_t offset, const uint8_t *data,
                      size_t size, void *userdata)
{
    struct guest_run *run = userdata;
    size_t take = MIN(size, (size_t)GUEST_RUN_TAIL_MAX), keep;

    (void)offset;
    keep = MIN(run->tail_size, GUEST_RUN_TAIL_MAX - take);
    memmove(run->tail, run->tail + run->tail_size - keep, keep);
    memcpy(run->tail + keep, data + size - take, take);
    run->tail_size = keep + take;
    exec_consumed(e, stream, size);
}

static void on_exit_status(struct exec *e, const struct exec_exit *exit, void *userdata)
{
    struct guest_run *run = userdata;

    (void)e;
    run->result.exit_code = exec_exit_code(exit);
    run->result.timed_out = exit->timed_out;
    release(run);
}

/* It could not be started, or the console is over. */
static void on_closed(struct exec *e, const struct error *reason, void *userdata)
{
    struct guest_run *run = userdata;

    (void)e;
    error_copy(&run->err, reason);
    if (!run->err.errnum)
        (void)error_set_code(&run->err, ERR_INTERNAL, "the process ended without a status");
    run->process_id = 0; /* nothing to ask, or nobody */
    release(run);
}

int guest_run_new(struct console *console, char *const *argv, const struct guest_run_as *as,
                  uint32_t timeout_msec, guest_run_fn done, void *userdata, struct guest_run **ret,
                  struct error *err)
{
    static const struct exec_callbacks callbacks = {
        .on_started = on_started,
        .on_output = on_output,
        .on_exit = on_exit_status,
        .on_closed = on_closed,
    };
    const struct exec_spec spec = {
        .argv = argv,
        .user = as ? as->user : NULL,
        .cwd = as ? as->workdir : NULL,
        .env = as ? as->env : NULL,
        .close_stdin = true,
        .timeout_msec = timeout_msec,
        .kill_grace_msec = 1000,
        .label = "hearth",
    };
    struct guest_run *run = calloc(1, sizeof(*run));
    int r;

    if (!run)
        return error_set(err, ENOMEM, "out of memory");
    run->console = console;
    run->done = done;
    run->userdata = userdata;
    r = exec_start(console, &spec, &callbacks, run, &run->exec, err);
    if (r < 0) {
        free(run);
        return r;
    }
    *ret = run;
    return 0;
}
