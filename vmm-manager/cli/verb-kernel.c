#include "cli/verbs.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/paths.h"
#include "cli/client.h"
#include "cli/text.h"

int verb_script(struct cli *cli, const char *script)
{
    const struct options *o = &cli->options;
    struct sigaction action = {.sa_handler = SIG_DFL};
    const struct {
        const char *option, *value;
    } passed[] = {{"--jobs", o->jobs},
                  {"--tar", o->tar},
                  {"--url", o->url},
                  {"--sha256", o->sha256},
                  {"--dir", o->dir}};
    const char *argv[2 * ARRAY_SIZE(passed) + 3];
    char path[PATH_MAX];
    struct error err = {0};
    unsigned n = 0;

    (void)snprintf(path, sizeof(path), "%s/../libexec/hearth/%s", paths_program_dir(), script);
    argv[n++] = path;
    if (o->force)
        argv[n++] = "--force";
    for (size_t i = 0; i < ARRAY_SIZE(passed); i++) {
        if (passed[i].value) {
            argv[n++] = passed[i].option;
            argv[n++] = passed[i].value;
        }
    }
    argv[n] = NULL;
    (void)sigaction(SIGPIPE, &action, NULL);
    /* execv only reads the strings; its prototype predates const. */
    (void)execv(path, (char *const *)(uintptr_t)argv);
    (void)error_set(&err, errno, "'%s': %s", path, errno_text(errno));
    return cli_fail(cli, &err);
}

int verb_kernel_fetch(struct cli *cli, char **args, uint32_t count)
{
    (void)args;
    (void)count;
    return verb_script(cli, "kernel-fetch");
}

int verb_kernel_build(struct cli *cli, char **args, uint32_t count)
{
    (void)args;
    (void)count;
    return verb_script(cli, "kernel-build");
}

int verb_firecracker_install(struct cli *cli, char **args, uint32_t count)
{
    (void)args;
    (void)count;
    return verb_script(cli, "firecracker-install");
}

static int add_kernel(struct table *t, const json_t *kernel)
{
    bool is_default = json_is_true(json_object_get(kernel, "default"));

    return table_add(
        t, (const char *const[]){client_string(kernel, "name"), client_string(kernel, "version"),
                                 is_default ? "yes" : "no", client_string(kernel, "path")});
}

int verb_kernel_ls(struct cli *cli, char **args, uint32_t count)
{
    static const char *const heads[] = {"NAME", "VERSION", "DEFAULT", "PATH"};
    static const struct list_verb list = {"kernels", "name", heads, ARRAY_SIZE(heads), add_kernel};

    (void)args;
    (void)count;
    return verb_list(cli, "/v1/kernels", &list);
}
