#include "core/template-steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "core/guest-copy.h"
#include "core/guest-run.h"
#include "core/timeouts.h"

/*
 * Theory of operation. Steps in order, then the command that tells whether it is ready, again and
 * again until it succeeds or its time is over, then each warm-up command once: what clones will run
 * has to work here. The first failure ends it, with the step's number, status and last words.
 */
#define READY_PAUSE_USEC (200 * USEC_PER_MSEC)
#define READY_TRY_MSEC 60000u
#define TELL_USEC (200 * USEC_PER_MSEC)
#define STEP_TEXT_MAX 60 /* of a command, in a message */
#define TAIL_TEXT_MAX 200

enum phase {
    PHASE_STEPS,
    PHASE_READY,
    PHASE_WARM,
};

struct template_steps {
    const struct recipe *recipe; /* weak */
    struct console *console;     /* weak */
    struct loop *loop;           /* weak */
    struct workers *workers;     /* weak */
    struct template_steps_callbacks cb;
    void *userdata;
    enum phase phase;
    size_t index;
    uint64_t ready_until_usec;
    struct guest_run *run;   /* owned */
    struct guest_copy *copy; /* owned */
    struct source *again;    /* owned: the next step, or try of `ready` */
    char what[96];           /* "step 2 of 3: run 'make'" */
    int percent;
    uint64_t tell_usec; /* of a copy, not before */
};

struct template_steps *template_steps_free(struct template_steps *s)
{
    if (!s)
        return NULL;
    (void)guest_run_free(s->run);
    (void)guest_copy_free(s->copy);
    (void)source_free(s->again);
    free(s);
    return NULL;
}

static void finish(struct template_steps *s, const struct error *err)
{
    struct error why = {0};

    if (err) {
        error_copy(&why, err);
        error_wrap(&why, "%s", s->what);
    }
    s->cb.on_done(err ? &why : NULL, s->userdata);
}

/* The last words of a command as one line of an error. */
static void tail_text(const struct guest_run_result *result, char text[static TAIL_TEXT_MAX + 1])
{
    size_t n = 0, size = result->tail_size;

    while (size > 0 && (unsigned char)result->tail[size - 1] <= ' ')
        size--;
    for (size_t i = size > TAIL_TEXT_MAX ? size - TAIL_TEXT_MAX : 0; i < size; i++) {
        unsigned char c = (unsigned char)result->tail[i];

        text[n++] = c >= ' ' && c < 127 ? (char)c : c == '\n' ? '|' : '?';
    }
    text[n] = '\0';
}

static void fail_command(struct template_steps *s, const struct guest_run_result *result)
{
    char tail[TAIL_TEXT_MAX + 1];
    struct error err = {0};

    tail_text(result, tail);
    s->cb.on_output(result->tail, result->tail_size, s->userdata);
    if (result->timed_out)
        (void)error_set_code(&err, ERR_TIMEOUT, "took too long%s%s", tail[0] ? ": " : "", tail);
    else
        (void)error_set_code(&err, ERR_BUILD_FAILED, "exit status %d%s%s", result->exit_code,
                             tail[0] ? ": " : "", tail);
    finish(s, &err);
}

/* ---- one after the other ---- */

static int on_again(struct source *source, uint64_t now_usec, void *userdata);

static void soon(struct template_steps *s, uint64_t pause_usec)
{
    struct error err = {0};
    int r;

    s->again = source_free(s->again);
    r = loop_add_timer(s->loop, "template-step", clock_now_usec() + pause_usec, on_again, s,
                       &s->again);
    if (r < 0) {
        (void)error_set(&err, -r, "%s", errno_text(-r));
        finish(s, &err);
    }
}

static void on_ran(const struct guest_run_result *result, const struct error *err, void *userdata)
{
    struct template_steps *s = userdata;
    struct guest_run *run = TAKE_PTR(s->run);

    if (err) {
        finish(s, err);
    } else if (result->exit_code == 0) {
        s->index++;
        soon(s, 0);
    } else if (s->phase == PHASE_READY && clock_now_usec() < s->ready_until_usec) {
        soon(s, READY_PAUSE_USEC);
    } else {
        fail_command(s, result);
    }
    (void)guest_run_free(run);
}

static void start_run(struct template_steps *s, char *command, uint32_t timeout_msec)
{
    static char shell[] = "/bin/sh", option[] = "-c";
    char *const argv[] = {shell, option, command, NULL};
    const struct guest_run_as as = {s->recipe->user, s->recipe->workdir, s->recipe->env};
    struct error err = {0};

    if (guest_run_new(s->console, argv, &as, timeout_msec, on_ran, s, &s->run, &err) < 0)
        finish(s, &err);
}

static void on_copy_progress(uint64_t done, uint64_t total, void *userdata)
{
    struct template_steps *s = userdata;
    uint64_t now = clock_now_usec();
    char text[160];

    if (now < s->tell_usec)
        return;
    s->tell_usec = now + TELL_USEC;
    (void)snprintf(text, sizeof(text), "%s, %llu of %llu KiB", s->what,
                   (unsigned long long)(done / 1024), (unsigned long long)(total / 1024));
    s->cb.on_progress(text, s->percent, s->userdata);
}

static void on_copied(const struct error *err, void *userdata)
{
    struct template_steps *s = userdata;
    struct guest_copy *copy = TAKE_PTR(s->copy);

    if (err) {
        finish(s, err);
    } else {
        s->index++;
        soon(s, 0);
    }
    (void)guest_copy_free(copy);
}

static void start_step(struct template_steps *s)
{
    static const struct guest_copy_callbacks callbacks = {on_copy_progress, on_copied};
    const struct recipe_step *step = &s->recipe->steps[s->index];
    struct error err = {0};

    (void)snprintf(s->what, sizeof(s->what), "step %zu of %zu: %s '%.*s'", s->index + 1,
                   s->recipe->n_steps, step->run ? "run" : "copy to", STEP_TEXT_MAX,
                   step->run ? step->run : step->to);
    s->percent = 40 + (int)(s->index * 30 / s->recipe->n_steps);
    s->cb.on_progress(s->what, s->percent, s->userdata);
    if (step->run)
        start_run(s, step->run, (uint32_t)(core_step_timeout_usec() / USEC_PER_MSEC));
    else if (guest_copy_new(s->console, s->workers, step->from, step->to, &callbacks, s, &s->copy,
                            &err) < 0)
        finish(s, &err);
}

static void start_ready(struct template_steps *s)
{
    uint64_t now = clock_now_usec(), left;

    if (s->ready_until_usec == 0) {
        s->ready_until_usec = now + s->recipe->ready_sec * USEC_PER_SEC;
        (void)snprintf(s->what, sizeof(s->what), "ready '%.*s'", STEP_TEXT_MAX, s->recipe->ready);
        s->cb.on_progress(s->what, 70, s->userdata);
    }
    left = s->ready_until_usec > now ? s->ready_until_usec - now : 0;
    start_run(s, s->recipe->ready,
              (uint32_t)MIN(MAX(left / USEC_PER_MSEC, UINT64_C(1000)), (uint64_t)READY_TRY_MSEC));
}

static int on_again(struct source *source, uint64_t now_usec, void *userdata)
{
    struct template_steps *s = userdata;

    (void)source;
    (void)now_usec;
    s->again = source_free(s->again);
    if (s->phase == PHASE_STEPS) {
        if (s->index < s->recipe->n_steps) {
            start_step(s);
            return 0;
        }
        s->phase = PHASE_READY;
        s->index = s->recipe->ready ? 0 : 1;
    }
    if (s->phase == PHASE_READY) {
        if (s->index == 0) {
            start_ready(s);
            return 0;
        }
        s->phase = PHASE_WARM;
        s->index = 0;
    }
    if (!s->recipe->warm || !s->recipe->warm[s->index]) {
        finish(s, NULL);
        return 0;
    }
    (void)snprintf(s->what, sizeof(s->what), "warm-up '%.*s'", STEP_TEXT_MAX,
                   s->recipe->warm[s->index]);
    s->cb.on_progress(s->what, 74, s->userdata);
    start_run(s, s->recipe->warm[s->index], (uint32_t)(core_step_timeout_usec() / USEC_PER_MSEC));
    return 0;
}

int template_steps_new(const struct recipe *recipe, struct console *console, struct loop *loop,
                       struct workers *workers, const struct template_steps_callbacks *cb,
                       void *userdata, struct template_steps **ret, struct error *err)
{
    struct template_steps *s = calloc(1, sizeof(*s));
    int r;

    if (!s)
        return error_set(err, ENOMEM, "out of memory");
    s->recipe = recipe;
    s->console = console;
    s->loop = loop;
    s->workers = workers;
    s->cb = *cb;
    s->userdata = userdata;
    r = loop_add_timer(loop, "template-step", clock_now_usec(), on_again, s, &s->again);
    if (r < 0) {
        (void)template_steps_free(s);
        return error_set(err, -r, "%s", errno_text(-r));
    }
    *ret = s;
    return 0;
}
