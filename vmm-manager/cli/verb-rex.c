#include "cli/verbs.h"

#include <signal.h>
#include <stdio.h>

#include "base/paths.h"
#include "base/strv.h"
#include "cli/client.h"
#include "cli/rex-relay.h"

#define TOKEN_LENGTH 40u
#define ADDRESS "127.0.0.1"

static int on_signal(struct source *s, int signo, void *userdata)
{
    (void)s;
    (void)signo;
    loop_quit(userdata, EXIT_DONE);
    return 0;
}

static int announce(const struct cli *cli, const char *id, unsigned port, const char *token)
{
    json_auto_t *told = NULL;

    if (cli->options.json) {
        told = json_pack("{s:s, s:s, s:i, s:s}", "sandbox", id, "url", "http://" ADDRESS, "port",
                         (int)port, "token", token);
        if (client_print_json(told) < 0)
            return -EIO;
    } else if (printf("http://" ADDRESS ":%u %s\n", port, token) < 0) {
        return -EIO;
    }
    return fflush(stdout) == 0 ? 0 : -EIO;
}

/* Until a signal asks us to end. */
static int serve(const struct cli *cli, const char *id, const char *token, struct error *err)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct source *sources[ARRAY_SIZE(signals)] = {0};
    struct rex_relay *relay = NULL;
    struct loop *loop = NULL;
    int r = loop_new(&loop);

    for (size_t i = 0; r >= 0 && i < ARRAY_SIZE(signals); i++)
        r = loop_add_signal(loop, "rex-signal", signals[i], on_signal, loop, &sources[i]);
    if (r < 0) {
        (void)error_set(err, -r, "rex: %s", errno_text(-r));
    } else {
        const struct rex_relay_options options = {
            .loop = loop,
            .sandbox = id,
            .token = token,
            .socket_path = paths_socket(),
            .address = ADDRESS,
            .port = (uint16_t)cli->options.port,
        };

        r = rex_relay_new(&options, &relay, err);
        if (r >= 0 && announce(cli, id, rex_relay_port(relay), token) < 0)
            r = error_set(err, EIO, "rex: stdout is gone");
        if (r >= 0)
            r = loop_run(loop);
    }
    (void)rex_relay_free(relay);
    for (size_t i = 0; i < ARRAY_SIZE(signals); i++)
        (void)source_free(sources[i]);
    (void)loop_free(loop);
    return r;
}

int verb_rex(struct cli *cli, char **args, uint32_t count)
{
    _cleanup_free_ char *path = client_path("/v1/sandboxes/{}", args[0]);
    json_auto_t *sandbox = NULL;
    char generated[TOKEN_LENGTH + 1];
    const char *token = cli->options.token;
    struct error err = {0};
    int r;

    (void)count;
    if (cli->options.port > UINT16_MAX) {
        (void)error_set(&err, EINVAL, "--port: a port is a number of 1 to %d", UINT16_MAX);
        return cli_fail(cli, &err);
    }
    if (token && token[0] == '\0') {
        (void)error_set(&err, EINVAL, "--token: empty value");
        return cli_fail(cli, &err);
    }
    r = client_call(cli, "GET", path, NULL, &sandbox, &err);
    if (r >= 0 && !token) {
        r = random_id(generated, TOKEN_LENGTH);
        if (r < 0)
            (void)error_set(&err, -r, "no random numbers");
        token = generated;
    }
    if (r >= 0)
        r = serve(cli, client_string(sandbox, "id"), token, &err);
    return r < 0 ? cli_fail(cli, &err) : r;
}
