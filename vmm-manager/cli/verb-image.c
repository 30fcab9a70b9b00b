#include "cli/verbs.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/strv.h"
#include "cli/client.h"
#include "cli/remote.h"
#include "cli/text.h"

#define SPOOL_BLOCK ((size_t)256 * 1024)
#define WORK_SILENCE_USEC (600 * USEC_PER_SEC)

static uint64_t number(const json_t *json, const char *key)
{
    json_int_t value = json_integer_value(json_object_get(json, key));

    return value > 0 ? (uint64_t)value : 0;
}

static int add_image(struct table *t, const json_t *image)
{
    const char *digest = client_string(image, "sha256");
    uint64_t bytes = number(image, "size_bytes");
    char size[24], age[24], sum[20];

    if (bytes == 0)
        bytes = number(image, "size");
    if (digest[0] == '\0')
        digest = client_string(image, "digest");
    text_size(bytes, size, sizeof(size));
    text_age(client_string(image, "created"), clock_wall_usec(), age, sizeof(age));
    (void)snprintf(sum, sizeof(sum), "%.16s", digest);
    return table_add(t, (const char *const[]){client_string(image, "name"), size, age, sum});
}

int verb_image_ls(struct cli *cli, char **args, uint32_t count)
{
    static const char *const heads[] = {"NAME", "SIZE", "AGE", "DIGEST"};
    static const struct list_verb list = {"images", "name", heads, ARRAY_SIZE(heads), add_image};

    (void)args;
    (void)count;
    return verb_list(cli, "/v1/images", &list);
}

int verb_image_inspect(struct cli *cli, char **args, uint32_t count)
{
    _cleanup_free_ char *path = client_path("/v1/images/{}", args[0]);

    (void)count;
    return verb_show(cli, path);
}

int verb_image_rm(struct cli *cli, char **args, uint32_t count)
{
    return verb_delete_each(cli, "/v1/images/{}", args, count);
}

/* A long piece of work on an image; prints its name at the end. */
static int image_work(struct cli *cli, const char *path, json_t *body, const char *step)
{
    json_auto_t *image = NULL;
    struct error err = {0};
    int r;

    cli_progress_begin(cli, step);
    r = client_work(cli, path, body, "image", &image, &err);
    cli_progress_end(cli);
    if (r < 0)
        return cli_fail(cli, &err);
    if (cli->options.json)
        return client_print_json(image) < 0 ? EXIT_FAILED : EXIT_DONE;
    return puts(client_string(image, "name")) == EOF ? EXIT_FAILED : EXIT_DONE;
}

/* A file of our own with what stdin holds, or an empty one; the caller removes it. */
static int spool(bool fill, char path[static PATH_MAX], struct error *err)
{
    const char *dir = getenv("TMPDIR");
    _cleanup_free_ char *block = malloc(SPOOL_BLOCK);
    _cleanup_close_ int fd = -EBADF;
    int r = 0;

    (void)snprintf(path, PATH_MAX, "%s/hearth-XXXXXX", dir && *dir == '/' ? dir : "/var/tmp");
    fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0 || !block)
        return error_set(err, fd < 0 ? errno : ENOMEM, "create '%s': %s", path, errno_text(errno));
    while (fill && r == 0) {
        ssize_t n = fd_read_full(STDIN_FILENO, block, SPOOL_BLOCK);

        if (n == 0)
            break;
        r = n < 0 ? (int)n : fd_write_full(fd, block, (size_t)n);
    }
    if (r < 0) {
        (void)unlink(path);
        return error_set(err, -r, "copy stdin to '%s': %s", path, errno_text(-r));
    }
    return 0;
}

int verb_image_import(struct cli *cli, char **args, uint32_t count)
{
    json_auto_t *body = json_object();
    bool from_stdin = strcmp(args[0], "-") == 0;
    char source[PATH_MAX];
    struct error err = {0};
    int r;

    (void)count;
    if (!cli->options.name) {
        (void)error_set(&err, EINVAL, "image import: --name NAME is missing");
        return cli_fail(cli, &err);
    }
    /* The daemon has another working directory. */
    if (from_stdin) {
        if (spool(true, source, &err) < 0)
            return cli_fail(cli, &err);
    } else if (!realpath(args[0], source)) {
        (void)error_set_errno(&err, ERR_PATH_NOT_FOUND, errno, "image import: '%s': %s", args[0],
                              errno_text(errno));
        return cli_fail(cli, &err);
    }
    r = remote_add_string(body, "name", cli->options.name, &err);
    if (r >= 0)
        r = remote_add_string(body, "path", source, &err);
    r = r < 0 ? cli_fail(cli, &err) : image_work(cli, "/v1/images/import", body, "importing");
    if (from_stdin)
        (void)unlink(source);
    return r;
}

int verb_image_pull(struct cli *cli, char **args, uint32_t count)
{
    int status = EXIT_DONE;

    for (uint32_t i = 0; i < count; i++) {
        json_auto_t *body = json_object();
        struct error err = {0};
        int r = remote_add_string(body, "name", args[i], &err);

        if (r >= 0)
            r = remote_add_string(body, "platform", cli->options.platform, &err);
        r = r < 0 ? cli_fail(cli, &err) : image_work(cli, "/v1/images/pull", body, args[i]);
        if (r != EXIT_DONE)
            status = r;
    }
    return status;
}

static int copy_out(const char *path, struct error *err)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    _cleanup_free_ char *block = malloc(SPOOL_BLOCK);
    int r = fd < 0 ? -errno : block ? 0 : -ENOMEM;

    while (r == 0) {
        ssize_t n = fd_read_full(fd, block, SPOOL_BLOCK);

        if (n == 0)
            return 0;
        r = n < 0 ? (int)n : fd_write_full(STDOUT_FILENO, block, (size_t)n);
    }
    return error_set(err, -r, "copy '%s' to stdout: %s", path, errno_text(-r));
}

int verb_image_export(struct cli *cli, char **args, uint32_t count)
{
    json_auto_t *body = json_object(), *image = NULL;
    bool to_stdout = strcmp(args[1], "-") == 0;
    char target[PATH_MAX], here[PATH_MAX];
    struct error err = {0};
    int r = 0;

    (void)count;
    if (to_stdout) {
        if (isatty(STDOUT_FILENO) == 1)
            r = error_set(&err, EINVAL, "image export: stdout is a terminal");
        else
            r = spool(false, target, &err);
    } else if (args[1][0] == '/') {
        (void)snprintf(target, sizeof(target), "%s", args[1]);
    } else if (!getcwd(here, sizeof(here)) ||
               (size_t)snprintf(target, sizeof(target), "%s/%s", here, args[1]) >= sizeof(target)) {
        r = error_set(&err, ENAMETOOLONG, "image export: '%s': the path is too long", args[1]);
    }
    if (r < 0)
        return cli_fail(cli, &err);
    r = remote_add_string(body, "name", args[0], &err);
    if (r >= 0)
        r = remote_add_string(body, "path", target, &err);
    if (r >= 0) {
        cli_progress_begin(cli, "exporting");
        r = client_work(cli, "/v1/images/export", body, "image", &image, &err);
        cli_progress_end(cli);
    }
    if (r >= 0 && to_stdout)
        r = copy_out(target, &err);
    if (to_stdout)
        (void)unlink(target);
    return r < 0 ? cli_fail(cli, &err) : EXIT_DONE;
}

int verb_image_prune(struct cli *cli, char **args, uint32_t count)
{
    json_auto_t *body = json_pack("{s:b}", "all", cli->options.all), *answer = NULL;
    struct error err = {0};
    char size[24];

    (void)args;
    (void)count;
    if (client_call_long(cli, "POST", "/v1/images/prune", body, WORK_SILENCE_USEC, &answer, &err) <
        0)
        return cli_fail(cli, &err);
    if (cli->options.json)
        return client_print_json(answer) < 0 ? EXIT_FAILED : EXIT_DONE;
    text_size(number(answer, "freed_bytes"), size, sizeof(size));
    return printf("%s freed\n", size) < 0 ? EXIT_FAILED : EXIT_DONE;
}

int verb_image_base(struct cli *cli, char **args, uint32_t count)
{
    (void)args;
    (void)count;
    return verb_script(cli, "image-base");
}

int verb_image_code(struct cli *cli, char **args, uint32_t count)
{
    (void)args;
    (void)count;
    return verb_script(cli, "image-code");
}
