#include "cli/verbs.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "cli/client.h"
#include "cli/json-bytes.h"
#include "cli/remote.h"

#define CODE_MAX ((size_t)1024 * 1024) /* as the daemon takes */
#define BLOCK 65536u

/* The language that a file's name tells, or NULL. */
static const char *language_of(const char *path)
{
    static const char *const known[][2] = {
        {".py", "python"},     {".js", "javascript"}, {".cjs", "javascript"},
        {".ts", "typescript"}, {".sh", "bash"},       {".bash", "bash"},
    };
    const char *dot = strrchr(path, '.');

    for (size_t i = 0; dot && i < ARRAY_SIZE(known); i++) {
        if (strcmp(dot, known[i][0]) == 0)
            return known[i][1];
    }
    return NULL;
}

static int read_all(int fd, const char *name, struct buf *to, struct error *err)
{
    for (;;) {
        size_t room = MIN((size_t)BLOCK, buf_room(to));
        uint8_t *at;
        ssize_t n;

        if (room == 0) /* its maximum is one more than is allowed */
            return error_set(err, EFBIG, "'%s': has more than %zu bytes", name, CODE_MAX);
        if (buf_reserve(to, room, &at) < 0)
            return error_set(err, ENOMEM, "out of memory");
        n = fd_read_full(fd, at, room);
        if (n < 0)
            return error_set(err, (int)-n, "read '%s': %s", name, errno_text((int)-n));
        if (n == 0)
            return 0;
        buf_commit(to, (size_t)n);
    }
}

static int read_code(const struct cli *cli, const char *path, struct buf *to, struct error *err)
{
    _cleanup_close_ int fd = -EBADF;

    if (cli->options.code)
        return buf_append_string(to, cli->options.code) < 0
                   ? error_set(err, EFBIG, "--code: has more than %zu bytes", CODE_MAX)
                   : 0;
    if (!path || strcmp(path, "-") == 0)
        return read_all(STDIN_FILENO, "stdin", to, err);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return error_set_errno(err, ERR_PATH_NOT_FOUND, errno, "'%s': %s", path, errno_text(errno));
    return read_all(fd, path, to, err);
}

static int make_body(const struct cli *cli, const char *path, json_t **ret, struct error *err)
{
    const struct options *o = &cli->options;
    const char *language = o->language ? o->language : path ? language_of(path) : NULL;
    bool from_stdin = !o->code && (!path || strcmp(path, "-") == 0);
    _cleanup_buf_ struct buf code = {0}, input = {0};
    json_t *body;
    int r;

    if (o->code && path)
        return error_set(err, EINVAL, "code-run: a file and --code: give one of them, not both");
    if (o->interactive && from_stdin)
        return error_set(err, EINVAL, "code-run: stdin is the code, it cannot be the input too");
    if (!language)
        return error_set(err, EINVAL,
                         "code-run: --language python, javascript, typescript or bash is missing");
    buf_init(&code, CODE_MAX + 1);
    buf_init(&input, CODE_MAX + 1);
    r = read_code(cli, path, &code, err);
    if (r >= 0 && o->interactive)
        r = read_all(STDIN_FILENO, "stdin", &input, err);
    if (r < 0)
        return r;
    body = json_pack("{s:s, s:o}", "language", language, "code",
                     bytes_to_json(buf_string(&code), code.size));
    if (body && o->interactive)
        (void)json_object_set_new(body, "stdin", bytes_to_json(buf_string(&input), input.size));
    if (body && o->timeout_usec > 0)
        (void)json_object_set_new(
            body, "timeout_ms",
            json_integer((json_int_t)MAX(o->timeout_usec / USEC_PER_MSEC, UINT64_C(1))));
    *ret = body;
    return body ? 0 : error_set(err, ENOMEM, "out of memory");
}

static int write_out(const json_t *answer, const char *key, int fd, struct error *err)
{
    _cleanup_buf_ struct buf text = {0};
    int r;

    buf_init(&text, CLIENT_BODY_MAX);
    r = bytes_from_json(answer, key, &text);
    if (r >= 0)
        r = fd_write_full(fd, buf_string(&text), text.size);
    return r < 0 ? error_set(err, -r, "%s: %s", key, errno_text(-r)) : 0;
}

int verb_code_run(struct cli *cli, char **args, uint32_t count)
{
    json_auto_t *body = NULL, *answer = NULL;
    struct error err = {0};
    int r = make_body(cli, count > 0 ? args[0] : NULL, &body, &err);

    if (r < 0)
        return cli_fail(cli, &err);
    r = client_call_long(cli, "POST", "/v1/code_run", body, CLIENT_WORK_SILENCE_USEC, &answer,
                         &err);
    if (r >= 0 && cli->options.json)
        return client_print_json(answer) < 0 ? EXIT_FAILED : EXIT_DONE;
    if (r >= 0)
        r = write_out(answer, "stdout", STDOUT_FILENO, &err);
    if (r >= 0)
        r = write_out(answer, "stderr", STDERR_FILENO, &err);
    if (r < 0)
        return cli_fail(cli, &err);
    return (int)json_integer_value(json_object_get(answer, "exit_code"));
}
