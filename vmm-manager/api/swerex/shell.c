#include "api/swerex/shell.h"

#include <endian.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/strv.h"

/*
 * Theory of operation. Typed on the terminal for command N is only
 *
 *   IFS= read -rd '' -u 250 REX; printf 'B N' …; eval "$REX"; printf 'E N status' …
 *
 * so that here-documents, quotes and megabytes need no care. An interrupt makes bash drop the rest
 * of that line: PROMPT_COMMAND then tells that the prompt is back. Descriptors 250 and 251 are the
 * pipes, moved away from 3 and 4 by the first line. Echo is off, the prompts are empty.
 */
#define STREAM_COMMANDS 3u
#define STREAM_WORDS 4u
#define MARK_SIZE 24u
#define RECORD_MAX (256u * 1024u)
#define INPUT_MAX (64u * 1024u * 1024u)
#define KILL_USEC (30 * USEC_PER_SEC)

static const char first_line[] =
    " stty -echo; exec 250<&3 251>&4 3<&- 4>&-; PS1= PS2= PS0=; unset PROMPT_COMMAND; "
    "PROMPT_COMMAND='printf \"P 0 %s\\0\" \"$?\" >&251'\n";

static void shell_free(struct rex_shell *s)
{
    if (s->prev)
        s->prev->next = s->next;
    else
        s->rex->shells = s->next;
    if (s->next)
        s->next->prev = s->prev;
    s->rex->n_shells--;
    s->exec = exec_free(s->exec);
    s->watch = sandbox_watch_free(s->watch);
    buf_done(&s->output);
    buf_done(&s->words);
    buf_done(&s->input);
    buf_done(&s->lines);
    free(s->name);
    free(s);
}

struct rex_shell *rex_shell_find(struct api_swerex *rex, const char *sandbox_id, const char *name)
{
    for (struct rex_shell *s = rex->shells; s; s = s->next) {
        if (strcmp(s->sandbox_id, sandbox_id) == 0 && strcmp(s->name, name) == 0)
            return s;
    }
    return NULL;
}

void rex_shell_wait(struct rex_shell *s, const struct shell_ops *ops, void *owner)
{
    s->ops = ops;
    s->owner = owner;
}

/* ---- input ---- */

static void pump(struct rex_shell *s, uint8_t stream, struct buf *from)
{
    while (s->exec && from->size > 0) {
        size_t n = MIN(exec_writable(s->exec, stream), from->size);

        if (n == 0 || exec_write(s->exec, stream, buf_data(from), n) < 0)
            return;
        buf_consume(from, n);
    }
}

static void on_writable(struct exec *e, uint8_t stream, void *userdata)
{
    struct rex_shell *s = userdata;

    (void)e;
    if (stream == 0)
        pump(s, 0, &s->lines);
    else if (stream == STREAM_COMMANDS)
        pump(s, STREAM_COMMANDS, &s->input);
}

int rex_shell_type(struct rex_shell *s, const char *text)
{
    int r = buf_append_string(&s->lines, text);

    if (r >= 0)
        pump(s, 0, &s->lines);
    return r;
}

int rex_shell_send(struct rex_shell *s, const char *command, uint64_t *ret_number)
{
    unsigned long long number = ++s->number;
    int r = buf_append(&s->input, command, strlen(command) + 1);

    if (r >= 0)
        r = buf_printf(&s->lines,
                       " IFS= read -rd '' -u 250 REX; printf 'B %llu 0\\0' >&251; eval \"$REX\"; "
                       "printf 'E %llu %%s\\0' \"$?\" >&251\n",
                       number, number);
    if (r < 0)
        return r;
    pump(s, STREAM_COMMANDS, &s->input);
    pump(s, 0, &s->lines);
    *ret_number = number;
    return 0;
}

/* ---- output ---- */

const void *rex_shell_output(const struct rex_shell *s, size_t *ret_size)
{
    *ret_size = s->output.size;
    return buf_data(&s->output);
}

void rex_shell_consume(struct rex_shell *s, size_t size)
{
    buf_consume(&s->output, size);
    s->at += size;
}

static void take_output(struct rex_shell *s, uint64_t offset, const uint8_t *data, size_t size)
{
    if (offset + size <= s->received[1])
        return; /* known from an attachment before */
    if (offset < s->received[1]) {
        data += s->received[1] - offset;
        size -= (size_t)(s->received[1] - offset);
    } else if (offset > s->received[1]) {
        buf_clear(&s->output); /* the guest dropped some */
        s->at = offset;
    }
    s->received[1] = offset < s->received[1] ? s->received[1] + size : offset + size;
    if (size > buf_room(&s->output)) {
        size_t drop = MIN(size - buf_room(&s->output), s->output.size);

        rex_shell_consume(s, drop);
    }
    if (buf_append(&s->output, data, size) < 0)
        log_sandbox(LOG_LEVEL_WARNING, s->sandbox_id, "Output of a session was lost: no memory");
    if (s->ops)
        s->ops->output(s->owner);
}

/* "B 3 0", "E 3 127", "P 0 130" */
static void take_word(struct rex_shell *s, const char *word, uint64_t offset)
{
    struct shell_event event = {.offset = offset};
    unsigned long long number;
    int status;
    char kind;

    if (sscanf(word, "%c %llu %d", &kind, &number, &status) != 3)
        return;
    event.word = kind == 'B' ? SHELL_BEGUN : kind == 'E' ? SHELL_ENDED : SHELL_PROMPT;
    event.number = number;
    event.status = status & 0xff;
    if (event.word == SHELL_BEGUN)
        s->owed = 0;
    else if (event.word == SHELL_ENDED)
        s->owed++;
    else if (s->owed > 0)
        s->owed--;
    if (s->ops)
        s->ops->event(s->owner, &event);
}

/* Records: size, zero, offsets of streams 1 and 2, bytes. A word may be spread over several. */
static void take_words(struct rex_shell *s)
{
    for (;;) {
        const uint8_t *p = buf_data(&s->words);
        uint32_t size;
        uint64_t offset;

        if (s->words.size < MARK_SIZE)
            break;
        memcpy(&size, p, sizeof(size));
        memcpy(&offset, p + 8, sizeof(offset));
        size = le32toh(size);
        if (size > RECORD_MAX) { /* no guest of ours says that */
            buf_clear(&s->words);
            s->dead = true;
            return;
        }
        if (s->words.size < MARK_SIZE + (uint64_t)size)
            break;
        for (uint32_t i = 0; i < size; i++) {
            char c = (char)p[MARK_SIZE + i];

            if (c != '\0') {
                if (s->n_word + 1 < sizeof(s->word))
                    s->word[s->n_word++] = c;
                continue;
            }
            s->word[s->n_word] = '\0';
            s->n_word = 0;
            take_word(s, s->word, le64toh(offset));
        }
        buf_consume(&s->words, MARK_SIZE + size);
    }
}

static void on_output(struct exec *e, uint8_t stream, uint64_t offset, const uint8_t *data,
                      size_t size, void *userdata)
{
    struct rex_shell *s = userdata;

    exec_consumed(e, stream, size);
    if (stream == 1) {
        take_output(s, offset, data, size);
        return;
    }
    if (stream != STREAM_WORDS || offset != s->received[STREAM_WORDS] ||
        buf_append(&s->words, data, size) < 0)
        return;
    s->received[STREAM_WORDS] += size;
    take_words(s);
}

/* ---- life ---- */

static void shell_gone(struct rex_shell *s, const struct error *reason)
{
    const struct shell_ops *ops = s->ops;

    s->exec = exec_free(s->exec);
    s->ops = NULL;
    if (ops)
        ops->gone(s->owner, reason);
}

static void on_started(struct exec *e, uint64_t process_id, uint32_t pid,
                       const struct exec_range ranges[EXEC_STREAMS_MAX], void *userdata)
{
    struct rex_shell *s = userdata;

    (void)e;
    (void)pid;
    (void)ranges;
    s->process_id = process_id;
    pump(s, 0, &s->lines);
    pump(s, STREAM_COMMANDS, &s->input);
}

static void on_exit_(struct exec *e, const struct exec_exit *exit, void *userdata)
{
    struct rex_shell *s = userdata;
    struct error err = {0};

    (void)e;
    (void)exit;
    s->dead = true;
    (void)error_set_code(&err, ERR_SESSION_DEAD, "the shell of session '%s' has ended", s->name);
    shell_gone(s, &err);
}

static void on_closed(struct exec *e, const struct error *reason, void *userdata)
{
    struct rex_shell *s = userdata;

    (void)e;
    if (reason->code == ERR_GUEST_GONE && s->watch)
        return; /* the watch tells why */
    s->dead = s->dead || s->process_id == 0;
    shell_gone(s, reason);
}

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    struct rex_shell *s = userdata;

    (void)sb;
    s->watch = sandbox_watch_free(s->watch);
    shell_gone(s, reason);
}

static const struct exec_callbacks callbacks = {
    .on_started = on_started,
    .on_output = on_output,
    .on_writable = on_writable,
    .on_exit = on_exit_,
    .on_closed = on_closed,
};

int rex_shell_new(struct api_swerex *rex, struct sandbox *sb, struct console *c, const char *name,
                  struct rex_shell **ret, struct error *err)
{
    static const char *const argv[] = {"bash", "--noediting", "-i", NULL};
    static const char *const env[] = {"PS1=", "PS2=", "PS0=", "TERM=xterm", NULL};
    static const struct exec_stream streams[] = {
        {.fd = STREAM_COMMANDS, .to_guest = true},
        {.fd = STREAM_WORDS, .marked = true},
    };
    const struct sandbox_spec *defaults = sandbox_get_spec(sb);
    _cleanup_strv_ char **all = NULL;
    struct rex_shell *s = rex->n_shells < REX_SESSIONS_MAX ? calloc(1, sizeof(*s)) : NULL;
    int r;

    if (!s)
        return error_set_code(err, ERR_TOO_MANY, "more than %u sessions", REX_SESSIONS_MAX);
    s->rex = rex;
    s->next = rex->shells;
    if (s->next)
        s->next->prev = s;
    rex->shells = s;
    rex->n_shells++;
    (void)snprintf(s->sandbox_id, sizeof(s->sandbox_id), "%s", sandbox_id(sb));
    buf_init(&s->output, SHELL_OUTPUT_MAX);
    buf_init(&s->words, 4 * EXEC_WINDOW);
    buf_init(&s->input, INPUT_MAX);
    buf_init(&s->lines, INPUT_MAX);
    r = string_set(&s->name, name);
    for (size_t i = 0; r >= 0 && defaults->env && defaults->env[i]; i++)
        r = strv_append(&all, defaults->env[i]);
    for (size_t i = 0; r >= 0 && env[i]; i++)
        r = strv_append(&all, env[i]);
    if (r >= 0)
        r = buf_append_string(&s->lines, first_line);
    if (r >= 0)
        r = sandbox_watch_new(sb, on_gone, s, &s->watch);
    if (r < 0) {
        error_fill(err, r, "session '%s'", name);
        shell_free(s);
        return r;
    }
    const struct exec_spec spec = {
        .argv = (char *const *)(uintptr_t)argv,
        .env = all,
        .cwd = defaults->workdir,
        .user = defaults->user,
        .tty = true,
        .rows = 24,
        .cols = 80,
        .streams = streams,
        .n_streams = ARRAY_SIZE(streams),
        .label = "swe-rex",
    };
    r = exec_start(c, &spec, &callbacks, s, &s->exec, err);
    if (r < 0) {
        shell_free(s);
        return r;
    }
    *ret = s;
    return 0;
}

int rex_shell_attach(struct rex_shell *s, struct sandbox *sb, struct console *c, struct error *err)
{
    int r;

    if (s->exec)
        return 0;
    if (s->dead)
        return error_set_code(err, ERR_SESSION_DEAD, "the shell of session '%s' has ended",
                              s->name);
    r = s->watch ? 0 : sandbox_watch_new(sb, on_gone, s, &s->watch);
    if (r < 0)
        return error_fill(err, r, "session '%s'", s->name);
    return exec_attach(c, s->process_id, s->received, &callbacks, s, &s->exec, err);
}

static void on_killed(struct console *c, const struct error *err, void *userdata)
{
    (void)c;
    (void)err;
    (void)userdata;
}

void rex_shell_close(struct rex_shell *s)
{
    struct sandbox *sb = sandbox_find(s->rex->core, s->sandbox_id, NULL);
    struct console *c = sb ? sandbox_console(sb, NULL) : NULL;
    struct error closed = {0};

    if (s->exec)
        (void)exec_signal(s->exec, SIGKILL, EXEC_SIGNAL_TREE);
    else if (c && s->process_id)
        (void)exec_signal_process(c, s->process_id, SIGKILL, EXEC_SIGNAL_TREE,
                                  clock_now_usec() + KILL_USEC, on_killed, NULL);
    (void)error_set_code(&closed, ERR_SESSION_DEAD, "session '%s' was closed", s->name);
    shell_gone(s, &closed);
    shell_free(s);
}

void rex_shells_free(struct api_swerex *rex)
{
    while (rex->shells) {
        rex->shells->ops = NULL;
        shell_free(rex->shells);
    }
}
