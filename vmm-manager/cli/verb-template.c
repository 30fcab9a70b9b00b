#include "cli/verbs.h"

#include <stdio.h>

#include "base/clock.h"
#include "cli/client.h"
#include "cli/text.h"

#define MIB (UINT64_C(1024) * 1024)

static int add_template(struct table *t, const json_t *template)
{
    json_int_t mib = json_integer_value(json_object_get(template, "memory_mib"));
    char memory[24], cpus[24], age[24];

    text_size(mib > 0 ? (uint64_t)mib * MIB : 0, memory, sizeof(memory));
    text_age(client_string(template, "created"), clock_wall_usec(), age, sizeof(age));
    (void)snprintf(cpus, sizeof(cpus), "%" JSON_INTEGER_FORMAT,
                   json_integer_value(json_object_get(template, "cpus")));
    return table_add(t, (const char *const[]){client_string(template, "id"),
                                              client_string(template, "image"),
                                              client_string(template, "backend"),
                                              client_string(template, "state"), cpus, memory, age});
}

int verb_template_ls(struct cli *cli, char **args, uint32_t count)
{
    static const char *const heads[] = {"ID", "IMAGE", "BACKEND", "STATE", "CPUS", "MEMORY", "AGE"};
    json_auto_t *answer = NULL;
    struct error err = {0};
    struct table t;
    json_t *template;
    size_t i;
    int r;

    (void)args;
    (void)count;
    if (client_call(cli, "GET", "/v1/templates", NULL, &answer, &err) < 0)
        return cli_fail(cli, &err);
    if (cli->options.json)
        return client_print_json(answer) < 0 ? EXIT_FAILED : EXIT_DONE;
    table_init(&t, ARRAY_SIZE(heads));
    r = table_add(&t, heads);
    json_array_foreach(json_object_get(answer, "templates"), i, template)
    {
        if (cli->options.quiet)
            (void)puts(client_string(template, "id"));
        else if (r >= 0)
            r = add_template(&t, template);
    }
    if (r >= 0 && !cli->options.quiet)
        r = table_print(&t);
    table_done(&t);
    return r < 0 ? EXIT_FAILED : EXIT_DONE;
}

int verb_template_rm(struct cli *cli, char **args, uint32_t count)
{
    int status = EXIT_DONE;

    for (uint32_t i = 0; i < count; i++) {
        _cleanup_free_ char *path = client_path("/v1/templates/{}", args[i]);
        int r = verb_delete(cli, path, args[i]);

        if (r != EXIT_DONE)
            status = r;
    }
    return status;
}
