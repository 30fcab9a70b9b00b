#include "cli/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/macros.h"
#include "base/strv.h"

#define AT(field) offsetof(struct options, field)
#define ENV_MAX 1024u
#define MIB (UINT64_C(1024) * 1024)

const struct option_def option_defs[OPTION_COUNT] = {
    [OPTION_JSON] = {"json", 0, NULL, OPTION_TYPE_FLAG, AT(json), "print JSON"},
    [OPTION_QUIET] = {"quiet", 'q', NULL, OPTION_TYPE_FLAG, AT(quiet), "only what was asked for"},
    [OPTION_VERBOSE] = {"verbose", 'v', NULL, OPTION_TYPE_FLAG, AT(verbose),
                        "say each step on stderr"},
    [OPTION_SOCKET] = {"socket", 0, "PATH", OPTION_TYPE_STRING, AT(socket),
                       "the daemon's socket (HEARTH_SOCKET)"},
    [OPTION_STATE] = {"state", 0, "DIR", OPTION_TYPE_STRING, AT(state),
                      "where sandboxes live (HEARTH_STATE)"},
    [OPTION_HELP] = {"help", 'h', NULL, OPTION_TYPE_FLAG, AT(help), "show help"},
    [OPTION_IMAGE] = {"image", 0, "NAME", OPTION_TYPE_STRING, AT(image),
                      "image to start from (default: base)"},
    [OPTION_TEMPLATE] = {"template", 0, "NAME", OPTION_TYPE_STRING, AT(template),
                         "template to start from"},
    [OPTION_CPUS] = {"cpus", 0, "N", OPTION_TYPE_COUNT, AT(cpus), "virtual CPUs (default: 1)"},
    [OPTION_MEMORY] = {"memory", 'm', "SIZE", OPTION_TYPE_MIB, AT(memory_mib),
                       "memory, as 512M or 2G (default: 256M)"},
    [OPTION_DISK] = {"disk", 0, "SIZE", OPTION_TYPE_MIB, AT(disk_mib),
                     "writable disk, as 8G (default: 4G)"},
    [OPTION_LIFETIME] = {"timeout", 0, "TIME", OPTION_TYPE_DURATION, AT(lifetime_usec),
                         "remove the sandbox after this time, as 90s, 15m or 2h"},
    [OPTION_BACKEND] = {"backend", 0, "NAME", OPTION_TYPE_STRING, AT(backend),
                        "what runs it (default: the best here)"},
    [OPTION_NAME] = {"name", 0, "NAME", OPTION_TYPE_STRING, AT(name), "a name to call it by"},
    [OPTION_ENV] = {"env", 'e', "K[=V]", OPTION_TYPE_ENV, AT(env),
                    "environment; K alone passes on ours; repeat for more"},
    [OPTION_USER] = {"user", 'u', "USER", OPTION_TYPE_STRING, AT(user),
                     "guest user, by name or number (default: root)"},
    [OPTION_WORKDIR] = {"workdir", 'w', "DIR", OPTION_TYPE_STRING, AT(workdir),
                        "directory to run in"},
    [OPTION_TIMEOUT] = {"timeout", 0, "TIME", OPTION_TYPE_DURATION, AT(timeout_usec),
                        "kill the command after this time, as 90s or 15m; exit 124"},
    [OPTION_TTY] = {"tty", 't', NULL, OPTION_TYPE_FLAG, AT(tty), "give the command a terminal"},
    [OPTION_INTERACTIVE] = {"interactive", 'i', NULL, OPTION_TYPE_FLAG, AT(interactive),
                            "pass stdin even if it is a terminal"},
    [OPTION_NO_STDIN] = {"no-stdin", 'n', NULL, OPTION_TYPE_FLAG, AT(no_stdin),
                         "do not read stdin"},
    [OPTION_DETACH] = {"detach", 'd', NULL, OPTION_TYPE_FLAG, AT(detach),
                       "start it, print its process id, do not wait"},
    [OPTION_TENANT] = {"tenant", 0, "NAME", OPTION_TYPE_STRING, AT(tenant),
                       "the tenant that it belongs to (default: default)"},
    [OPTION_ROLE] = {"role", 0, "ROLE", OPTION_TYPE_STRING, AT(role),
                     "admin, user (default) or viewer"},
    [OPTION_QUOTA] = {"quota", 0, "K=V,...", OPTION_TYPE_STRING, AT(quota),
                      "limits: sandboxes=N, cpus=N, memory=SIZE, disk=SIZE, rate=N a second"},
    [OPTION_SESSION] = {"session", 's', "NAME", OPTION_TYPE_STRING, AT(session),
                        "which session (default: default)"},
    [OPTION_KIND] = {"kind", 0, "KIND", OPTION_TYPE_STRING, AT(kind), "pipe (default) or tty"},
    [OPTION_TAIL] = {"tail", 0, "SIZE", OPTION_TYPE_BYTES, AT(tail_bytes),
                     "only the last bytes, as 4K"},
    [OPTION_ALL] = {"all", 'a', NULL, OPTION_TYPE_FLAG, AT(all), "all of them"},
    [OPTION_FORCE] = {"force", 0, NULL, OPTION_TYPE_FLAG, AT(force),
                      "make it again even if it is there"},
    [OPTION_JOBS] = {"jobs", 0, "N", OPTION_TYPE_STRING, AT(jobs), "compile this much at once"},
    [OPTION_IDLE] = {"idle", 0, "TIME", OPTION_TYPE_DURATION, AT(idle_usec),
                     "hibernate when unused for this long, as 5m"},
    [OPTION_ON_TIMEOUT] = {"on-timeout", 0, "WHAT", OPTION_TYPE_STRING, AT(on_timeout),
                           "what --timeout does: kill (default) or hibernate"},
    [OPTION_RETENTION] = {"retention", 0, "TIME", OPTION_TYPE_DURATION, AT(retention_usec),
                          "remove it when asleep for this long, as 72h"},
    [OPTION_CHILDREN] = {"count", 'n', "N", OPTION_TYPE_COUNT, AT(children),
                         "how many (default: 1)"},
    [OPTION_FROM] = {"from", 0, "SNAPSHOT", OPTION_TYPE_STRING, AT(from),
                     "a checkpoint to start from, by id or name"},
    [OPTION_TREE] = {"tree", 0, NULL, OPTION_TYPE_FLAG, AT(tree), "show which follows which"},
    [OPTION_TAR] = {"tar", 0, "FILE", OPTION_TYPE_STRING, AT(tar),
                    "only write its root as a tar file"},
    [OPTION_URL] = {"url", 0, "BASE", OPTION_TYPE_STRING, AT(url),
                    "download from there, not from the project's releases"},
    [OPTION_SHA256] = {"sha256", 0, "SUM", OPTION_TYPE_STRING, AT(sha256),
                       "checksum that the download must have"},
    [OPTION_DIR] = {"dir", 0, "DIR", OPTION_TYPE_STRING, AT(dir),
                    "install there, not beside Hearth's programs"},
    [OPTION_PLATFORM] = {"platform", 0, "OS/ARCH", OPTION_TYPE_STRING, AT(platform),
                         "of which machine (default: this one)"},
    [OPTION_USERNAME] = {"username", 'u', "USER", OPTION_TYPE_STRING, AT(username), "who logs in"},
    [OPTION_PASSWORD_STDIN] = {"password-stdin", 0, NULL, OPTION_TYPE_FLAG, AT(password_stdin),
                               "read the password from stdin"},
    [OPTION_ENTRYPOINT] = {"entrypoint", 0, "PROGRAM", OPTION_TYPE_STRING, AT(entrypoint),
                           "run this instead of the image's entrypoint"},
    [OPTION_RUN] = {"run", 0, "CMD", OPTION_TYPE_STEP, AT(steps),
                    "run a command with /bin/sh; repeat for more, in order with --copy"},
    [OPTION_COPY] = {"copy", 0, "SRC:DST", OPTION_TYPE_STEP, AT(steps),
                     "copy a file or directory of this host to exactly DST"},
    [OPTION_READY] = {"ready", 0, "CMD", OPTION_TYPE_STRING, AT(ready),
                      "then run this until it succeeds"},
    [OPTION_READY_TIMEOUT] = {"ready-timeout", 0, "TIME", OPTION_TYPE_DURATION, AT(ready_usec),
                              "how long that may take (default: 60s)"},
    [OPTION_WARM] = {"warm", 0, "CMD", OPTION_TYPE_LIST, AT(warm),
                     "and this in every sandbox that waits in a pool; repeat for more"},
    [OPTION_OUT] = {"out", 'o', "DIR", OPTION_TYPE_STRING, AT(out),
                    "where pictures go (default: ./hearth-bench)"},
    [OPTION_ROUNDS] = {"rounds", 0, "N", OPTION_TYPE_COUNT, AT(rounds),
                       "how often each thing is measured (default: 20)"},
    [OPTION_LANGUAGE] = {"language", 'l', "LANGUAGE", OPTION_TYPE_STRING, AT(language),
                         "python, javascript, typescript or bash (default: by the file's name)"},
    [OPTION_CODE] = {"code", 'c', "TEXT", OPTION_TYPE_STRING, AT(code), "the program itself"},
    [OPTION_PORT] = {"port", 'p', "N", OPTION_TYPE_COUNT, AT(port),
                     "TCP port on 127.0.0.1 (default: any that is free)"},
    [OPTION_TOKEN] = {"token", 0, "TOKEN", OPTION_TYPE_STRING, AT(token),
                      "what clients must send as X-API-Key (default: a new one)"},
    [OPTION_DOCKERFILE] = {"file", 'f', "FILE", OPTION_TYPE_STRING, AT(dockerfile),
                           "the Dockerfile (default: CONTEXT/Dockerfile); - reads stdin"},
    [OPTION_TAG] = {"tag", 't', "NAME", OPTION_TYPE_STRING, AT(tag), "what the image is called"},
    [OPTION_BUILD_ARG] = {"build-arg", 0, "K[=V]", OPTION_TYPE_ENV, AT(build_args),
                          "value of an ARG; K alone passes on ours; repeat for more"},
    [OPTION_TARGET] = {"target", 0, "STAGE", OPTION_TYPE_STRING, AT(target),
                       "build this stage instead of the last"},
    [OPTION_NO_CACHE] = {"no-cache", 0, NULL, OPTION_TYPE_FLAG, AT(no_cache),
                         "take every step again"},
    [OPTION_RUN_TIMEOUT] = {"run-timeout", 0, "TIME", OPTION_TYPE_DURATION, AT(run_timeout_usec),
                            "how long each RUN may take, as 90s or 15m (default: 1h)"},
};

void options_done(struct options *o)
{
    o->env = strv_free(o->env);
    o->steps = strv_free(o->steps);
    o->warm = strv_free(o->warm);
    o->build_args = strv_free(o->build_args);
}

static int add_text(const struct option_def *def, char ***list, const char *value,
                    struct error *err)
{
    _cleanup_free_ char *text = def->type == OPTION_TYPE_STEP
                                    ? string_printf("%s=%s", def->name, value)
                                    : string_printf("%s", value);

    if (value[0] == '\0')
        return error_set(err, EINVAL, "--%s: empty value", def->name);
    return text && strv_append(list, text) >= 0
               ? 0
               : error_set(err, ENOMEM, "--%s: out of memory", def->name);
}

static int add_env(char ***env, const char *text, struct error *err)
{
    const char *equals = strchr(text, '=');
    _cleanup_free_ char *pair = NULL;
    const char *value;

    if (text[0] == '\0' || equals == text)
        return error_set(err, EINVAL, "--env '%s': expected K=V or K", text);
    if (strv_length(*env) >= ENV_MAX)
        return error_set(err, EINVAL, "--env: more than %u variables", ENV_MAX);
    if (equals)
        return strv_append(env, text);
    value = getenv(text);
    if (!value)
        return 0; /* not set here, so not set there */
    pair = string_printf("%s=%s", text, value);
    return pair ? strv_append(env, pair) : -ENOMEM;
}

static int set_number(const struct option_def *def, const char *value, uint64_t *ret)
{
    uint64_t n = 0;
    int r;

    switch (def->type) {
    case OPTION_TYPE_COUNT:
        return parse_u64(value, 1, UINT32_MAX, ret);
    case OPTION_TYPE_MIB:
        r = parse_size(value, MIB, &n);
        if (r < 0)
            return r;
        if (n == 0)
            return -ERANGE;
        *ret = n / MIB + (n % MIB > 0);
        return 0;
    case OPTION_TYPE_BYTES:
        r = parse_size(value, 1, &n);
        break;
    case OPTION_TYPE_DURATION:
        r = parse_duration(value, &n);
        break;
    case OPTION_TYPE_FLAG:
    case OPTION_TYPE_STRING:
    case OPTION_TYPE_ENV:
    case OPTION_TYPE_LIST:
    case OPTION_TYPE_STEP:
    default:
        return -EINVAL;
    }
    if (r < 0)
        return r;
    if (n == 0)
        return -ERANGE;
    *ret = n;
    return 0;
}

static const char *expectation(enum option_type type)
{
    switch (type) {
    case OPTION_TYPE_COUNT:
        return "a whole number from 1";
    case OPTION_TYPE_MIB:
    case OPTION_TYPE_BYTES:
        return "a size like 512M or 2G";
    case OPTION_TYPE_DURATION:
        return "a time like 90s, 15m or 2h";
    case OPTION_TYPE_FLAG:
    case OPTION_TYPE_STRING:
    case OPTION_TYPE_ENV:
    case OPTION_TYPE_LIST:
    case OPTION_TYPE_STEP:
        break;
    }
    return "another value";
}

static int set_option(struct options *o, const struct option_def *def, const char *value,
                      struct error *err)
{
    void *field = (char *)o + def->offset;
    int r;

    switch (def->type) {
    case OPTION_TYPE_FLAG:
        *(bool *)field = true;
        return 0;
    case OPTION_TYPE_STRING:
        if (value[0] == '\0')
            return error_set(err, EINVAL, "--%s: empty value", def->name);
        *(const char **)field = value;
        return 0;
    case OPTION_TYPE_ENV:
        r = add_env(field, value, err);
        return r < 0 ? error_fill(err, r, "--%s", def->name) : 0;
    case OPTION_TYPE_LIST:
    case OPTION_TYPE_STEP:
        return add_text(def, field, value, err);
    case OPTION_TYPE_COUNT:
    case OPTION_TYPE_MIB:
    case OPTION_TYPE_BYTES:
    case OPTION_TYPE_DURATION:
        break;
    }
    r = set_number(def, value, field);
    if (r < 0)
        return error_set(err, EINVAL, "--%s '%s': expected %s", def->name, value,
                         expectation(def->type));
    return 0;
}

static const struct option_def *find_long(uint64_t allowed, const char *name, size_t size)
{
    for (unsigned i = 0; i < OPTION_COUNT; i++)
        if ((allowed >> i & 1) && strlen(option_defs[i].name) == size &&
            memcmp(option_defs[i].name, name, size) == 0)
            return &option_defs[i];
    return NULL;
}

static const struct option_def *find_letter(uint64_t allowed, char letter)
{
    for (unsigned i = 0; i < OPTION_COUNT; i++)
        if ((allowed >> i & 1) && option_defs[i].letter == letter)
            return &option_defs[i];
    return NULL;
}

/* "--name", "--name=value" or "--name value"; `next` is the argument after it, or NULL. */
static int parse_long(struct options *o, uint64_t allowed, const char *arg, const char *next,
                      bool *ret_took_next, struct error *err)
{
    const char *name = arg + 2, *equals = strchr(name, '=');
    size_t size = equals ? (size_t)(equals - name) : strlen(name);
    const struct option_def *def = find_long(allowed, name, size);

    if (!def)
        return error_set(err, EINVAL, "unknown option '--%.*s'", (int)MIN(size, (size_t)64), name);
    if (!def->value && equals)
        return error_set(err, EINVAL, "--%s takes no value", def->name);
    if (!def->value)
        return set_option(o, def, NULL, err);
    if (equals)
        return set_option(o, def, equals + 1, err);
    if (!next)
        return error_set(err, EINVAL, "--%s needs a value (%s)", def->name, def->value);
    *ret_took_next = true;
    return set_option(o, def, next, err);
}

/* "-t", "-it", "-eK=V" or "-e K=V". */
static int parse_letters(struct options *o, uint64_t allowed, const char *arg, const char *next,
                         bool *ret_took_next, struct error *err)
{
    for (const char *p = arg + 1; *p; p++) {
        const struct option_def *def = find_letter(allowed, *p);
        int r;

        if (!def)
            return error_set(err, EINVAL, "unknown option '-%c'", *p);
        if (!def->value) {
            r = set_option(o, def, NULL, err);
            if (r < 0)
                return r;
            continue;
        }
        if (p[1])
            return set_option(o, def, p + 1, err);
        if (!next)
            return error_set(err, EINVAL, "-%c needs a value (%s)", *p, def->value);
        *ret_took_next = true;
        return set_option(o, def, next, err);
    }
    return 0;
}

int options_parse(struct options *o, uint64_t allowed, uint32_t end_after, int argc, char **argv,
                  uint32_t *ret_count, struct error *err)
{
    uint32_t count = 0;
    bool ended = false;

    for (int i = 0; i < argc; i++) {
        char *arg = argv[i];
        const char *next = i + 1 < argc ? argv[i + 1] : NULL;
        bool took_next = false;
        int r;

        if (!ended && strcmp(arg, "--") == 0) {
            ended = true;
            continue;
        }
        if (ended || arg[0] != '-' || arg[1] == '\0') {
            argv[count++] = arg;
            ended = ended || count > end_after;
            continue;
        }
        if (arg[1] == '-')
            r = parse_long(o, allowed, arg, next, &took_next, err);
        else
            r = parse_letters(o, allowed, arg, next, &took_next, err);
        if (r < 0)
            return r;
        i += took_next;
    }
    *ret_count = count;
    return 0;
}
