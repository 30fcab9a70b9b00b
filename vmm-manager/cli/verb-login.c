#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "cli/client.h"
#include "cli/remote.h"
#include "cli/verbs.h"

#define PASSWORD_MAX 8192u
#define SILENCE_USEC (120 * USEC_PER_SEC)

/* A line without its end; from a terminal unseen, when `secret`. */
static int ask(const char *question, bool secret, char *text, size_t size, struct error *err)
{
    struct termios before, quiet;
    bool tty = isatty(STDIN_FILENO) == 1 && tcgetattr(STDIN_FILENO, &before) == 0;
    char *line;

    if (tty) {
        (void)fprintf(stderr, "%s: ", question);
        quiet = before;
        quiet.c_lflag &= ~(tcflag_t)ECHO;
        if (secret)
            (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &quiet);
    }
    line = fgets(text, (int)size, stdin);
    if (tty && secret) {
        (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &before);
        (void)fputc('\n', stderr);
    }
    if (!line)
        return error_set(err, EINVAL, "login: no %s was given", question);
    text[strcspn(text, "\r\n")] = '\0';
    return 0;
}

int verb_login(struct cli *cli, char **args, uint32_t count)
{
    json_auto_t *body = json_object();
    char user[256] = "", password[PASSWORD_MAX] = "";
    struct error err = {0};
    int r = 0;

    (void)count;
    if (cli->options.username)
        (void)snprintf(user, sizeof(user), "%s", cli->options.username);
    else if (cli->options.password_stdin)
        r = error_set(&err, EINVAL, "login: --password-stdin needs --username");
    else
        r = ask("user name", false, user, sizeof(user), &err);
    if (r >= 0)
        r = ask("password", true, password, sizeof(password), &err);
    if (r >= 0)
        r = remote_add_string(body, "registry", args[0], &err);
    if (r >= 0)
        r = remote_add_string(body, "username", user, &err);
    if (r >= 0)
        r = remote_add_string(body, "password", password, &err);
    explicit_bzero(password, sizeof(password));
    if (r >= 0)
        r = client_call_long(cli, "POST", "/v1/registries/login", body, SILENCE_USEC, NULL, &err);
    if (r < 0)
        return cli_fail(cli, &err);
    cli_note(cli, "logged in to %s", args[0]);
    return EXIT_DONE;
}

int verb_logout(struct cli *cli, char **args, uint32_t count)
{
    json_auto_t *body = json_object();
    struct error err = {0};
    int r = remote_add_string(body, "registry", args[0], &err);

    (void)count;
    if (r >= 0)
        r = client_call(cli, "POST", "/v1/registries/logout", body, NULL, &err);
    return r < 0 ? cli_fail(cli, &err) : EXIT_DONE;
}
