#include "cli/verbs.h"

#include <stdio.h>

#include "cli/client.h"

/* `name` is printed once it is gone; NULL: nothing is. */
int verb_delete(struct cli *cli, const char *path, const char *name)
{
    struct error err = {0};

    if (client_call(cli, "DELETE", path, NULL, NULL, &err) < 0)
        return cli_fail(cli, &err);
    if (name && !cli->options.quiet && !cli->options.json)
        (void)puts(name);
    return EXIT_DONE;
}

int verb_delete_each(struct cli *cli, const char *pattern, char **args, uint32_t count)
{
    int status = EXIT_DONE;

    for (uint32_t i = 0; i < count; i++) {
        _cleanup_free_ char *path = client_path(pattern, args[i]);
        int r = verb_delete(cli, path, args[i]);

        if (r != EXIT_DONE)
            status = r;
    }
    return status;
}

static int remove_all(struct cli *cli)
{
    json_auto_t *answer = NULL;
    struct error err = {0};
    json_t *sandbox;
    size_t i;
    int status = EXIT_DONE;

    if (client_call(cli, "GET", "/v1/sandboxes", NULL, &answer, &err) < 0)
        return cli_fail(cli, &err);
    json_array_foreach(json_object_get(answer, "sandboxes"), i, sandbox)
    {
        const char *id = client_string(sandbox, "id");
        _cleanup_free_ char *path = client_path("/v1/sandboxes/{}", id);
        int r = verb_delete(cli, path, id);

        if (r != EXIT_DONE)
            status = r;
    }
    return status;
}

int verb_rm(struct cli *cli, char **args, uint32_t count)
{
    struct error err = {0};

    if (cli->options.all && count == 0)
        return remove_all(cli);
    if (cli->options.all || count == 0) {
        (void)error_set(&err, EINVAL, "rm: give sandboxes, or --all");
        return cli_fail(cli, &err);
    }
    return verb_delete_each(cli, "/v1/sandboxes/{}", args, count);
}
