#include "cli/verbs.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/strv.h"
#include "cli/client.h"
#include "cli/remote.h"
#include "cli/text.h"

#define MIB (UINT64_C(1024) * 1024)

static int add_template(struct table *t, const json_t *template)
{
    json_int_t mib = json_integer_value(json_object_get(template, "memory_mib"));
    const char *name = json_string_value(json_array_get(json_object_get(template, "names"), 0));
    char memory[24], cpus[24], age[24];

    text_size(mib > 0 ? (uint64_t)mib * MIB : 0, memory, sizeof(memory));
    text_age(client_string(template, "created"), clock_wall_usec(), age, sizeof(age));
    (void)snprintf(cpus, sizeof(cpus), "%" JSON_INTEGER_FORMAT,
                   json_integer_value(json_object_get(template, "cpus")));
    return table_add(t, (const char *const[]){client_string(template, "id"), name ? name : "-",
                                              client_string(template, "image"),
                                              client_string(template, "backend"),
                                              client_string(template, "state"), cpus, memory, age});
}

int verb_template_ls(struct cli *cli, char **args, uint32_t count)
{
    static const char *const heads[] = {"ID",    "NAME", "IMAGE",  "BACKEND",
                                        "STATE", "CPUS", "MEMORY", "AGE"};
    static const struct list_verb list = {"templates", "id", heads, ARRAY_SIZE(heads),
                                          add_template};

    (void)args;
    (void)count;
    return verb_list(cli, "/v1/templates", &list);
}

int verb_template_rm(struct cli *cli, char **args, uint32_t count)
{
    return verb_delete_each(cli, "/v1/templates/{}", args, count);
}

int verb_template_inspect(struct cli *cli, char **args, uint32_t count)
{
    _cleanup_free_ char *path = client_path("/v1/templates/{}", args[0]);

    (void)count;
    return verb_show(cli, path);
}

/* ---- build ---- */

/* "SRC:DST"; the daemon has another working directory. */
static json_t *copy_step(const char *text, struct error *err)
{
    const char *colon = strrchr(text, ':');
    _cleanup_free_ char *source = colon ? strndup(text, (size_t)(colon - text)) : NULL;
    char path[PATH_MAX];

    if (!source || !source[0] || colon[1] != '/') {
        (void)error_set(err, EINVAL, "--copy '%s': expected SRC:DST with an absolute DST", text);
        return NULL;
    }
    if (!realpath(source, path)) {
        (void)error_set_errno(err, ERR_PATH_NOT_FOUND, errno, "--copy '%s': %s", source,
                              errno_text(errno));
        return NULL;
    }
    return json_pack("{s:{s:s, s:s}}", "copy", "from", path, "to", colon + 1);
}

static json_t *build_steps(const struct options *o, struct error *err)
{
    json_auto_t *steps = json_array();

    for (size_t i = 0; o->steps && o->steps[i]; i++) {
        const char *text = strchr(o->steps[i], '=') + 1;
        json_t *step = string_starts_with(o->steps[i], "copy=") ? copy_step(text, err)
                                                                : json_pack("{s:s}", "run", text);

        if (!step || json_array_append_new(steps, step) < 0) {
            error_fill(err, -EINVAL, "--run '%s': not text", text);
            return NULL;
        }
    }
    return json_incref(steps);
}

static int add_recipe(json_t *body, const struct options *o, struct error *err)
{
    json_t *steps = build_steps(o, err), *warm = json_array();

    for (size_t i = 0; o->warm && o->warm[i]; i++)
        (void)json_array_append_new(warm, json_string(o->warm[i]));
    if (!steps || json_object_set_new(body, "steps", steps) < 0) {
        json_decref(warm);
        return error_fill(err, -ENOMEM, "out of memory");
    }
    (void)json_object_set_new(body, "warm", warm);
    if (o->ready_usec > 0)
        (void)json_object_set_new(
            body, "ready_timeout_sec",
            json_integer((json_int_t)MAX(o->ready_usec / USEC_PER_SEC, UINT64_C(1))));
    return remote_add_string(body, "ready", o->ready, err);
}

int verb_template_build(struct cli *cli, char **args, uint32_t count)
{
    json_auto_t *body = NULL, *template = NULL;
    struct error err = {0};
    int r;

    (void)count;
    body = verb_spec(cli, args[0], &err);
    r = body ? add_recipe(body, &cli->options, &err) : -EINVAL;
    if (r >= 0) {
        cli_progress_begin(cli, "building");
        r = client_work(cli, "/v1/templates", body, "template", &template, &err);
        cli_progress_end(cli);
    }
    if (r < 0)
        return cli_fail(cli, &err);
    if (cli->options.json)
        return client_print_json(template) < 0 ? EXIT_FAILED : EXIT_DONE;
    return puts(client_string(template, "id")) == EOF ? EXIT_FAILED : EXIT_DONE;
}
