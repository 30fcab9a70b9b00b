#include "session-seen.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "harness/test.h"

#define OUT_MAX (64u << 20)

const struct shell_choice shell_choices[] = {
    {.name = "bash", .list = {{.path = "/bin/bash", .bash = true}, {.path = NULL}}},
    {.name = "dash", .list = {{.path = "/bin/dash"}, {.path = NULL}}},
    {.name = "ash", .list = {{.path = "/bin/busybox", .applet = "sh"}, {.path = NULL}}},
    {.name = NULL},
};

/* ---- session ---- */

static void on_record(struct session *s, const struct session_record *record, void *userdata)
{
    struct fixture *f = userdata;

    (void)s;
    f->record = *record;
    if (record->line) { /* weak: a store would keep a copy */
        ASSERT_TRUE(record->line_size <= sizeof(f->line));
        memcpy(f->line, record->line, (size_t)record->line_size);
        f->record.line = f->line;
    }
    f->records++;
}

static void on_state(struct session *s, enum session_state state, const struct error *err,
                     void *userdata)
{
    struct fixture *f = userdata;

    (void)s;
    f->state = state;
    if (err)
        f->err = *err;
}

static const struct session_callbacks callbacks = {.on_record = on_record, .on_state = on_state};

static const struct session_spec plain = {.name = "default"};

void fixture_start(struct fixture *f, const struct shell_choice *shell,
                   const struct session_spec *spec)
{
    struct error err = {0};

    *f = (struct fixture){0};
    session_set_shells_for_test(shell ? shell->list : NULL);
    guest_start(&f->guest, true);
    ASSERT_OK(
        session_new(f->guest.console, spec ? spec : &plain, &callbacks, f, &f->session, &err));
}

void fixture_stop(struct fixture *f)
{
    /* Leaves no file behind on this machine. */
    if (f->session && f->state != SESSION_DEAD)
        GUEST_WAIT(&f->guest, LIST_EMPTY(&f->session->removals));
    f->session = session_free(f->session);
    guest_stop(&f->guest);
    session_set_shells_for_test(NULL);
}

void fixture_adopt(struct fixture *f, const struct session_spec *spec)
{
    struct error err = {0};
    struct session_record record = f->record;

    f->session = session_free(f->session);
    guest_reconnect(&f->guest);
    ASSERT_OK(session_adopt(f->guest.console, spec ? spec : &plain, &record, &callbacks, f,
                            &f->session, &err));
}

/* ---- views ---- */

static void view_started(struct session_view *v, uint64_t command, const uint64_t start[3],
                         void *userdata)
{
    struct seen_view *seen = userdata;

    (void)v;
    ASSERT_TRUE(command != 0);
    ASSERT_EQ(seen->started, 0);
    seen->started++;
    memcpy(seen->start, start, sizeof(seen->start));
}

static void view_output(struct session_view *v, int stream, uint64_t offset, const uint8_t *data,
                        size_t size, void *userdata)
{
    struct seen_view *seen = userdata;

    ASSERT_EQ(seen->started, 1);
    ASSERT_EQ(seen->done, 0);
    if (seen->offset[stream] == 0)
        seen->offset[stream] = seen->start[stream];
    if (offset != seen->offset[stream])
        seen->gap = true;
    seen->offset[stream] = offset + size;
    ASSERT_OK(buf_append(&seen->out[stream], data, size));
    if (!seen->hold)
        session_view_consumed(v, stream, size);
    if (seen->free_in_output)
        seen->v = session_view_free(seen->v);
}

static void view_result(struct session_view *v, const struct session_result *result,
                        const struct error *err, void *userdata)
{
    struct seen_view *seen = userdata;

    (void)v;
    seen->done++;
    if (err)
        seen->err = *err;
    if (result) {
        seen->result = *result;
        (void)snprintf(seen->cwd, sizeof(seen->cwd), "%s", result->cwd ? result->cwd : "");
        seen->result.cwd = seen->cwd;
    }
    if (seen->free_in_result)
        seen->v = session_view_free(seen->v);
}

const struct session_view_callbacks seen_view_callbacks = {
    .on_started = view_started,
    .on_output = view_output,
    .on_result = view_result,
};

void seen_view_init(struct seen_view *seen)
{
    *seen = (struct seen_view){0};
    buf_init(&seen->out[1], OUT_MAX);
    buf_init(&seen->out[2], OUT_MAX);
}

void seen_view_done(struct seen_view *seen)
{
    seen->v = session_view_free(seen->v);
    buf_done(&seen->out[1]);
    buf_done(&seen->out[2]);
}

void run_start(struct fixture *f, struct seen_view *seen, const char *text, uint64_t timeout_msec,
               bool with_stdin)
{
    struct session_run_options options = {
        .text = text, .timeout_msec = timeout_msec, .with_stdin = with_stdin};
    struct error err = {0};

    seen_view_init(seen);
    if (session_run(f->session, &options, &seen_view_callbacks, seen, &seen->v, &err) < 0)
        test_fail(__FILE__, __LINE__, "session_run: %s", err.text);
}

void run_wait(struct fixture *f, struct seen_view *seen)
{
    GUEST_WAIT(&f->guest, seen->done);
    ASSERT_EQ(seen->done, 1);
}

void run(struct fixture *f, struct seen_view *seen, const char *text)
{
    run_start(f, seen, text, 0, false);
    run_wait(f, seen);
}

void expect_at(const char *file, int line, struct fixture *f, const char *text, const char *out,
               int exit_code)
{
    struct seen_view seen;

    run(f, &seen, text);
    if (seen.err.code != ERR_NONE)
        test_fail(file, line, "'%s': %s", text, seen.err.text);
    if (strcmp(buf_string(&seen.out[1]), out) != 0 || seen.result.exit_code != exit_code)
        test_fail(file, line, "'%s' gave %d '%s' (stderr '%s'), expected %d '%s'", text,
                  seen.result.exit_code, buf_string(&seen.out[1]), buf_string(&seen.out[2]),
                  exit_code, out);
    if (seen.gap)
        test_fail(file, line, "'%s': output was lost", text);
    seen_view_done(&seen);
}
