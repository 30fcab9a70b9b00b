#include "cli/verbs.h"

#include "cli/client.h"

int verb_show(struct cli *cli, const char *path)
{
    json_auto_t *answer = NULL;
    struct error err = {0};

    if (client_call(cli, "GET", path, NULL, &answer, &err) < 0)
        return cli_fail(cli, &err);
    return client_print_json(answer) < 0 ? EXIT_FAILED : EXIT_DONE;
}

int verb_inspect(struct cli *cli, char **args, uint32_t count)
{
    int status = EXIT_DONE;

    for (uint32_t i = 0; i < count; i++) {
        _cleanup_free_ char *path = client_path("/v1/sandboxes/{}", args[i]);
        int r = verb_show(cli, path);

        if (r != EXIT_DONE)
            status = r;
    }
    return status;
}
