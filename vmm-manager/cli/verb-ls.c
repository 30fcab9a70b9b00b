#include "cli/verbs.h"

#include <stdio.h>

#include "base/clock.h"
#include "cli/client.h"
#include "cli/text.h"

#define MIB (UINT64_C(1024) * 1024)

int verb_list(struct cli *cli, const char *path, const struct list_verb *what)
{
    json_auto_t *answer = NULL;
    struct error err = {0};
    struct table t;
    json_t *row;
    size_t i;
    int r;

    if (client_call(cli, "GET", path, NULL, &answer, &err) < 0)
        return cli_fail(cli, &err);
    if (cli->options.json)
        return client_print_json(answer) < 0 ? EXIT_FAILED : EXIT_DONE;
    table_init(&t, what->n_heads);
    r = table_add(&t, what->heads);
    json_array_foreach(json_object_get(answer, what->key), i, row)
    {
        if (cli->options.quiet)
            (void)puts(client_string(row, what->id));
        else if (r >= 0)
            r = what->add(&t, row);
    }
    if (r >= 0 && !cli->options.quiet)
        r = table_print(&t);
    table_done(&t);
    return r < 0 ? EXIT_FAILED : EXIT_DONE;
}

static int add_sandbox(struct table *t, const json_t *sandbox)
{
    char age[24], memory[24], cpus[24], backend[96];
    json_int_t mib = json_integer_value(json_object_get(sandbox, "memory_mib"));
    const char *accelerator = client_string(sandbox, "accelerator");

    text_age(client_string(sandbox, "created"), clock_wall_usec(), age, sizeof(age));
    text_size(mib > 0 ? (uint64_t)mib * MIB : 0, memory, sizeof(memory));
    (void)snprintf(cpus, sizeof(cpus), "%" JSON_INTEGER_FORMAT,
                   json_integer_value(json_object_get(sandbox, "cpus")));
    (void)snprintf(backend, sizeof(backend), "%s%s%s", client_string(sandbox, "backend"),
                   accelerator[0] ? "/" : "", accelerator);
    return table_add(
        t, (const char *const[]){client_string(sandbox, "id"), client_string(sandbox, "name"),
                                 client_string(sandbox, "state"), client_string(sandbox, "image"),
                                 backend, cpus, memory, age});
}

int verb_ls(struct cli *cli, char **args, uint32_t count)
{
    static const char *const heads[] = {"ID",      "NAME", "STATE",  "IMAGE",
                                        "BACKEND", "CPUS", "MEMORY", "AGE"};
    static const struct list_verb list = {"sandboxes", "id", heads, ARRAY_SIZE(heads), add_sandbox};

    (void)args;
    (void)count;
    return verb_list(cli, "/v1/sandboxes", &list);
}
