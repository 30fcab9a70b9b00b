#include "api/native/code-run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/native/capture.h"
#include "api/native/code-request.h"
#include "api/native/exec-job.h"
#include "api/native/handlers.h"
#include "api/native/once.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/strv.h"

/*
 * Theory of operation. A run gets a sandbox of its own from the pool of image `code`, starts one
 * process in it and removes it when the process has ended, when its client is gone, or when the
 * guest does not keep to the time that it was given. The sandbox is `transient`: a daemon that
 * finds one left over by another removes it.
 *
 *   creating   sb is being made; its end comes by on_created
 *   running    exec, watch and deadline are there
 *   over       answered or left; `end` removes the sandbox from the loop and frees the run, since
 *              what called us may still be using the console
 *
 * With an Idempotency-Key it goes on without its client.
 */
#define IMAGE "code"
#define USER "1000:1000" /* `sandbox` of the image */
#define MEMORY_MAX_BYTES (UINT64_C(256) * 1024u * 1024u)
#define MACHINE_MIB 320u /* so that the limit is the program's and not the kernel's too */
#define DISK_MIB 64u
#define PROCESSES_MAX 50u
#define SCRATCH_BYTES (UINT64_C(64) * 1024u * 1024u)
#define SHM_BYTES (UINT64_C(16) * 1024u * 1024u)
#define OUTPUT_MAX (1024u * 1024u)    /* of each stream */
#define OUTPUT_KEPT_MAX (16u * 1024u) /* of an answer that is kept for its Idempotency-Key */
#define KILL_GRACE_MSEC 250u
#define GUEST_LATE_USEC (10 * USEC_PER_SEC) /* for a guest to tell of the end that it must make */
#define LIFE_SLACK_SEC 120u                 /* should all else fail */
#define TIMED_OUT_TEXT "Execution timed out"

struct code_run {
    struct api_native *api; /* weak */
    struct code_run *prev, *next;
    struct request *req;         /* weak; NULL: gone, or answered */
    struct once *once;           /* owned; NULL: the client did not ask for it */
    struct code_request body;    /* owned */
    char id[64];                 /* of the sandbox; "": there is none */
    bool creating;               /* on_created will come */
    struct sandbox *sb;          /* weak: while creating, and while watch is there */
    struct sandbox_watch *watch; /* owned */
    struct exec *exec;           /* owned */
    struct source *deadline;     /* owned */
    struct source *end;          /* owned */
    struct capture capture;
    size_t input_sent;
    uint64_t started_usec;
};

static struct code_run *code_run_free(struct code_run *run)
{
    if (run->prev)
        run->prev->next = run->next;
    else
        run->api->code_runs = run->next;
    if (run->next)
        run->next->prev = run->prev;
    if (run->creating)
        sandbox_create_forget(run->sb, run);
    run->exec = exec_free(run->exec);
    run->watch = sandbox_watch_free(run->watch);
    run->deadline = source_free(run->deadline);
    run->end = source_free(run->end);
    run->once = once_free(run->once);
    capture_done(&run->capture);
    code_request_done(&run->body);
    free(run);
    return NULL;
}

void code_runs_free(struct api_native *api)
{
    while (api->code_runs)
        code_run_free(api->code_runs);
}

/* ---- the end ---- */

static void remove_sandbox(struct code_run *run)
{
    struct sandbox *sb = run->id[0] ? sandbox_find(run->api->core, run->id, NULL) : NULL;

    if (sb)
        (void)sandbox_remove(sb, NULL, NULL);
}

static int on_end(struct source *s, void *userdata)
{
    struct code_run *run = userdata;

    (void)s;
    remove_sandbox(run);
    code_run_free(run);
    return 0;
}

/* Nothing of the guest is wanted any more. */
static void code_run_end(struct code_run *run)
{
    if (run->creating)
        sandbox_create_forget(run->sb, run);
    run->creating = false;
    run->exec = exec_free(run->exec);
    run->watch = sandbox_watch_free(run->watch);
    run->deadline = source_free(run->deadline);
    if (!run->end && loop_add_defer(run->api->loop, "code-run", on_end, run, &run->end) < 0)
        log_error("Failed to remove sandbox '%s' of a code_run: out of memory", run->id);
}

static void code_run_fail(struct code_run *run, const struct error *err)
{
    struct request *req = TAKE_PTR(run->req);

    if (req) {
        request_own(req, NULL, NULL);
        request_answer_error(req, err);
    }
    code_run_end(run);
}

static void note_cuts(struct code_run *run)
{
    static const char *const names[] = {NULL, "stdout", "stderr"};

    for (int i = 1; i <= 2; i++) {
        char line[80];

        if (!run->capture.truncated[i])
            continue;
        (void)snprintf(line, sizeof(line), "[%s was cut after %zu bytes]", names[i],
                       run->capture.max);
        capture_note(&run->capture, 2, line);
    }
}

static void code_run_answer(struct code_run *run, const struct exec_exit *exit)
{
    json_t *result = exec_result_to_json(exit, 0, run->capture.truncated);
    struct request *req = TAKE_PTR(run->req);

    (void)json_object_del(result, "process_id"); /* it is gone, with all else */
    note_cuts(run);
    if (exit->timed_out)
        capture_note(&run->capture, 2, TIMED_OUT_TEXT);
    capture_to_json(&run->capture, result);
    if (result)
        native_once_done(TAKE_PTR(run->once), 200, result);
    if (req) {
        request_own(req, NULL, NULL);
        request_answer(req, 200, result);
    } else {
        json_decref(result);
    }
    code_run_end(run);
}

/* ---- what the guest says ---- */

static void pump_input(struct code_run *run)
{
    const struct code_file *input = &run->body.input;
    size_t size;

    if (!input->data || run->input_sent > input->size)
        return;
    size = MIN(input->size - run->input_sent, exec_writable(run->exec, 0));
    if (size > 0 && exec_write(run->exec, 0, input->data + run->input_sent, size) < 0)
        return; /* it reads no more: its business */
    run->input_sent += size;
    if (run->input_sent == input->size) {
        (void)exec_close_stream(run->exec, 0);
        run->input_sent++; /* once */
    }
}

static void on_writable(struct exec *e, uint8_t stream, void *userdata)
{
    (void)e;
    if (stream == 0)
        pump_input(userdata);
}

static void on_started(struct exec *e, uint64_t process_id, uint32_t pid,
                       const struct exec_range ranges[EXEC_STREAMS_MAX], void *userdata)
{
    (void)e;
    (void)process_id;
    (void)pid;
    (void)ranges;
    pump_input(userdata);
}

static void on_output(struct exec *e, uint8_t stream, uint64_t offset, const uint8_t *data,
                      size_t size, void *userdata)
{
    struct code_run *run = userdata;

    (void)offset;
    capture_add(&run->capture, stream, data, size);
    exec_consumed(e, stream, size);
}

static void on_process_exit(struct exec *e, const struct exec_exit *exit, void *userdata)
{
    (void)e;
    code_run_answer(userdata, exit);
}

static void on_closed(struct exec *e, const struct error *reason, void *userdata)
{
    struct code_run *run = userdata;
    struct error err = *reason;

    (void)e;
    error_wrap(&err, "code_run");
    code_run_fail(run, &err);
}

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    struct code_run *run = userdata;

    (void)sb;
    code_run_fail(run, reason);
}

/* The guest should have ended it long ago: it hangs, or makes itself busy. */
static int on_deadline(struct source *s, uint64_t now_usec, void *userdata)
{
    struct code_run *run = userdata;
    const struct exec_exit late = {.timed_out = true, .wall_usec = now_usec - run->started_usec};

    (void)s;
    code_run_answer(run, &late);
    return 0;
}

/* ---- the beginning ---- */

static const struct exec_callbacks exec_callbacks = {
    .on_started = on_started,
    .on_output = on_output,
    .on_writable = on_writable,
    .on_exit = on_process_exit,
    .on_closed = on_closed,
};

static int start_process(struct code_run *run, struct console *c, struct error *err)
{
    static char home[] = "HOME=" CODE_DIR, tmp[] = "TMPDIR=" CODE_DIR, lang[] = "LANG=C.UTF-8",
                unbuffered[] = "PYTHONUNBUFFERED=1", no_cache[] = "PYTHONDONTWRITEBYTECODE=1";
    char *const env[] = {home, tmp, lang, unbuffered, no_cache, NULL};
    struct exec_file files[CODE_FILES_MAX + 1];
    const struct exec_confine confine = {
        .scratch = {{CODE_DIR, SCRATCH_BYTES}, {"/dev/shm", SHM_BYTES}},
        .n_scratch = 2,
        .files = files,
        .n_files = run->body.n_files,
    };
    const struct exec_spec spec = {
        .argv = code_language_argv(run->body.language),
        .env = env,
        .cwd = CODE_DIR,
        .user = USER,
        .memory_max_bytes = MEMORY_MAX_BYTES,
        .pids_max = PROCESSES_MAX,
        .timeout_msec = run->body.timeout_msec,
        .kill_grace_msec = KILL_GRACE_MSEC,
        .close_stdin = !run->body.input.data,
        .no_new_privileges = true,
        .confine = &confine,
        .label = "code_run",
    };

    for (size_t i = 0; i < run->body.n_files; i++) {
        const struct code_file *file = &run->body.files[i];

        files[i] = (struct exec_file){.path = file->path, .data = file->data, .size = file->size};
    }
    return exec_start(c, &spec, &exec_callbacks, run, &run->exec, err);
}

static void code_run_start(struct code_run *run)
{
    struct error err = {0};
    struct console *c = sandbox_console(run->sb, &err);
    uint64_t limit = run->body.timeout_msec + KILL_GRACE_MSEC;
    int r = c ? 0 : -1;

    run->started_usec = clock_now_usec();
    if (r >= 0) {
        r = sandbox_watch_new(run->sb, on_gone, run, &run->watch);
        if (r >= 0)
            r = loop_add_timer(run->api->loop, "code-run-deadline",
                               run->started_usec + limit * USEC_PER_MSEC + GUEST_LATE_USEC,
                               on_deadline, run, &run->deadline);
        if (r < 0)
            error_fill(&err, r, "code_run: sandbox '%s'", run->id);
    }
    if (r >= 0)
        r = start_process(run, c, &err);
    if (r < 0)
        code_run_fail(run, &err);
}

static void on_created(struct sandbox *sb, const struct error *err, void *userdata)
{
    struct code_run *run = userdata;
    struct error why = {0};

    run->creating = false;
    run->sb = sb;
    if (!err) {
        code_run_start(run);
        return;
    }
    run->id[0] = '\0'; /* nothing is left of it */
    error_copy(&why, err);
    if (why.code == ERR_IMAGE_NOT_FOUND)
        (void)error_set_code(&why, ERR_IMAGE_NOT_FOUND,
                             "code_run: image '" IMAGE "' is not there; `hearth image " IMAGE
                             "` makes it on this host");
    else
        error_wrap(&why, "code_run");
    code_run_fail(run, &why);
}

static void on_over(void *state, enum request_end why)
{
    struct code_run *run = state;

    run->req = NULL;
    if (why == REQUEST_STOPPED)
        code_run_free(run);
    else if (!run->once) /* else the client said that it would ask again */
        code_run_end(run);
}

static int make_sandbox(struct code_run *run, struct error *err)
{
    static const struct sandbox_create_callbacks callbacks = {NULL, on_created};
    struct sandbox_spec spec;
    int r;

    sandbox_spec_init(&spec);
    spec.memory_mib = MACHINE_MIB;
    spec.disk_mib = DISK_MIB;
    spec.timeout_sec = run->body.timeout_msec / 1000u + LIFE_SLACK_SEC;
    spec.transient = true;
    r = string_set(&spec.image, IMAGE) < 0 ? error_set(err, ENOMEM, "out of memory") : 0;
    if (r >= 0)
        r = access_admit(run->req, run->api->core, &spec, 1, err);
    if (r >= 0)
        r = sandbox_claim_or_create(run->api->core, &spec, &callbacks, run, &run->sb, err);
    sandbox_spec_done(&spec);
    if (r >= 0)
        (void)snprintf(run->id, sizeof(run->id), "%s", sandbox_id(run->sb));
    return r;
}

void handle_code_run(struct request *req)
{
    struct error err = {0};
    struct code_run *run;
    struct once *once;

    if (!native_once(req, &once))
        return;
    run = calloc(1, sizeof(*run));
    if (!run) {
        (void)once_free(once);
        error_set(&err, ENOMEM, "code_run: out of memory");
        request_answer_error(req, &err);
        return;
    }
    run->api = native_of(req);
    run->req = req;
    run->once = once;
    capture_init(&run->capture, once ? OUTPUT_KEPT_MAX : OUTPUT_MAX);
    run->next = run->api->code_runs;
    if (run->next)
        run->next->prev = run;
    run->api->code_runs = run;
    int r = code_request_from_json(request_json(req), &run->body, &err);
    if (r >= 0)
        r = make_sandbox(run, &err);
    if (r < 0) {
        code_run_free(run);
        request_answer_error(req, &err);
        return;
    }
    request_own(req, run, on_over);
    run->creating = r == 0;
    if (r > 0)
        code_run_start(run);
}
