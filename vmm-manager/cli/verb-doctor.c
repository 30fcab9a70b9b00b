#include "cli/verbs.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/paths.h"
#include "cli/client.h"
#include "cli/daemon-start.h"
#include "cli/text.h"

/* Adds what the command line itself can tell, in the form of the daemon's checks. */
static void add_check(json_t *checks, const char *name, bool ok, const char *level,
                      const char *detail, const char *fix)
{
    json_t *check =
        json_pack("{s:s, s:b, s:s, s:s}", "name", name, "ok", ok, "level", level, "detail", detail);

    if (fix && !ok)
        (void)json_object_set_new(check, "fix", json_string(fix));
    (void)json_array_append_new(checks, check);
}

/* Is there a daemon, or can one be started? */
static bool check_local(struct cli *cli, json_t *checks)
{
    _cleanup_close_ int fd = -EBADF;
    struct error err = {0};
    char binary[PATH_MAX], detail[PATH_MAX + 64];

    fd = daemon_connect_running(&err);
    if (fd >= 0) {
        (void)snprintf(detail, sizeof(detail), "listens on %s", paths_socket());
        add_check(checks, "daemon", true, "info", detail, NULL);
        if (daemon_is_other_build(fd))
            add_check(checks, "daemon-build", false, "warning",
                      "the daemon that runs is of another build than this program",
                      "hearth daemon stop; the next command starts the new one, sandboxes stay");
        return true;
    }
    error_clear(&err);
    if (daemon_binary(binary, sizeof(binary), &err) < 0) {
        add_check(checks, "daemon", false, "error", err.text,
                  "build it: cmake --build --preset release");
        return false;
    }
    fd = daemon_connect(cli, &err);
    if (fd < 0) {
        add_check(checks, "daemon", false, "error", err.text,
                  geteuid() == 0 ? "read the log that is named here" : "run hearth as root");
        return false;
    }
    (void)snprintf(detail, sizeof(detail), "started; listens on %s", paths_socket());
    add_check(checks, "daemon", true, "info", detail, NULL);
    return true;
}

static void print_field(const char *indent, const char *text, bool first)
{
    _cleanup_free_ char *copy = strdup(text);

    if (!copy)
        return;
    text_make_printable(copy);
    (void)printf("%s%s%s", first ? "" : indent, copy, "\n");
}

static void print_check(const json_t *check)
{
    bool ok = json_is_true(json_object_get(check, "ok"));
    const char *level = client_string(check, "level"), *fix = client_string(check, "fix");
    const char *word = "ok";

    if (!ok)
        word = strcmp(level, "error") == 0     ? "FAIL"
               : strcmp(level, "warning") == 0 ? "warn"
                                               : "info";
    (void)printf("%-4s  %-16s  ", word, client_string(check, "name"));
    print_field("", client_string(check, "detail"), true);
    if (!ok && fix[0]) {
        (void)printf("%24s", "fix: ");
        print_field("", fix, true);
    }
}

int verb_doctor(struct cli *cli, char **args, uint32_t count)
{
    json_auto_t *all = json_pack("{s:b, s:[]}", "ok", 1, "checks");
    json_auto_t *answer = NULL;
    json_t *checks = json_object_get(all, "checks"), *check;
    struct error err = {0};
    bool ok;
    size_t i;

    (void)args;
    (void)count;
    if (!checks)
        return EXIT_FAILED;
    cli_progress_begin(cli, "checking this host");
    ok = check_local(cli, checks);
    if (ok && client_call(cli, "GET", "/v1/doctor", NULL, &answer, &err) < 0) {
        add_check(checks, "daemon-report", false, "error", err.text, NULL);
        ok = false;
    }
    cli_progress_end(cli);
    (void)json_array_extend(checks, json_object_get(answer, "checks"));
    json_array_foreach(checks, i, check) if (!json_is_true(json_object_get(check, "ok")) &&
                                             strcmp(client_string(check, "level"), "error") == 0)
        ok = false;
    (void)json_object_set_new(all, "ok", json_boolean(ok));
    if (cli->options.json)
        return client_print_json(all) < 0 || !ok ? EXIT_FAILED : EXIT_DONE;
    json_array_foreach(checks, i, check) print_check(check);
    if (!cli->options.quiet)
        (void)puts(ok ? "This host can run sandboxes." : "This host cannot run sandboxes yet.");
    return ok ? EXIT_DONE : EXIT_FAILED;
}
