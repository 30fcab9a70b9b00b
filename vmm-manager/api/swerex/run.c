#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/swerex/action.h"
#include "api/swerex/tty-text.h"
#include "base/clock.h"
#include "base/strv.h"
#include "model/text.h"

/*
 * Theory of operation. A command is checked by `bash -n` first, then sent; it is over when the
 * shell says so and the terminal's output has come as far as it says. An action that runs out of
 * its time is answered and leaves the command alone: what it writes stays for the next action, as
 * the terminal of SWE-ReX keeps it. A command's end is told before the shell is back at its prompt:
 * that prompt may come when the next action is under way, and does not end it.
 */
#define QUIET_USEC (200 * USEC_PER_MSEC) /* after an interrupt: what the shell says of its jobs */
#define EXCEPTIONS "swerex.exceptions."

static void action_free(struct action *a)
{
    if (a->shell && a->shell->owner == a)
        rex_shell_wait(a->shell, NULL, NULL);
    a->syntax = exec_free(a->syntax);
    a->watch = sandbox_watch_free(a->watch);
    a->timer = source_free(a->timer);
    buf_done(&a->syntax_out);
    buf_done(&a->syntax_err);
    for (size_t i = 0; i < a->n_expect; i++) {
        regfree(&a->expect[i]);
        free(a->expect_text[i]);
    }
    free(a->command);
    free(a->error_msg);
    free(a);
}

static void on_over(void *state, enum request_end why)
{
    (void)why;
    action_free(state);
}

/* ---- answers ---- */

/* Lets go of the shell: nothing comes any more. */
static void action_finish(struct action *a)
{
    if (a->shell && a->shell->owner == a)
        rex_shell_wait(a->shell, NULL, NULL);
    a->shell = NULL;
    a->timer = source_free(a->timer);
    a->syntax = exec_free(a->syntax);
}

static void answer_observation(struct action *a, const char *output, json_t *code,
                               const char *expected)
{
    struct request *req = a->req;
    bool create = a->kind == ACTION_CREATE;

    action_finish(a);
    if (create)
        request_answer(req, 200, json_pack("{s:s, s:s}", "output", output, "session_type", "bash"));
    else
        request_answer(req, 200,
                       json_pack("{s:s, s:o, s:s, s:s, s:s}", "output", output, "exit_code", code,
                                 "failure_reason", "", "expect_string", expected, "session_type",
                                 "bash"));
    if (create)
        json_decref(code);
}

static void raise_nonzero(struct action *a, const char *output)
{
    _cleanup_free_ char *command = text_repr(a->command), *shown = text_repr(output);
    _cleanup_free_ char *text =
        command && shown
            ? string_printf("%s%sCommand %s failed with exit code %d. Here is the output:\n%s",
                            a->error_msg ? a->error_msg : "", a->error_msg ? ": " : "", command,
                            a->status, shown)
            : NULL;

    action_finish(a);
    rex_raise(a->req, EXCEPTIONS "NonZeroExitCodeError", text ? text : "out of memory", NULL);
}

static void raise_timeout(struct action *a)
{
    _cleanup_free_ char *command = text_repr(a->command ? a->command : "");
    _cleanup_free_ char *text =
        command ? string_printf("timeout after %g seconds while running command %s", a->timeout_sec,
                                command)
                : NULL;
    bool interrupt = a->kind == ACTION_INTERRUPT, create = a->kind == ACTION_CREATE;

    action_finish(a);
    if (interrupt || create)
        rex_raise(a->req, "pexpect.exceptions.TIMEOUT",
                  interrupt ? "Failed to interrupt session" : "The shell did not start in time",
                  NULL);
    else
        rex_raise(a->req, EXCEPTIONS "CommandTimeoutError", text ? text : "out of memory", NULL);
}

/* Output up to `size`, taken from the shell. NULL: out of memory. */
static char *take_output(struct action *a, size_t size)
{
    size_t all;
    const void *data = rex_shell_output(a->shell, &all);
    char *text = tty_text(data, MIN(size, all));

    rex_shell_consume(a->shell, MIN(size, all));
    return text;
}

/* A word that the client waits for came before the end: output before it, and it is forgotten. */
static bool check_expect(struct action *a)
{
    size_t size;
    const void *data = rex_shell_output(a->shell, &size);
    _cleanup_free_ char *raw = a->n_expect > 0 ? malloc(size + 1) : NULL;
    regmatch_t found, best = {.rm_so = -1};
    size_t which = 0;

    if (!raw)
        return false;
    memcpy(raw, size > 0 ? data : "", size);
    raw[size] = '\0';
    for (size_t i = 0; i < size; i++) { /* regexec() stops at the first */
        if (raw[i] == '\0')
            raw[i] = ' ';
    }
    for (size_t i = 0; i < a->n_expect; i++) {
        if (regexec(&a->expect[i], raw, 1, &found, 0) == 0 &&
            (best.rm_so < 0 || found.rm_so < best.rm_so)) {
            best = found;
            which = i;
        }
    }
    if (best.rm_so < 0)
        return false;
    _cleanup_free_ char *output = tty_text(raw, (size_t)best.rm_so);
    _cleanup_free_ char *expected = strdup(a->expect_text[which]);
    char *shown = output ? output : (char *)(uintptr_t) "";

    rex_shell_consume(a->shell, (size_t)best.rm_eo);
    if (a->kind == ACTION_INTERACTIVE && output) {
        shown += strspn(shown, " \t\r\n");
        if (a->command[0] && string_starts_with(shown, a->command))
            shown += strlen(a->command);
        shown = text_strip(shown);
    } else if (a->kind == ACTION_INTERRUPT && output) {
        shown = text_strip(shown);
    }
    answer_observation(a, shown, a->check == CHECK_IGNORE ? json_null() : json_integer(0),
                       expected ? expected : "");
    return true;
}

/* It is over and its output is here. */
static void answer_end(struct action *a)
{
    struct rex_shell *s = a->shell;
    size_t size = a->end_offset > s->at ? (size_t)(a->end_offset - s->at) : 0;
    _cleanup_free_ char *output = take_output(a, size);
    char *shown = output;
    json_t *code = json_integer(a->status);

    if (!output) {
        json_decref(code);
        action_finish(a);
        rex_raise(a->req, EXCEPTIONS "NoExitCodeError", "out of memory", NULL);
        return;
    }
    if (a->kind == ACTION_COMMAND && a->check == CHECK_RAISE && a->status != 0) {
        json_decref(code);
        raise_nonzero(a, output);
        return;
    }
    if (a->kind != ACTION_COMMAND)
        (void)json_integer_set(code, 0);
    if (a->kind == ACTION_INTERACTIVE) {
        shown += strspn(shown, " \t\r\n");
        if (a->command[0] && string_starts_with(shown, a->command))
            shown += strlen(a->command);
        shown = text_strip(shown);
    } else if (a->kind == ACTION_INTERRUPT) {
        shown = text_strip(shown);
    } else if (a->kind == ACTION_QUIT) {
        (void)rex_shell_type(s, " stty -echo\n");
        s->owed++;
    }
    if (a->kind == ACTION_COMMAND && a->check == CHECK_IGNORE) {
        json_decref(code);
        code = json_null();
    }
    answer_observation(a, shown, code, "SHELLPS1PREFIX");
}

static void check_end(struct action *a)
{
    if (a->ended && a->shell && a->shell->received[1] >= a->end_offset)
        answer_end(a);
}

/* ---- interrupts ---- */

static void set_timer(struct action *a, uint64_t usec);

enum { INTERRUPT_KEY, INTERRUPT_STOP, INTERRUPT_KILL, INTERRUPT_QUIET };

static void interrupt_step(struct action *a)
{
    uint64_t usec = (uint64_t)(a->timeout_sec * (double)USEC_PER_SEC);

    switch (a->phase) {
    case INTERRUPT_KEY:
        if (a->retries > 0) {
            a->retries--;
            (void)rex_shell_type(a->shell, "\003");
            break;
        }
        a->phase = INTERRUPT_STOP;
        (void)rex_shell_type(a->shell, "\032");
        break;
    case INTERRUPT_STOP:
    case INTERRUPT_KILL:
        raise_timeout(a);
        return;
    default: /* it is quiet now */
        a->ended = true;
        a->end_offset = a->shell->received[1];
        check_end(a);
        return;
    }
    set_timer(a, MAX(usec, 50 * USEC_PER_MSEC));
}

static void interrupt_prompt(struct action *a)
{
    if (a->phase == INTERRUPT_STOP) {
        a->phase = INTERRUPT_KILL;
        (void)rex_shell_type(a->shell, " kill -9 %1\n");
        set_timer(a, (uint64_t)(MAX(a->timeout_sec, 1.0) * (double)USEC_PER_SEC));
        return;
    }
    if (a->phase == INTERRUPT_KILL) { /* the shell tells of a job's end at the next prompt */
        (void)rex_shell_type(a->shell, "\n");
        a->shell->owed++;
    }
    a->phase = INTERRUPT_QUIET;
    set_timer(a, QUIET_USEC);
}

/* ---- the shell ---- */

static void on_event(void *owner, const struct shell_event *event)
{
    struct action *a = owner;

    if (a->kind == ACTION_INTERRUPT) {
        if (event->word == SHELL_PROMPT && a->phase != INTERRUPT_QUIET)
            interrupt_prompt(a);
        return;
    }
    if (event->word == SHELL_BEGUN && event->number == a->number)
        a->begun = true;
    if (event->word == SHELL_PROMPT && a->stale > 0) {
        a->stale--;
        return;
    }
    bool prompt = event->word == SHELL_PROMPT &&
                  (a->kind == ACTION_INTERACTIVE || a->kind == ACTION_QUIT ? true : a->begun);
    if ((event->word == SHELL_ENDED && event->number == a->number && a->number > 0) || prompt) {
        a->ended = true;
        a->status = event->status;
        a->end_offset = event->offset;
        check_end(a);
    }
}

static void on_shell_output(void *owner)
{
    struct action *a = owner;

    if (a->kind != ACTION_CREATE && check_expect(a))
        return;
    check_end(a);
}

static void on_shell_gone(void *owner, const struct error *reason)
{
    struct action *a = owner;
    bool started = a->kind != ACTION_CREATE;

    a->shell = NULL;
    a->timer = source_free(a->timer);
    if (reason->code == ERR_SESSION_DEAD && started)
        rex_raise(a->req, EXCEPTIONS "NoExitCodeError", reason->text, NULL);
    else
        rex_raise_error(a->req, reason);
}

static const struct shell_ops shell_ops = {on_event, on_shell_output, on_shell_gone};

static int on_timer(struct source *s, uint64_t now_usec, void *userdata)
{
    struct action *a = userdata;

    (void)now_usec;
    a->timer = source_free(s);
    if (a->kind == ACTION_INTERRUPT)
        interrupt_step(a);
    else
        raise_timeout(a);
    return 0;
}

static void set_timer(struct action *a, uint64_t usec)
{
    a->timer = source_free(a->timer);
    (void)loop_add_timer(rex_of(a->req)->loop, "rex", clock_now_usec() + usec, on_timer, a,
                         &a->timer);
}

/* The action has its shell: begins. */
static void action_go(struct action *a)
{
    int r = 0;

    if (a->timeout_sec >= 0 && a->kind != ACTION_INTERRUPT)
        set_timer(a, (uint64_t)(a->timeout_sec * (double)USEC_PER_SEC));
    rex_shell_wait(a->shell, &shell_ops, a);
    switch (a->kind) {
    case ACTION_CREATE:
    case ACTION_COMMAND:
        r = rex_shell_send(a->shell, a->command, &a->number);
        break;
    case ACTION_INTERACTIVE:
    case ACTION_QUIT:
        a->stale = a->shell->owed;
        r = rex_shell_type(a->shell, a->command);
        if (r >= 0)
            r = rex_shell_type(a->shell, "\n");
        break;
    case ACTION_INTERRUPT:
        interrupt_step(a);
        return;
    }
    if (r < 0) {
        action_finish(a);
        rex_raise(a->req, "builtins.RuntimeError", "the command is too long", NULL);
    }
}

/* ---- bash -n ---- */

static void on_syntax_output(struct exec *e, uint8_t stream, uint64_t offset, const uint8_t *data,
                             size_t size, void *userdata)
{
    struct action *a = userdata;

    (void)offset;
    (void)buf_append(stream == 2 ? &a->syntax_err : &a->syntax_out, data, size);
    exec_consumed(e, stream, size);
}

static void on_syntax_exit(struct exec *e, const struct exec_exit *exit, void *userdata)
{
    struct action *a = userdata;
    int code = exec_exit_code(exit);

    (void)e;
    a->syntax = exec_free(a->syntax);
    if (!a->shell || code == 0) {
        if (a->shell)
            action_go(a);
        return;
    }
    _cleanup_free_ char *out = text_backslashed(buf_data(&a->syntax_out), a->syntax_out.size);
    _cleanup_free_ char *err = text_backslashed(buf_data(&a->syntax_err), a->syntax_err.size);
    _cleanup_free_ char *command = text_repr(a->command);
    _cleanup_free_ char *text =
        out && err && command
            ? string_printf("Error (exit code %d) while checking bash command \n%s\n"
                            "---- Stderr ----\n%s\n---- Stdout ----\n%s",
                            code, command, err, out)
            : NULL;
    action_finish(a);
    rex_raise(
        a->req, EXCEPTIONS "BashIncorrectSyntaxError", text ? text : "out of memory",
        json_pack("{s:s, s:s}", "bash_stdout", out ? out : "", "bash_stderr", err ? err : ""));
}

static void on_syntax_closed(struct exec *e, const struct error *reason, void *userdata)
{
    struct action *a = userdata;

    (void)e;
    if (reason->code == ERR_GUEST_GONE && a->watch)
        return;
    action_finish(a);
    rex_raise_error(a->req, reason);
}

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    struct action *a = userdata;

    (void)sb;
    a->watch = sandbox_watch_free(a->watch);
    if (!a->syntax)
        return; /* the shell tells it */
    action_finish(a);
    rex_raise_error(a->req, reason);
}

/* The text goes as one argument while it is short, else the shell itself will say what is wrong. */
static void check_syntax(struct action *a, struct sandbox *sb, struct console *c)
{
    static const struct exec_callbacks callbacks = {
        .on_output = on_syntax_output,
        .on_exit = on_syntax_exit,
        .on_closed = on_syntax_closed,
    };
    const char *const argv[] = {"bash", "-n", "-c", a->command, NULL};
    const struct exec_spec spec = {
        .argv = (char *const *)(uintptr_t)argv,
        .close_stdin = true,
        .user = sandbox_get_spec(sb)->user,
    };
    struct error err = {0};
    int r;

    if (strlen(a->command) > 100000) {
        action_go(a);
        return;
    }
    r = sandbox_watch_new(sb, on_gone, a, &a->watch);
    if (r < 0)
        error_fill(&err, r, "check a command");
    else
        r = exec_start(c, &spec, &callbacks, a, &a->syntax, &err);
    if (r < 0) {
        action_finish(a);
        rex_raise_error(a->req, &err);
    }
}

/* ---- handlers ---- */

static struct action *action_new(struct request *req)
{
    struct action *a = calloc(1, sizeof(*a));

    if (!a) {
        rex_raise(req, "builtins.MemoryError", "out of memory", NULL);
        return NULL;
    }
    a->req = req;
    a->timeout_sec = -1;
    buf_init(&a->syntax_out, 65536);
    buf_init(&a->syntax_err, 65536);
    request_own(req, a, on_over);
    return a;
}

static const char *session_name(const json_t *body)
{
    const char *name = json_string_value(json_object_get(body, "session"));

    return name && name[0] ? name : "default";
}

static void raise_no_session(struct request *req, const char *name)
{
    _cleanup_free_ char *shown = text_repr(name);
    _cleanup_free_ char *text = shown ? string_printf("session %s does not exist", shown) : NULL;

    rex_raise(req, EXCEPTIONS "SessionDoesNotExistError", text ? text : "no such session", NULL);
}

void handle_rex_create_session(struct request *req)
{
    const json_t *body = request_json(req), *sources = json_object_get(body, "startup_source");
    const char *name = session_name(body);
    struct buf script;
    struct error err = {0};
    struct sandbox *sb;
    struct action *a;
    json_t *path;
    size_t i;

    struct console *c = rex_console(req, &sb);
    if (!c)
        return;
    if (rex_shell_find(rex_of(req), sandbox_id(sb), name)) {
        _cleanup_free_ char *text = string_printf("session %s already exists", name);

        rex_raise(req, EXCEPTIONS "SessionExistsError", text ? text : "", NULL);
        return;
    }
    a = action_new(req);
    if (!a)
        return;
    a->kind = ACTION_CREATE;
    a->timeout_sec = json_number_value(json_object_get(body, "startup_timeout"));
    if (a->timeout_sec < 10.0) /* a guest in software emulation is slow, and waiting is free */
        a->timeout_sec = 10.0;
    buf_init(&script, 65536);
    json_array_foreach(sources, i, path)
    {
        if (json_is_string(path))
            (void)buf_printf(&script, "source %s; ", json_string_value(path));
    }
    (void)buf_append_string(&script, "PS1= PS2= PS0=; PROMPT_COMMAND='printf \"P 0 %s\\0\" "
                                     "\"$?\" >&251'");
    a->command = strdup(buf_string(&script));
    buf_done(&script);
    if (!a->command || rex_shell_new(rex_of(req), sb, c, name, &a->shell, &err) < 0) {
        rex_raise_error(req, &err);
        return;
    }
    action_go(a);
}

void handle_rex_run(struct request *req)
{
    const json_t *body = request_json(req);
    const char *name = session_name(body);
    struct rex_shell *s;
    struct error err = {0};
    struct sandbox *sb;
    struct action *a;

    struct console *c = rex_console(req, &sb);
    if (!c)
        return;
    s = rex_shell_find(rex_of(req), sandbox_id(sb), name);
    if (!s) {
        raise_no_session(req, name);
        return;
    }
    a = action_new(req);
    if (!a || !action_decode(a, body))
        return;
    if (s->ops) {
        rex_raise(req, "builtins.RuntimeError", "the session is busy with another request", NULL);
        return;
    }
    if (rex_shell_attach(s, sb, c, &err) < 0) {
        rex_raise_error(req, &err);
        return;
    }
    a->shell = s;
    if (a->kind == ACTION_COMMAND)
        check_syntax(a, sb, c);
    else
        action_go(a);
}

void handle_rex_close_session(struct request *req)
{
    const char *name = session_name(request_json(req));
    struct sandbox *sb;
    struct rex_shell *s;

    if (!rex_console(req, &sb))
        return;
    s = rex_shell_find(rex_of(req), sandbox_id(sb), name);
    if (!s) {
        raise_no_session(req, name);
        return;
    }
    rex_shell_close(s);
    request_answer(req, 200, json_pack("{s:s}", "session_type", "bash"));
}

void handle_rex_close(struct request *req)
{
    struct rex_shell *next;
    struct sandbox *sb;

    if (!rex_console(req, &sb))
        return;
    for (struct rex_shell *s = rex_of(req)->shells; s; s = next) {
        next = s->next;
        if (strcmp(s->sandbox_id, sandbox_id(sb)) == 0)
            rex_shell_close(s);
    }
    request_answer(req, 200, json_object());
}
