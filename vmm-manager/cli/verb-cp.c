#include "cli/verbs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/strv.h"
#include "cli/copy.h"

/* "ID:/path" names a path in a sandbox: a colon before any slash. NULL for a path of this host. */
static const char *guest_part(const char *arg)
{
    const char *colon = strchr(arg, ':'), *slash = strchr(arg, '/');

    return colon && colon != arg && (!slash || colon < slash) ? colon + 1 : NULL;
}

/* Absolute, without slashes at the end. */
static char *clean_path(const char *path, bool guest)
{
    char *text = string_printf("%s%s", guest && path[0] != '/' ? "/" : "", path[0] ? path : ".");
    size_t n = text ? strlen(text) : 0;

    if (text && guest && strcmp(text, "/.") == 0)
        text[1] = '\0', n = 1;
    while (n > 1 && text[n - 1] == '/')
        text[--n] = '\0';
    return text;
}

/* Name that a source gets inside a directory; "" when it stands for its contents ("dir/."). */
static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;

    return strcmp(base, ".") == 0 || strcmp(base, "..") == 0 ? "" : base;
}

/* Where exactly a source goes: into an existing directory under its own name, else to that path. */
static char *final_path(const char *source, const char *target, bool into_directory)
{
    const char *base = base_name(source);

    if (!into_directory || base[0] == '\0')
        return string_printf("%s", target);
    return string_printf("%s/%s", strcmp(target, "/") == 0 ? "" : target, base);
}

static bool wants_directory(const char *target)
{
    size_t n = strlen(target);

    return n > 0 && target[n - 1] == '/';
}

static int copy_all_in(struct copy *c, char **sources, uint32_t count, const char *target,
                       struct error *err)
{
    _cleanup_free_ char *to = clean_path(target, /* guest= */ true);
    _cleanup_(copy_info_done) struct copy_info info = {0};
    int r;

    if (!to)
        return error_set(err, ENOMEM, "out of memory");
    r = copy_stat(c, to, &info, err);
    if (r < 0 && err->code != ERR_PATH_NOT_FOUND && err->code != ERR_NOT_FOUND)
        return r;
    if (!info.is_directory && (count > 1 || wants_directory(target)))
        return error_set(err, ENOTDIR, "'%s:%s' is not a directory", c->sandbox, to);
    error_clear(err);
    for (uint32_t i = 0; i < count; i++) {
        _cleanup_free_ char *from = clean_path(sources[i], /* guest= */ false);
        _cleanup_free_ char *exact =
            from ? final_path(from, to, info.is_directory && strcmp(from, "-") != 0) : NULL;

        if (!exact)
            return error_set(err, ENOMEM, "out of memory");
        r = copy_in(c, from, exact, err);
        if (r < 0) {
            error_wrap(err, "copy '%s' to '%s:%s'", sources[i], c->sandbox, exact);
            return r;
        }
    }
    return 0;
}

static int copy_all_out(struct copy *c, char **sources, uint32_t count, const char *target,
                        struct error *err)
{
    _cleanup_free_ char *to = clean_path(target, /* guest= */ false);
    bool is_stream = strcmp(target, "-") == 0;
    struct stat st;
    bool directory = !is_stream && stat(target, &st) == 0 && S_ISDIR(st.st_mode);

    if (!to)
        return error_set(err, ENOMEM, "out of memory");
    if (!directory && (count > 1 || wants_directory(target)))
        return error_set(err, ENOTDIR, "'%s' is not a directory", target);
    for (uint32_t i = 0; i < count; i++) {
        _cleanup_free_ char *from = clean_path(guest_part(sources[i]), /* guest= */ true);
        _cleanup_free_ char *exact = from ? final_path(from, to, directory) : NULL;
        _cleanup_(copy_info_done) struct copy_info info = {0};
        int r;

        if (!exact)
            return error_set(err, ENOMEM, "out of memory");
        r = copy_stat(c, from, &info, err);
        if (r >= 0)
            r = copy_out(c, from, &info, exact, err);
        if (r < 0) {
            error_wrap(err, "copy '%s' to '%s'", sources[i], exact);
            return r;
        }
    }
    return 0;
}

/* All arguments of one side must name the same kind, and those in a sandbox the same sandbox. */
static int check_sides(char **args, uint32_t count, bool in, struct error *err)
{
    for (uint32_t i = 0; i + 1 < count; i++) {
        const char *part = guest_part(args[i]);

        if (in && part)
            return error_set(err, EINVAL, "cp: '%s' and '%s' are both in a sandbox", args[i],
                             args[count - 1]);
        if (!in && !part)
            return error_set(err, EINVAL,
                             "cp: neither '%s' nor '%s' names a sandbox, as in ID:/path", args[i],
                             args[count - 1]);
        if (!in && (part - args[i] != guest_part(args[0]) - args[0] ||
                    strncmp(args[i], args[0], (size_t)(part - args[i])) != 0))
            return error_set(err, EINVAL, "cp: '%s' is in another sandbox than '%s'", args[i],
                             args[0]);
    }
    return 0;
}

int verb_cp(struct cli *cli, char **args, uint32_t count)
{
    const char *target = args[count - 1], *inside = guest_part(target);
    bool in = inside != NULL;
    const char *named = in ? target : args[0];
    _cleanup_free_ char *sandbox = NULL;
    struct copy c = {.cli = cli, .user = cli->options.user};
    struct error err = {0};
    int r;

    r = check_sides(args, count, in, &err);
    if (r < 0)
        return cli_fail(cli, &err);
    sandbox = strndup(named, (size_t)(guest_part(named) - 1 - named));
    if (!sandbox)
        return EXIT_FAILED;
    c.sandbox = sandbox;
    cli_progress_begin(cli, "copying");
    r = in ? copy_all_in(&c, args, count - 1, inside, &err)
           : copy_all_out(&c, args, count - 1, target, &err);
    cli_progress_end(cli);
    if (r == -EPIPE && strcmp(target, "-") == 0)
        return EXIT_FAILED; /* whoever read our stdout has left */
    return r < 0 ? cli_fail(cli, &err) : EXIT_DONE;
}
