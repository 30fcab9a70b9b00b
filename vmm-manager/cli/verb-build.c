#include "cli/verbs.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"
#include "cli/client.h"
#include "cli/pack.h"
#include "cli/remote.h"

#define DOCKERFILE_MAX ((size_t)1024 * 1024)
#define DOCKERFILE_ASIDE ".hearth.dockerfile" /* one that is not in the context */

/* What is built: an open tar, and the Dockerfile in it. */
struct build_context {
    int fd;           /* owned unless it is stdin */
    char *dockerfile; /* owned; NULL: the usual one */
};

static void context_done(struct build_context *c)
{
    if (c->fd > STDIN_FILENO)
        (void)fd_close(c->fd);
    free(c->dockerfile);
}

static int read_stdin(char **ret, size_t *ret_size, struct error *err)
{
    char *data = malloc(DOCKERFILE_MAX + 1);
    ssize_t n = data ? fd_read_full(STDIN_FILENO, data, DOCKERFILE_MAX) : -ENOMEM;

    if (n < 0) {
        free(data);
        return error_set(err, (int)-n, "read the Dockerfile from stdin: %s", errno_text((int)-n));
    }
    data[n] = '\0';
    *ret = data;
    *ret_size = (size_t)n;
    return 0;
}

/* A Dockerfile below the context goes by its path there, any other one is sent beside it. */
static int find_dockerfile(const char *dir, const char *given, struct build_context *c,
                           struct pack_file *extra, char **ret_data, struct error *err)
{
    char path[PATH_MAX];
    size_t n = strlen(dir);

    if (!given)
        return 0;
    if (strcmp(given, "-") == 0) {
        if (read_stdin(ret_data, &extra->size, err) < 0)
            return -err->errnum;
    } else if (!realpath(given, path)) {
        return error_set_errno(err, ERR_PATH_NOT_FOUND, errno, "image build: '%s': %s", given,
                               errno_text(errno));
    } else if (strncmp(path, dir, n) == 0 && (path[n] == '/' || strcmp(dir, "/") == 0)) {
        c->dockerfile = strdup(path + n + (path[n] == '/'));
        return c->dockerfile ? 0 : error_set(err, ENOMEM, "out of memory");
    } else if (file_read(path, DOCKERFILE_MAX, ret_data, &extra->size, err) < 0) {
        return -err->errnum;
    }
    extra->name = DOCKERFILE_ASIDE;
    extra->data = *ret_data;
    c->dockerfile = strdup(DOCKERFILE_ASIDE);
    return c->dockerfile ? 0 : error_set(err, ENOMEM, "out of memory");
}

/* In a file without a name: a context that cannot be read to its end is not built. */
static int pack_context(const char *arg, const char *given, struct build_context *c,
                        struct error *err)
{
    const char *tmp = getenv("TMPDIR");
    _cleanup_free_ char *data = NULL;
    struct pack_file extra = {0};
    char dir[PATH_MAX];
    int r;

    if (!realpath(arg, dir))
        return error_set_errno(err, ERR_PATH_NOT_FOUND, errno, "image build: '%s': %s", arg,
                               errno_text(errno));
    r = find_dockerfile(dir, given, c, &extra, &data, err);
    if (r < 0)
        return r;
    c->fd = file_open_unnamed(tmp && *tmp == '/' ? tmp : "/var/tmp");
    if (c->fd < 0)
        return error_set(err, -c->fd, "image build: a temporary file: %s", errno_text(-c->fd));
    r = pack_dir(dir, extra.name ? &extra : NULL, c->fd, err);
    if (r == 0 && lseek(c->fd, 0, SEEK_SET) < 0)
        r = error_set(err, errno, "image build: %s", errno_text(errno));
    return r;
}

/* ---- what is asked for ---- */

static char *build_path(struct cli *cli, const struct build_context *c, struct error *err)
{
    const struct options *o = &cli->options;
    json_auto_t *body = json_object();
    _cleanup_free_ char *text = NULL;
    int r = remote_add_string(body, "name", o->tag, err);

    if (r >= 0)
        r = remote_add_string(body, "dockerfile", c->dockerfile, err);
    if (r >= 0)
        r = remote_add_string(body, "target", o->target, err);
    if (r >= 0)
        r = remote_add_string(body, "platform", o->platform, err);
    if (r >= 0)
        r = remote_add_string(body, "backend", o->backend, err);
    for (size_t i = 0; r >= 0 && o->build_args && o->build_args[i]; i++) {
        json_t *args = json_object_get(body, "args");
        char *equals = strchr(o->build_args[i], '=');

        if (!args) {
            args = json_object();
            (void)json_object_set_new(body, "args", args);
        }
        *equals = '\0';
        if (json_object_set_new(args, o->build_args[i], json_string(equals + 1)) < 0)
            r = error_set(err, EINVAL, "--build-arg %s: expected UTF-8", o->build_args[i]);
    }
    if (r < 0)
        return NULL;
    if (o->no_cache)
        (void)json_object_set_new(body, "no_cache", json_true());
    if (o->run_timeout_usec > 0)
        (void)json_object_set_new(
            body, "run_timeout_ms",
            json_integer((json_int_t)MAX(o->run_timeout_usec / USEC_PER_MSEC, UINT64_C(1))));
    if (o->cpus)
        (void)json_object_set_new(body, "cpus", json_integer((json_int_t)o->cpus));
    if (o->memory_mib)
        (void)json_object_set_new(body, "memory_mib", json_integer((json_int_t)o->memory_mib));
    if (o->disk_mib)
        (void)json_object_set_new(body, "disk_mib", json_integer((json_int_t)o->disk_mib));
    text = json_dumps(body, JSON_COMPACT);
    return text ? client_path("/v1/images/build?options={}", text) : NULL;
}

/* ---- what comes back ---- */

/* Output that is no UTF-8, or was cut within a character, comes as {"base64": "…"}. */
static void print_base64(const char *text)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t bits = 0;
    unsigned n = 0;

    for (; *text && *text != '='; text++) {
        const char *digit = strchr(digits, *text);

        if (!digit)
            return;
        bits = bits << 6 | (uint32_t)(digit - digits);
        n += 6;
        if (n >= 8) {
            n -= 8;
            (void)fputc((int)(bits >> n & 0xff), stderr);
        }
    }
}

static void print_output(const json_t *value)
{
    if (json_is_string(value))
        (void)fputs(json_string_value(value), stderr);
    else
        print_base64(client_string(value, "base64"));
}

static void print_step(const json_t *step)
{
    (void)fprintf(
        stderr, "[%lld/%lld] %s\n", (long long)json_integer_value(json_object_get(step, "index")),
        (long long)json_integer_value(json_object_get(step, "total")), client_string(step, "text"));
}

static void print_done(const json_t *done)
{
    json_int_t msec = json_integer_value(json_object_get(done, "duration_ms"));

    if (json_is_true(json_object_get(done, "cached")))
        (void)fputs("  CACHED\n", stderr);
    else if (msec >= 100)
        (void)fprintf(stderr, "  %lld.%llds\n", (long long)(msec / 1000),
                      (long long)(msec % 1000 / 100));
}

/* 1 when it was the last. */
static int take_line(struct cli *cli, const char *line, json_t **ret, struct error *err)
{
    json_auto_t *json = json_loads(line, JSON_ALLOW_NUL, NULL);
    json_t *value;

    if (!json)
        return line[0] ? error_set(err, EPROTO, "the daemon's answer is not JSON") : 0;
    value = json_object_get(json, "error");
    if (value)
        return client_error(value, err);
    value = json_object_get(json, "image");
    if (value) {
        *ret = json_incref(value);
        return 1;
    }
    if (cli->options.quiet)
        return 0;
    value = json_object_get(json, "progress");
    if (value) {
        json_t *percent = json_object_get(value, "percent");

        progress_update(&cli->progress, client_string(value, "step"),
                        json_is_integer(percent) ? (int)json_integer_value(percent) : -1);
        return 0;
    }
    cli_progress_end(cli);
    if ((value = json_object_get(json, "step")))
        print_step(value);
    else if ((value = json_object_get(json, "step_done")))
        print_done(value);
    else if ((value = json_object_get(json, "warning")))
        (void)fprintf(stderr, "warning: %s\n", json_string_value(value));
    else if ((value = json_object_get(json, "stdout")) || (value = json_object_get(json, "stderr")))
        print_output(value);
    cli_progress_begin(cli, NULL); /* for what takes long until the next line */
    return 0;
}

static int build(struct cli *cli, const char *path, int fd, json_t **ret, struct error *err)
{
    _cleanup_free_ char *line = NULL;
    _cleanup_buf_ struct buf rest = {0};
    struct http_request request = {.method = "POST",
                                   .target = path,
                                   .accept = "application/x-ndjson",
                                   .upload = true,
                                   .upload_fd = fd,
                                   /* a command may say nothing for as long as it likes */
                                   .silence_usec = USEC_INFINITY};
    int r = client_open(cli, &request, err);

    if (r < 0)
        return r;
    buf_init(&rest, HTTP_LINE_MAX * 4);
    do {
        r = http_read_line(&cli->http, &rest, &line, err);
        if (r == 0)
            return error_set_errno(err, ERR_INTERNAL, EPROTO,
                                   "the daemon's answer ends without a result");
        if (r > 0)
            r = take_line(cli, line, ret, err);
    } while (r == 0);
    return r < 0 ? r : 0;
}

int verb_image_build(struct cli *cli, char **args, uint32_t count)
{
    _cleanup_(context_done) struct build_context c = {.fd = -EBADF};
    _cleanup_free_ char *path = NULL;
    json_auto_t *image = NULL;
    struct error err = {0};
    int r = 0;

    (void)count;
    if (strcmp(args[0], "-") == 0) {
        c.fd = STDIN_FILENO;
        r = string_set(&c.dockerfile, cli->options.dockerfile);
    } else {
        r = pack_context(args[0], cli->options.dockerfile, &c, &err);
    }
    if (r == 0) {
        path = build_path(cli, &c, &err);
        r = path ? 0 : error_fill(&err, -ENOMEM, "image build");
    }
    if (r == 0) {
        cli_progress_begin(cli, "sending the context");
        r = build(cli, path, c.fd, &image, &err);
        cli_progress_end(cli);
    }
    if (r < 0)
        return cli_fail(cli, &err);
    if (cli->options.json)
        return client_print_json(image) < 0 ? EXIT_FAILED : EXIT_DONE;
    return puts(client_string(image, "name")) == EOF ? EXIT_FAILED : EXIT_DONE;
}
