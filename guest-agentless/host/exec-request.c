#include "host/exec-internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "protocol/frame.h"

/* The kernel's limit of one string of argv or environment (MAX_ARG_STRLEN), without its NUL. */
#define STRING_MAX (128u * 1024u - 1u)
#define PATH_BYTES_MAX 4095u
#define USER_BYTES_MAX 255u
#define LABEL_BYTES_MAX 128u
#define ROWS_DEFAULT 24u
#define COLS_DEFAULT 80u

/* protobuf-c has no const fields; packing only reads them. */
static char *unconst(const char *s)
{
    union {
        const char *in;
        char *out;
    } u = {.in = s};

    return u.out;
}

static ProtobufCBinaryData bytes_of(const char *s)
{
    return (ProtobufCBinaryData){.data = (uint8_t *)unconst(s), .len = strlen(s)};
}

/* Makes the array of one vector; `noun` names an element in errors. */
static int take_strings(char *const *strings, const char *noun, ProtobufCBinaryData **ret,
                        size_t *ret_count, size_t *total, struct error *err)
{
    ProtobufCBinaryData *list;
    size_t count = 0;

    while (strings && strings[count]) {
        size_t size = strlen(strings[count]);

        if (size > STRING_MAX)
            return error_set_code(err, ERR_LIMIT_EXCEEDED,
                                  "%s %zu has %zu bytes, the kernel takes at most %u", noun, count,
                                  size, STRING_MAX);
        *total += size + 1;
        if (*total > FRAME_CONTROL_MAX)
            return error_set_code(err, ERR_LIMIT_EXCEEDED,
                                  "arguments and environment together exceed %u bytes (at %s %zu)",
                                  FRAME_CONTROL_MAX, noun, count);
        count++;
    }
    list = calloc(count + 1, sizeof(*list));
    if (!list)
        return error_set(err, ENOMEM, "preparing the command");
    for (size_t i = 0; i < count; i++)
        list[i] = bytes_of(strings[i]);
    *ret = list;
    *ret_count = count;
    return 0;
}

static int check_env(char *const *env, struct error *err)
{
    for (size_t i = 0; env && env[i]; i++) {
        const char *equals = strchr(env[i], '=');

        if (!equals || equals == env[i])
            return error_set_code(err, ERR_INVALID_ARGUMENT,
                                  "environment entry %zu is not of the form NAME=VALUE", i);
    }
    return 0;
}

static int check_text(const char *s, const char *noun, size_t max, struct error *err)
{
    if (s && strlen(s) > max)
        return error_set_code(err, ERR_LIMIT_EXCEEDED, "%s has %zu bytes, at most %zu are allowed",
                              noun, strlen(s), max);
    return 0;
}

static void add_window(struct exec_message *m, uint32_t stream)
{
    size_t i = m->exec.n_windows++;

    hearth__v1__stream_limit__init(&m->windows[i]);
    m->windows[i].stream = stream;
    m->windows[i].offset = EXEC_WINDOW;
    m->window_list[i] = &m->windows[i];
}

static int take_streams(struct exec_message *m, const struct exec_spec *spec, struct error *err)
{
    unsigned seen = 0;

    if (spec->n_streams > CHANNEL_STREAMS - 3)
        return error_set_code(err, ERR_LIMIT_EXCEEDED, "%zu extra streams, at most %u are possible",
                              spec->n_streams, CHANNEL_STREAMS - 3);
    m->exec.streams = m->stream_list;
    m->exec.windows = m->window_list;
    add_window(m, 1);
    if (!spec->tty)
        add_window(m, 2);
    for (size_t i = 0; i < spec->n_streams; i++) {
        const struct exec_stream *from = &spec->streams[i];
        Hearth__V1__StreamSpec *to = &m->streams[i];

        if (from->fd < 3 || from->fd >= CHANNEL_STREAMS || (seen & 1u << from->fd) ||
            (from->marked && from->to_guest))
            return error_set_code(err, ERR_INVALID_ARGUMENT, "extra stream %u is not possible",
                                  from->fd);
        seen |= 1u << from->fd;
        hearth__v1__stream_spec__init(to);
        to->fd = from->fd;
        to->to_guest = from->to_guest;
        to->marked = from->marked;
        m->stream_list[i] = to;
        if (!from->to_guest)
            add_window(m, from->fd);
    }
    m->exec.n_streams = spec->n_streams;
    return 0;
}

static void take_numbers(struct exec_message *m, const struct exec_spec *spec)
{
    if (spec->tty) {
        hearth__v1__tty__init(&m->tty);
        m->tty.rows = spec->rows ? spec->rows : ROWS_DEFAULT;
        m->tty.cols = spec->cols ? spec->cols : COLS_DEFAULT;
        m->exec.tty = &m->tty;
    }
    if (spec->memory_max_bytes || spec->pids_max) {
        hearth__v1__limits__init(&m->limits);
        m->limits.memory_bytes = spec->memory_max_bytes;
        m->limits.pids = spec->pids_max;
        m->exec.limits = &m->limits;
    }
    m->exec.ring_size = spec->ring_bytes;
    m->exec.drop_when_full = spec->drop_when_full;
    m->exec.timeout_msec = spec->timeout_msec;
    m->exec.kill_grace_msec = spec->kill_grace_msec;
    m->exec.close_stdin = spec->close_stdin;
}

int exec_message_init(struct exec_message *m, const struct exec_spec *spec, struct error *err)
{
    size_t total = 0;
    int r;

    hearth__v1__request__init(&m->request);
    hearth__v1__exec__init(&m->exec);
    m->request.op_case = HEARTH__V1__REQUEST__OP_EXEC;
    m->request.exec = &m->exec;

    if (!spec->argv || !spec->argv[0])
        return error_set_code(err, ERR_INVALID_ARGUMENT, "no command given");
    if (spec->argv[0][0] == '\0')
        return error_set_code(err, ERR_INVALID_ARGUMENT, "command is an empty string");
    r = take_strings(spec->argv, "argument", &m->argv, &m->exec.n_argv, &total, err);
    if (r < 0)
        return r;
    r = take_strings(spec->env, "environment entry", &m->env, &m->exec.n_env, &total, err);
    if (r < 0)
        return r;
    r = check_env(spec->env, err);
    if (r < 0)
        return r;
    m->exec.argv = m->argv;
    m->exec.env = m->env;

    r = check_text(spec->cwd, "working directory", PATH_BYTES_MAX, err);
    if (r >= 0)
        r = check_text(spec->user, "user name", USER_BYTES_MAX, err);
    if (r >= 0)
        r = check_text(spec->label, "label", LABEL_BYTES_MAX, err);
    if (r < 0)
        return r;
    if (spec->cwd)
        m->exec.cwd = bytes_of(spec->cwd);
    if (spec->user)
        m->exec.user = unconst(spec->user);
    if (spec->label)
        m->exec.label = unconst(spec->label);
    take_numbers(m, spec);
    return take_streams(m, spec, err);
}

void exec_message_done(struct exec_message *m)
{
    free(m->argv);
    free(m->env);
    m->argv = NULL;
    m->env = NULL;
}
