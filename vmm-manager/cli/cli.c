#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "cli/command.h"
#include "cli/exit-code.h"
#include "cli/text.h"

void cli_init(struct cli *cli)
{
    *cli = (struct cli){.wait = {.signal_fd = -EBADF}};
    http_init(&cli->http, &cli->wait);
}

void cli_done(struct cli *cli)
{
    progress_end(&cli->progress);
    http_done(&cli->http);
    cli->wait.signal_fd = fd_close(cli->wait.signal_fd);
    options_done(&cli->options);
}

void cli_progress_begin(struct cli *cli, const char *step)
{
    progress_begin(&cli->progress, cli->options.quiet, cli->options.verbose, step);
    cli->wait.progress = &cli->progress;
}

void cli_progress_end(struct cli *cli)
{
    cli->wait.progress = NULL;
    progress_end(&cli->progress);
}

void cli_note(const struct cli *cli, const char *format, ...)
{
    char text[1024];
    va_list args;

    if (cli->options.quiet)
        return;
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    text_make_printable(text);
    (void)fprintf(stderr, "hearth: %s\n", text);
}

int cli_fail(struct cli *cli, const struct error *err)
{
    struct error copy;

    error_copy(&copy, err);
    text_make_printable(copy.text);
    cli_progress_end(cli);
    if (cli->options.json) {
        json_auto_t *json = json_pack("{s:{s:s, s:s}}", "error", "code", error_code_name(copy.code),
                                      "message", copy.text[0] ? copy.text : "failed");

        if (json && json_dumpf(json, stdout, JSON_COMPACT) >= 0)
            (void)putchar('\n');
    } else {
        (void)fprintf(stderr, "hearth: %s\n", copy.text[0] ? copy.text : "failed");
    }
    return exit_code_of_error(copy.code);
}

static int usage(struct cli *cli, const char *verb, const struct error *err)
{
    struct error copy;

    error_copy(&copy, err);
    if (verb)
        error_wrap(&copy, "%s", verb);
    (void)cli_fail(cli, &copy);
    if (!cli->options.json)
        (void)fprintf(stderr, "hearth: 'hearth help%s%s' tells how\n", verb ? " " : "",
                      verb ? verb : "");
    return EXIT_USAGE;
}

/* The places can be given as options; everything below reads them from the environment. */
static int apply_global(const struct options *o)
{
    if (o->socket && setenv("HEARTH_SOCKET", o->socket, 1) < 0)
        return -errno;
    if (o->state && setenv("HEARTH_STATE", o->state, 1) < 0)
        return -errno;
    return 0;
}

static int run_command(struct cli *cli, const struct command *c, int argc, char **argv)
{
    struct error err = {0};
    uint32_t count = 0;

    if (options_parse(&cli->options, c->options | OPT_GLOBAL, c->end_after, argc, argv, &count,
                      &err) < 0)
        return usage(cli, c->name, &err);
    argv[count] = NULL;
    if (cli->options.help) {
        help_print_command(stdout, c);
        return EXIT_DONE;
    }
    if (count < c->min || count > c->max) {
        (void)error_set(&err, EINVAL, "%s; expected: hearth %s %s",
                        count < c->min ? "something is missing" : "too many arguments", c->name,
                        c->args);
        return usage(cli, c->name, &err);
    }
    if (c->min > 0 && argv[0][0] == '\0') {
        (void)error_set(&err, EINVAL, "the first argument is empty");
        return usage(cli, c->name, &err);
    }
    if (apply_global(&cli->options) < 0) {
        (void)error_set(&err, ENOMEM, "out of memory");
        return cli_fail(cli, &err);
    }
    return c->run(cli, argv, count);
}

/* Options before the verb, then the verb. `argc` without the program's name. */
static int dispatch(struct cli *cli, int argc, char **argv)
{
    struct error err = {0};
    const struct command *c;
    int first = 0, words = 0;

    /* Everything up to the first word that is not a global option, or the value of one. */
    while (first < argc && argv[first][0] == '-' && argv[first][1] != '\0') {
        bool takes_value =
            strcmp(argv[first], "--socket") == 0 || strcmp(argv[first], "--state") == 0;
        int n = takes_value && first + 1 < argc ? 2 : 1;
        uint32_t count;

        if (strcmp(argv[first], "--version") == 0) {
            static char version[] = "version";

            argv[first] = version;
            break;
        }
        if (options_parse(&cli->options, OPT_GLOBAL, OPTIONS_NEVER_END, n, argv + first, &count,
                          &err) < 0)
            return usage(cli, NULL, &err);
        first += n;
    }
    argc -= first;
    argv += first;
    if (argc == 0) {
        help_print(cli->options.help ? stdout : stderr);
        return cli->options.help ? EXIT_DONE : EXIT_USAGE;
    }
    c = command_find(argc, argv, &words);
    if (c)
        return run_command(cli, c, argc - words, argv + words);
    if (command_is_group(argv[0]) &&
        (argc == 1 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        (void)help_print_topic(argc == 1 ? stderr : stdout, argv[0]);
        return argc == 1 ? EXIT_USAGE : EXIT_DONE;
    }
    if (command_is_group(argv[0]))
        (void)error_set(&err, EINVAL, "there is no verb '%.64s %.64s'", argv[0], argv[1]);
    else
        (void)error_set(&err, EINVAL, "there is no verb '%.64s'", argv[0]);
    return usage(cli, command_is_group(argv[0]) ? argv[0] : NULL, &err);
}

/* A program that was started with a closed stdin must not get the daemon's socket there. */
static void open_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
}

int cli_main(int argc, char **argv)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    struct cli cli;
    int status;

    open_standard_streams();
    (void)sigaction(SIGPIPE, &ignore, NULL);
    cli_init(&cli);
    status = dispatch(&cli, argc > 0 ? argc - 1 : 0, argv + 1);
    /* A reader that left is no failure of ours to speak of, but a full disk is. */
    if (fflush(stdout) == EOF && errno != EPIPE && status == EXIT_DONE) {
        (void)fprintf(stderr, "hearth: write: %s\n", errno_text(errno));
        status = EXIT_FAILED;
    }
    cli_done(&cli);
    return status;
}
