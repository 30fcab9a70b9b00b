#include "cli/verbs.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/strv.h"
#include "cli/client.h"
#include "cli/text.h"

#define POOL_MAX 4096u /* the daemon knows the limit */

static const char *number(const json_t *pool, const char *key, char text[static 24])
{
    (void)snprintf(text, 24, "%" JSON_INTEGER_FORMAT,
                   json_integer_value(json_object_get(pool, key)));
    return text;
}

static int add_pool(struct table *t, const json_t *pool)
{
    char ready[24], filling[24], target[24], size[24], claims[24], misses[24];

    return table_add(
        t, (const char *const[]){client_string(pool, "template"), client_string(pool, "image"),
                                 number(pool, "ready", ready), number(pool, "filling", filling),
                                 number(pool, "target", target), number(pool, "size", size),
                                 number(pool, "claims", claims), number(pool, "misses", misses)});
}

int verb_pool_ls(struct cli *cli, char **args, uint32_t count)
{
    static const char *const heads[] = {"TEMPLATE", "IMAGE", "READY",  "FILLING",
                                        "TARGET",   "SIZE",  "CLAIMS", "MISSES"};
    static const struct list_verb list = {"pools", "template", heads, ARRAY_SIZE(heads), add_pool};

    (void)args;
    (void)count;
    return verb_list(cli, "/v1/pools", &list);
}

int verb_pool_set(struct cli *cli, char **args, uint32_t count)
{
    _cleanup_free_ char *path = client_path("/v1/pools/{}", args[0]);
    json_auto_t *answer = NULL, *body = NULL;
    struct error err = {0};
    uint64_t size;

    (void)count;
    if (parse_u64(args[1], 0, POOL_MAX, &size) < 0) {
        (void)error_set(&err, EINVAL, "'%s': expected a number", args[1]);
        return cli_fail(cli, &err);
    }
    body = json_pack("{s:I}", "size", (json_int_t)size);
    if (!path || !body)
        (void)error_set(&err, ENOMEM, "out of memory");
    else if (client_call(cli, "PUT", path, body, &answer, &err) >= 0)
        return !cli->options.json || client_print_json(answer) >= 0 ? EXIT_DONE : EXIT_FAILED;
    return cli_fail(cli, &err);
}
