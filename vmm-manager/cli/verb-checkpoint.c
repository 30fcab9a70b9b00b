#include "cli/verbs.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/strv.h"
#include "cli/client.h"
#include "cli/remote.h"
#include "cli/text.h"

#define DEPTH_MAX 64u

int verb_checkpoint(struct cli *cli, char **args, uint32_t count)
{
    _cleanup_free_ char *path = client_path("/v1/sandboxes/{}/checkpoints", args[0]);
    json_auto_t *body = json_object(), *snapshot = NULL;
    struct error err = {0};
    int r;

    (void)count;
    if (remote_add_string(body, "name", cli->options.name, &err) < 0)
        return cli_fail(cli, &err);
    r = verb_work(cli, path, body, "taking a checkpoint", "snapshot", &snapshot);
    if (r != EXIT_DONE)
        return r;
    if (cli->options.json)
        return client_print_json(snapshot) < 0 ? EXIT_FAILED : EXIT_DONE;
    return puts(client_string(snapshot, "id")) == EOF ? EXIT_FAILED : EXIT_DONE;
}

int verb_rollback(struct cli *cli, char **args, uint32_t count)
{
    _cleanup_free_ char *path = client_path("/v1/sandboxes/{}/rollback", args[0]);
    json_auto_t *body = json_object(), *sandbox = NULL;
    struct error err = {0};
    int r;

    (void)count;
    if (remote_add_string(body, "checkpoint", args[1], &err) < 0)
        return cli_fail(cli, &err);
    r = verb_work(cli, path, body, "rolling back", "sandbox", &sandbox);
    if (r != EXIT_DONE)
        return r;
    if (cli->options.json)
        return client_print_json(sandbox) < 0 ? EXIT_FAILED : EXIT_DONE;
    if (!cli->options.quiet)
        (void)puts(args[0]);
    return EXIT_DONE;
}

/* ---- the list, as it is or as a tree ---- */

struct listing {
    struct table table;
    json_t *checkpoints; /* weak */
    const char *current; /* weak */
    bool tree;
};

static bool is_listed(const struct listing *l, const char *id)
{
    json_t *one;
    size_t i;

    json_array_foreach(l->checkpoints, i, one)
    {
        if (strcmp(client_string(one, "id"), id) == 0)
            return true;
    }
    return false;
}

static int add_one(struct listing *l, const json_t *one, unsigned depth)
{
    json_int_t bytes = json_integer_value(json_object_get(one, "stored_bytes"));
    const char *id = client_string(one, "id"), *name = client_string(one, "name");
    bool current = strcmp(id, l->current) == 0;
    char size[24], age[24], shown[192];

    text_size(bytes > 0 ? (uint64_t)bytes : 0, size, sizeof(size));
    text_age(client_string(one, "created"), clock_wall_usec(), age, sizeof(age));
    (void)snprintf(shown, sizeof(shown), "%*s%s%s", (int)(depth * 2), "", id, current ? " *" : "");
    return table_add(&l->table,
                     (const char *const[]){shown, name, client_string(one, "sandbox"), size, age});
}

/* All that follow `after`, each with all that follow it. The daemon's tree has no circle, but who
 * knows: the depth has an end. */
static int add_tree(struct listing *l, const char *after, unsigned depth)
{
    json_t *one;
    size_t i;
    int r = 0;

    json_array_foreach(l->checkpoints, i, one)
    {
        const char *its = client_string(one, "after");
        bool root = !its[0] || !is_listed(l, its);

        if (r < 0 || (after ? root || strcmp(its, after) != 0 : !root))
            continue;
        r = add_one(l, one, depth);
        if (r >= 0 && depth < DEPTH_MAX)
            r = add_tree(l, client_string(one, "id"), depth + 1);
    }
    return r;
}

static int add_list(struct listing *l)
{
    json_t *one;
    size_t i;
    int r = 0;

    json_array_foreach(l->checkpoints, i, one)
    {
        if (r >= 0)
            r = add_one(l, one, 0);
    }
    return r;
}

int verb_checkpoint_ls(struct cli *cli, char **args, uint32_t count)
{
    static const char *const heads[] = {"ID", "NAME", "SANDBOX", "SIZE", "AGE"};
    _cleanup_free_ char *path = client_path("/v1/sandboxes/{}/checkpoints", args[0]);
    json_auto_t *answer = NULL;
    struct error err = {0};
    struct listing l = {0};
    json_t *one;
    size_t i;
    int r;

    (void)count;
    if (client_call(cli, "GET", path, NULL, &answer, &err) < 0)
        return cli_fail(cli, &err);
    if (cli->options.json)
        return client_print_json(answer) < 0 ? EXIT_FAILED : EXIT_DONE;
    l.checkpoints = json_object_get(answer, "checkpoints");
    l.current = client_string(answer, "current");
    if (cli->options.quiet) {
        json_array_foreach(l.checkpoints, i, one)(void) puts(client_string(one, "id"));
        return EXIT_DONE;
    }
    table_init(&l.table, ARRAY_SIZE(heads));
    r = table_add(&l.table, heads);
    if (r >= 0)
        r = cli->options.tree ? add_tree(&l, NULL, 0) : add_list(&l);
    if (r >= 0)
        r = table_print(&l.table);
    table_done(&l.table);
    return r < 0 ? EXIT_FAILED : EXIT_DONE;
}
