#include "cli/verbs.h"

#include "cli/remote.h"

int verb_shell(struct cli *cli, char **args, uint32_t count)
{
    struct error err = {0};
    int r;

    (void)count;
    if (!verb_is_terminal()) {
        (void)error_set(&err, ENOTTY,
                        "shell needs a terminal on stdin and stdout; without one use "
                        "'hearth exec %s -- COMMAND' or 'hearth session run %s -- TEXT'",
                        args[0], args[0]);
        return cli_fail(cli, &err);
    }
    r = remote_signals(cli, &err);
    if (r >= 0)
        r = verb_run_in(cli, args[0], NULL, /* tty= */ true, &err);
    return r < 0 ? remote_fail(cli, r, &err) : r;
}
