#include "cli/verbs.h"

#include <stdio.h>

#include "cli/client.h"
#include "cli/remote.h"

static json_t *fork_body(struct cli *cli, bool with_from, struct error *err)
{
    const struct options *o = &cli->options;
    json_auto_t *body = json_object();

    if (!body || (o->children > 0 &&
                  json_object_set_new(body, "count", json_integer((json_int_t)o->children)) < 0)) {
        (void)error_set(err, ENOMEM, "out of memory");
        return NULL;
    }
    if (remote_add_string(body, "name", o->name, err) < 0 ||
        remote_add_string(body, "from", with_from ? o->from : NULL, err) < 0)
        return NULL;
    return json_incref(body);
}

int verb_fork(struct cli *cli, char **args, uint32_t count)
{
    const char *from = cli->options.from;
    _cleanup_free_ char *path = NULL;
    json_auto_t *body = NULL, *sandboxes = NULL;
    struct error err = {0};
    json_t *sandbox;
    size_t i;
    int r;

    if (count == 0 && !from) {
        (void)error_set(&err, EINVAL, "fork: give a sandbox, or --from SNAPSHOT");
        (void)cli_fail(cli, &err);
        return EXIT_USAGE;
    }
    body = fork_body(cli, count > 0, &err);
    if (!body)
        return cli_fail(cli, &err);
    path = count > 0 ? client_path("/v1/sandboxes/{}/fork", args[0])
                     : client_path("/v1/snapshots/{}/fork", from);
    r = verb_work(cli, path, body, "forking", "sandboxes", &sandboxes);
    if (r != EXIT_DONE)
        return r;
    if (cli->options.json)
        return client_print_json(sandboxes) < 0 ? EXIT_FAILED : EXIT_DONE;
    json_array_foreach(sandboxes, i, sandbox)
    {
        if (puts(client_string(sandbox, "id")) == EOF)
            return EXIT_FAILED;
    }
    return EXIT_DONE;
}
