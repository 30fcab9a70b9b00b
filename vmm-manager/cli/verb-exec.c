#include "cli/verbs.h"

#include "cli/remote.h"

int verb_exec(struct cli *cli, char **args, uint32_t count)
{
    struct error err = {0};
    int r;

    (void)count;
    r = cli->options.detach ? 0 : remote_signals(cli, &err);
    if (r >= 0)
        r = verb_run_in(cli, args[0], args + 1, cli->options.tty && !cli->options.json, &err);
    return r < 0 ? remote_fail(cli, r, &err) : r;
}
