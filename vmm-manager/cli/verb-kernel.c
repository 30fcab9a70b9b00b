#include "cli/verbs.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/paths.h"
#include "cli/client.h"
#include "cli/text.h"

#define SCRIPT_ARGS_MAX 64u

int verb_script(struct cli *cli, const char *script, char **args, uint32_t count)
{
    struct sigaction action = {.sa_handler = SIG_DFL};
    char path[PATH_MAX], *argv[SCRIPT_ARGS_MAX + 2];
    struct error err = {0};
    int n;

    n = snprintf(path, sizeof(path), "%s/../libexec/hearth/%s", paths_program_dir(), script);
    if (n < 0 || (size_t)n >= sizeof(path) || count > SCRIPT_ARGS_MAX) {
        (void)error_set(&err, E2BIG, "%s: too long", script);
        return cli_fail(cli, &err);
    }
    argv[0] = path;
    memcpy(argv + 1, args, count * sizeof(*args));
    argv[count + 1] = NULL;
    (void)sigaction(SIGPIPE, &action, NULL);
    (void)execv(path, argv);
    (void)error_set(&err, errno, "'%s': %s", path, errno_text(errno));
    return cli_fail(cli, &err);
}

int verb_kernel_fetch(struct cli *cli, char **args, uint32_t count)
{
    return verb_script(cli, "kernel-fetch", args, count);
}

int verb_kernel_build(struct cli *cli, char **args, uint32_t count)
{
    return verb_script(cli, "kernel-build", args, count);
}

int verb_kernel_ls(struct cli *cli, char **args, uint32_t count)
{
    static const char *const heads[] = {"NAME", "VERSION", "DEFAULT", "PATH"};
    json_auto_t *answer = NULL;
    struct error err = {0};
    struct table t;
    json_t *kernel;
    size_t i;
    int r;

    (void)args;
    (void)count;
    if (client_call(cli, "GET", "/v1/kernels", NULL, &answer, &err) < 0)
        return cli_fail(cli, &err);
    if (cli->options.json)
        return client_print_json(answer) < 0 ? EXIT_FAILED : EXIT_DONE;
    table_init(&t, ARRAY_SIZE(heads));
    r = table_add(&t, heads);
    json_array_foreach(json_object_get(answer, "kernels"), i, kernel)
    {
        bool is_default = json_is_true(json_object_get(kernel, "default"));

        if (cli->options.quiet)
            (void)puts(client_string(kernel, "name"));
        else if (r >= 0)
            r = table_add(&t, (const char *const[]){
                                  client_string(kernel, "name"), client_string(kernel, "version"),
                                  is_default ? "yes" : "no", client_string(kernel, "path")});
    }
    if (r >= 0 && !cli->options.quiet)
        r = table_print(&t);
    table_done(&t);
    return r < 0 ? EXIT_FAILED : EXIT_DONE;
}
