#include "pager/pager-spawn.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/paths.h"
#include "base/spawn.h"
#include "base/strv.h"
#include "pager/base-stat.h"

#define START_TIMEOUT (30 * USEC_PER_SEC)
#define CONNECT_TIMEOUT (30 * USEC_PER_SEC)

/* The directory `levels` above a path; owned by the caller, NULL when there is none. */
static char *above(const char *path, unsigned levels)
{
    char *copy = strdup(path);

    for (; copy && levels > 0; levels--) {
        char *slash = strrchr(copy, '/');

        if (!slash || slash == copy) {
            free(copy);
            return NULL;
        }
        *slash = '\0';
    }
    return copy;
}

static int add(char ***argv, const char *option, const char *value)
{
    int r = value ? strv_append(argv, option) : -ENOMEM;

    return r < 0 ? r : strv_append(argv, value);
}

static int make_argv(const struct pager_spawn *o, char ***argv)
{
    _cleanup_free_ char *program =
        o->program ? strdup(o->program) : string_printf("%s/hearth-pager", paths_program_dir());
    _cleanup_free_ char *store = above(o->snapshot_dir, 1);
    _cleanup_free_ char *templates = above(o->base_memory, 2);
    char verified[BASE_STAT_SIZE];
    _cleanup_free_ char *owner = string_printf("%u:%u", (unsigned)o->uid, (unsigned)o->gid);
    _cleanup_free_ char *timeout = string_printf(
        "%" PRIu64,
        (o->connect_timeout_usec ? o->connect_timeout_usec : CONNECT_TIMEOUT) / USEC_PER_MSEC);
    int r = program ? strv_append(argv, program) : -ENOMEM;

    if (r >= 0 && (!store || !templates || base_stat_print(o->base_memory, verified) < 0))
        return -EINVAL;
    if (r >= 0)
        r = add(argv, "--socket", o->socket);
    if (r >= 0)
        r = add(argv, "--snapshot", o->snapshot_dir);
    if (r >= 0)
        r = add(argv, "--store", store);
    if (r >= 0)
        r = add(argv, "--templates", templates);
    if (r >= 0)
        r = add(argv, "--base-verified", verified);
    if (r >= 0)
        r = add(argv, "--owner", owner);
    if (r >= 0)
        r = add(argv, "--connect-timeout", timeout);
    if (r >= 0 && o->log_file)
        r = add(argv, "--log", o->log_file);
    if (r >= 0 && o->stats_file)
        r = add(argv, "--stats", o->stats_file);
    return r < 0 ? r : strv_append(argv, "--detach");
}

int pager_spawn(const struct pager_spawn *options, struct error *err)
{
    _cleanup_strv_ char **argv = NULL;
    _cleanup_buf_ struct buf output = {0};
    struct spawn_options spawned = {
        .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1, .new_session = true};
    int r = make_argv(options, &argv);

    if (r < 0)
        return error_set(err, -r, "pager for snapshot '%s': %s", options->snapshot_dir,
                         r == -EINVAL ? "no such snapshot, or no memory below it" : errno_text(-r));
    buf_init(&output, 4096);
    spawned.argv = (const char *const *)argv;
    r = spawn_run(&spawned, START_TIMEOUT, &output, err);
    if (r < 0)
        error_wrap(err, "pager for snapshot '%s'", options->snapshot_dir);
    return r;
}
