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
#define EXEC_MESSAGE_MAX (FRAME_CONTROL_MAX - 16u * 1024u) /* lengths and numbers take the rest */
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

static int take_files(struct exec_message *m, const struct exec_confine *from, size_t *total,
                      struct error *err)
{
    if (from->n_files > EXEC_FILES_MAX)
        return error_set_code(err, ERR_LIMIT_EXCEEDED, "%zu files, at most %u are possible",
                              from->n_files, EXEC_FILES_MAX);
    m->files = calloc(from->n_files + 1, sizeof(*m->files));
    m->file_list = calloc(from->n_files + 1, sizeof(Hearth__V1__StartFile *));
    if (!m->files || !m->file_list)
        return error_set(err, ENOMEM, "preparing the command's files");
    for (size_t i = 0; i < from->n_files; i++) {
        const struct exec_file *file = &from->files[i];

        if (file->path[0] != '/' || strlen(file->path) > EXEC_FILE_PATH_MAX)
            return error_set_code(err, ERR_INVALID_ARGUMENT,
                                  "file %zu: its path is not absolute or longer than %u bytes", i,
                                  EXEC_FILE_PATH_MAX);
        *total += strlen(file->path) + file->size;
        if (*total > EXEC_MESSAGE_MAX)
            return error_set_code(err, ERR_LIMIT_EXCEEDED,
                                  "arguments, environment and files together exceed %u bytes",
                                  EXEC_MESSAGE_MAX);
        hearth__v1__start_file__init(&m->files[i]);
        m->files[i].path = bytes_of(file->path);
        m->files[i].content =
            (ProtobufCBinaryData){.data = (uint8_t *)unconst(file->data), .len = file->size};
        m->file_list[i] = &m->files[i];
    }
    m->confine.files = m->file_list;
    m->confine.n_files = from->n_files;
    return 0;
}

static int take_confine(struct exec_message *m, const struct exec_confine *from, size_t *total,
                        struct error *err)
{
    hearth__v1__confine__init(&m->confine);
    for (size_t i = 0; i < from->n_scratch; i++) {
        hearth__v1__scratch__init(&m->scratch[i]);
        m->scratch[i].path = bytes_of(from->scratch[i].path);
        m->scratch[i].size_bytes = from->scratch[i].size_bytes;
        m->scratch_list[i] = &m->scratch[i];
    }
    m->confine.scratch = m->scratch_list;
    m->confine.n_scratch = from->n_scratch;
    m->exec.confine = &m->confine;
    return take_files(m, from, total, err);
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
    m->exec.no_new_privileges = spec->no_new_privileges;
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
    if (spec->confine)
        r = take_confine(m, spec->confine, &total, err);
    return r < 0 ? r : take_streams(m, spec, err);
}

void exec_message_done(struct exec_message *m)
{
    free(m->argv);
    free(m->env);
    free(m->files);
    free(m->file_list);
    m->files = NULL;
    m->file_list = NULL;
    m->argv = NULL;
    m->env = NULL;
}
