#include "cli/verbs.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/strv.h"
#include "cli/client.h"
#include "cli/remote.h"
#include "cli/text.h"

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
    json_auto_t *answer = NULL;
    struct error err = {0};
    struct table t;
    json_t *image;
    size_t i;
    int r;

    (void)args;
    (void)count;
    if (client_call(cli, "GET", "/v1/images", NULL, &answer, &err) < 0)
        return cli_fail(cli, &err);
    if (cli->options.json)
        return client_print_json(answer) < 0 ? EXIT_FAILED : EXIT_DONE;
    table_init(&t, ARRAY_SIZE(heads));
    r = table_add(&t, heads);
    json_array_foreach(json_object_get(answer, "images"), i, image)
    {
        if (cli->options.quiet)
            (void)puts(client_string(image, "name"));
        else if (r >= 0)
            r = add_image(&t, image);
    }
    if (r >= 0 && !cli->options.quiet)
        r = table_print(&t);
    table_done(&t);
    return r < 0 ? EXIT_FAILED : EXIT_DONE;
}

int verb_image_inspect(struct cli *cli, char **args, uint32_t count)
{
    _cleanup_free_ char *path = client_path("/v1/images/{}", args[0]);

    (void)count;
    return verb_show(cli, path);
}

int verb_image_rm(struct cli *cli, char **args, uint32_t count)
{
    int status = EXIT_DONE;

    for (uint32_t i = 0; i < count; i++) {
        _cleanup_free_ char *path = client_path("/v1/images/{}", args[i]);
        int r = verb_delete(cli, path, args[i]);

        if (r != EXIT_DONE)
            status = r;
    }
    return status;
}

int verb_image_import(struct cli *cli, char **args, uint32_t count)
{
    json_auto_t *body = json_object(), *image = NULL;
    char source[PATH_MAX];
    struct error err = {0};
    int r;

    (void)count;
    if (!cli->options.name) {
        (void)error_set(&err, EINVAL, "image import: --name NAME is missing");
        return cli_fail(cli, &err);
    }
    /* The daemon has another working directory. */
    if (!realpath(args[0], source)) {
        (void)error_set_errno(&err, ERR_PATH_NOT_FOUND, errno, "image import: '%s': %s", args[0],
                              errno_text(errno));
        return cli_fail(cli, &err);
    }
    r = remote_add_string(body, "name", cli->options.name, &err);
    if (r >= 0)
        r = remote_add_string(body, "path", source, &err);
    if (r >= 0) {
        cli_progress_begin(cli, "importing");
        r = client_work(cli, "/v1/images/import", body, "image", &image, &err);
        cli_progress_end(cli);
    }
    if (r < 0)
        return cli_fail(cli, &err);
    if (cli->options.json)
        return client_print_json(image) < 0 ? EXIT_FAILED : EXIT_DONE;
    return puts(client_string(image, "name")) == EOF ? EXIT_FAILED : EXIT_DONE;
}

int verb_image_base(struct cli *cli, char **args, uint32_t count)
{
    (void)args;
    (void)count;
    return verb_script(cli, "image-base");
}
