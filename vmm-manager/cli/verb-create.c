#include "cli/verbs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/strv.h"
#include "cli/client.h"
#include "cli/remote.h"

#define REMOVE_SILENCE_USEC (60 * USEC_PER_SEC)
/* Beyond the time limit of a run's command: for when this program does not live to remove it. */
#define RUN_MARGIN_SEC 120
#define RUN_LIMIT_SEC (UINT64_C(7) * 24 * 3600)

static int add_number(json_t *body, const char *key, uint64_t value, struct error *err)
{
    if (value == 0)
        return 0;
    if (value > INT32_MAX)
        return error_set(err, EINVAL, "%s: too large", key);
    if (json_object_set_new(body, key, json_integer((json_int_t)value)) < 0)
        return error_set(err, ENOMEM, "out of memory");
    return 0;
}

/* Rounded up: 1 ms is not "never". */
static uint64_t whole_seconds(uint64_t usec)
{
    return (usec + USEC_PER_SEC - 1) / USEC_PER_SEC;
}

json_t *verb_spec(const struct cli *cli, const char *name, struct error *err)
{
    const struct options *o = &cli->options;
    json_auto_t *body = json_object();
    uint64_t life_sec = (o->lifetime_usec + USEC_PER_SEC - 1) / USEC_PER_SEC;

    if (o->timeout_usec > 0 && o->timeout_usec < RUN_LIMIT_SEC * USEC_PER_SEC)
        life_sec = o->timeout_usec / USEC_PER_SEC + RUN_MARGIN_SEC;
    if (!body || remote_add_string(body, "name", name, err) < 0 ||
        remote_add_string(body, "image", o->image, err) < 0 ||
        remote_add_string(body, "template", o->template, err) < 0 ||
        remote_add_string(body, "backend", o->backend, err) < 0 ||
        remote_add_string(body, "user", o->user, err) < 0 ||
        remote_add_string(body, "workdir", o->workdir, err) < 0 ||
        remote_add_env(body, o->env, err) < 0 || add_number(body, "cpus", o->cpus, err) < 0 ||
        add_number(body, "memory_mib", o->memory_mib, err) < 0 ||
        add_number(body, "disk_mib", o->disk_mib, err) < 0 ||
        add_number(body, "timeout_sec", life_sec, err) < 0 ||
        add_number(body, "idle_sec", whole_seconds(o->idle_usec), err) < 0 ||
        add_number(body, "retention_sec", whole_seconds(o->retention_usec), err) < 0 ||
        remote_add_string(body, "on_timeout", o->on_timeout, err) < 0)
        return NULL;
    return json_incref(body);
}

/* Creation goes on in the daemon when its client leaves: so the client takes it back first. */
static void take_back(struct cli *cli, const char *name)
{
    _cleanup_free_ char *path = client_path("/v1/sandboxes/{}", name);
    struct error ignored = {0};

    if (path)
        (void)client_call_long(cli, "DELETE", path, NULL, REMOVE_SILENCE_USEC, NULL, &ignored);
}

int verb_make_sandbox(struct cli *cli, const char *name, json_t **ret, struct error *err)
{
    json_auto_t *body = verb_spec(cli, name, err);
    bool transport;
    int r;

    if (!body)
        return -EINVAL;
    cli_progress_begin(cli, "creating the sandbox");
    r = client_work(cli, "/v1/sandboxes", body, "sandbox", ret, err);
    cli_progress_end(cli);
    if (r >= 0)
        return 0;
    transport = r == -EINTR || r == -ECONNRESET || r == -EPROTO;
    /* A name of the user's may belong to an older sandbox until the daemon has said otherwise. */
    if (transport && name && (!cli->options.name || cli->accepted))
        take_back(cli, name);
    return r;
}

int verb_create(struct cli *cli, char **args, uint32_t count)
{
    const char *name = cli->options.name;
    json_auto_t *sandbox = NULL;
    struct error err = {0};
    int r;

    (void)args;
    (void)count;
    r = remote_signals(cli, &err);
    if (r >= 0)
        r = verb_make_sandbox(cli, name, &sandbox, &err);
    if (r < 0)
        return remote_fail(cli, r, &err);
    if (cli->options.json)
        return client_print_json(sandbox) < 0 ? EXIT_FAILED : EXIT_DONE;
    return puts(client_string(sandbox, "id")) == EOF ? EXIT_FAILED : EXIT_DONE;
}
