#include "cli/verbs.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/strv.h"
#include "cli/client.h"
#include "cli/text.h"

static int add_snapshot(struct table *t, const json_t *snapshot)
{
    json_int_t bytes = json_integer_value(json_object_get(snapshot, "stored_bytes"));
    char size[24], age[24];

    text_size(bytes > 0 ? (uint64_t)bytes : 0, size, sizeof(size));
    text_age(client_string(snapshot, "created"), clock_wall_usec(), age, sizeof(age));
    return table_add(t, (const char *const[]){
                            client_string(snapshot, "id"), client_string(snapshot, "name"),
                            client_string(snapshot, "kind"), client_string(snapshot, "sandbox"),
                            client_string(snapshot, "image"), size, age});
}

int verb_snapshot_ls(struct cli *cli, char **args, uint32_t count)
{
    static const char *const heads[] = {"ID", "NAME", "KIND", "SANDBOX", "IMAGE", "SIZE", "AGE"};
    static const struct list_verb list = {"snapshots", "id", heads, ARRAY_SIZE(heads),
                                          add_snapshot};

    (void)args;
    (void)count;
    return verb_list(cli, "/v1/snapshots", &list);
}

static int check_one(struct cli *cli, const char *id, const char *verb, const char *doing)
{
    _cleanup_free_ char *named = client_path("/v1/snapshots/{}", id);
    _cleanup_free_ char *path = named ? string_printf("%s/%s", named, verb) : NULL;
    json_auto_t *snapshot = NULL;
    int r = verb_work(cli, path, NULL, doing, "snapshot", &snapshot);

    if (r != EXIT_DONE)
        return r;
    if (cli->options.json)
        return client_print_json(snapshot) < 0 ? EXIT_FAILED : EXIT_DONE;
    if (cli->options.quiet)
        return EXIT_DONE;
    if (json_is_true(json_object_get(snapshot, "repaired")))
        (void)printf("%s is repaired; it was damaged: %s\n", id, client_string(snapshot, "damage"));
    else
        (void)printf("%s is whole\n", id);
    return EXIT_DONE;
}

static int check_all(struct cli *cli, char **args, uint32_t count, const char *verb,
                     const char *doing)
{
    int status = EXIT_DONE;

    for (uint32_t i = 0; i < count; i++) {
        int r = check_one(cli, args[i], verb, doing);

        if (r != EXIT_DONE)
            status = r;
    }
    return status;
}

int verb_snapshot_verify(struct cli *cli, char **args, uint32_t count)
{
    return check_all(cli, args, count, "verify", "verifying");
}

int verb_snapshot_repair(struct cli *cli, char **args, uint32_t count)
{
    return check_all(cli, args, count, "repair", "repairing");
}

int verb_snapshot_rm(struct cli *cli, char **args, uint32_t count)
{
    return verb_delete_each(cli, "/v1/snapshots/{}", args, count);
}
