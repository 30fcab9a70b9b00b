#include "daemon/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/paths.h"
#include "base/strv.h"

enum option_kind {
    OPTION_PATH,
    OPTION_TEXT,
    OPTION_NUMBER,
    OPTION_SIZE, /* a number that may be 0 */
    OPTION_FD,
    OPTION_BYTES,    /* 0: none */
    OPTION_DURATION, /* over 0 */
    OPTION_PERIOD,   /* 0: never */
    OPTION_FLAG,
};

/* One table: parsing and help. */
static const struct option {
    const char *name;
    enum option_kind kind;
    size_t offset;
    uint64_t max;
    const char *argument;
    const char *help;
} options[] = {
    {"state", OPTION_PATH, offsetof(struct daemon_options, state_dir), 0, "DIR",
     "where sandboxes, templates and the database are (HEARTH_STATE, /var/lib/hearth)"},
    {"socket", OPTION_PATH, offsetof(struct daemon_options, socket_path), 0, "PATH",
     "where the API listens (HEARTH_SOCKET, STATE/hearthd.sock)"},
    {"listen", OPTION_TEXT, offsetof(struct daemon_options, listen), 0, "HOST:PORT",
     "the port of the API, port 0 for any, or `off` (HEARTH_LISTEN, 127.0.0.1:7070)"},
    {"tls-cert", OPTION_PATH, offsetof(struct daemon_options, tls_cert), 0, "FILE",
     "certificate chain of the port, PEM (HEARTH_TLS_CERT, without: no TLS)"},
    {"tls-key", OPTION_PATH, offsetof(struct daemon_options, tls_key), 0, "FILE",
     "its key, PEM (HEARTH_TLS_KEY)"},
    {"access-log", OPTION_TEXT, offsetof(struct daemon_options, access_log), 0, "FILE",
     "append a JSON line for each request, `-` for stderr (HEARTH_ACCESS_LOG, none)"},
    {"max-sandboxes", OPTION_NUMBER, offsetof(struct daemon_options, max_sandboxes), 4096, "N",
     "how many sandboxes this host may hold (256)"},
    {"pool", OPTION_SIZE, offsetof(struct daemon_options, pool_size), 32, "N",
     "warm sandboxes to keep of each template in use, 0: none (HEARTH_POOL, 1)"},
    {"boot-timeout", OPTION_DURATION, offsetof(struct daemon_options, boot_timeout_usec), 0, "TIME",
     "how long a guest may take to answer (HEARTH_BOOT_TIMEOUT, by accelerator)"},
    {"snapshot-quota", OPTION_BYTES, offsetof(struct daemon_options, snapshot_quota_bytes), 0,
     "SIZE", "what all snapshots may take on disk, such as 50G (HEARTH_SNAPSHOT_QUOTA, no limit)"},
    {"compress-after", OPTION_PERIOD, offsetof(struct daemon_options, compress_after_usec), 0,
     "TIME",
     "snapshots unused for this long are compressed, 0: never (HEARTH_COMPRESS_AFTER, 10m)"},
    {"chain-max", OPTION_SIZE, offsetof(struct daemon_options, chain_max), 31, "N",
     "a snapshot over this many others is made flat, 0: never (HEARTH_CHAIN_MAX, 4)"},
    {"log-level", OPTION_TEXT, offsetof(struct daemon_options, log_level), 0, "LEVEL",
     "error, warning, notice, info or debug (HEARTH_LOG, info)"},
    {"log-json", OPTION_FLAG, offsetof(struct daemon_options, log_json), 0, NULL,
     "one JSON object a line even on a terminal"},
    {"ready-fd", OPTION_FD, offsetof(struct daemon_options, ready_fd), 1 << 20, "N",
     "write `ready` or the reason why not to this descriptor, then close it"},
    {"foreground", OPTION_FLAG, SIZE_MAX, 0, NULL, "accepted: hearthd never forks away"},
    {"help", OPTION_FLAG, offsetof(struct daemon_options, help), 0, NULL, "this text"},
    {"version", OPTION_FLAG, offsetof(struct daemon_options, version), 0, NULL,
     "print the version"},
};

void daemon_options_help(void)
{
    puts("Usage: hearthd [OPTION]...\n\nThe daemon of Hearth: owns the sandboxes of one state "
         "directory.\n\nOptions:");
    for (size_t i = 0; i < ARRAY_SIZE(options); i++) {
        char left[40];

        (void)snprintf(left, sizeof(left), "--%s%s%s", options[i].name,
                       options[i].argument ? " " : "",
                       options[i].argument ? options[i].argument : "");
        printf("  %-20s %s\n", left, options[i].help);
    }
}

static int set_value(const struct option *o, const char *value, struct daemon_options *ret,
                     struct error *err)
{
    void *field = (char *)ret + o->offset;
    uint64_t number = 0;

    switch (o->kind) {
    case OPTION_PATH:
        if (value[0] != '/')
            return error_set(err, EINVAL, "--%s '%s': expected an absolute path", o->name, value);
        *(const char **)field = value;
        return 0;
    case OPTION_TEXT:
        *(const char **)field = value;
        return 0;
    case OPTION_NUMBER:
        if (parse_u64(value, 1, o->max, &number) < 0)
            return error_set(err, EINVAL, "--%s '%s': expected a number from 1 to %llu", o->name,
                             value, (unsigned long long)o->max);
        *(uint32_t *)field = (uint32_t)number;
        return 0;
    case OPTION_SIZE:
        if (parse_u64(value, 0, o->max, &number) < 0)
            return error_set(err, EINVAL, "--%s '%s': expected a number up to %llu", o->name, value,
                             (unsigned long long)o->max);
        *(uint32_t *)field = (uint32_t)number;
        return 0;
    case OPTION_FD:
        if (parse_u64(value, 0, o->max, &number) < 0)
            return error_set(err, EINVAL, "--%s '%s': expected a descriptor", o->name, value);
        *(int *)field = (int)number;
        return 0;
    case OPTION_BYTES:
        if (parse_size(value, 1, &number) < 0)
            return error_set(err, EINVAL, "--%s '%s': expected a size such as 50G", o->name, value);
        *(uint64_t *)field = number;
        return 0;
    case OPTION_DURATION:
    case OPTION_PERIOD:
        if (parse_duration(value, &number) < 0 || (number == 0 && o->kind == OPTION_DURATION))
            return error_set(err, EINVAL, "--%s '%s': expected a time such as 30s", o->name, value);
        *(uint64_t *)field = number;
        return 0;
    case OPTION_FLAG:
        if (o->offset != SIZE_MAX)
            *(bool *)field = true;
        return 0;
    }
    return -EINVAL;
}

static const struct option *find_option(const char *name, size_t length)
{
    for (size_t i = 0; i < ARRAY_SIZE(options); i++) {
        if (strlen(options[i].name) == length && strncmp(options[i].name, name, length) == 0)
            return &options[i];
    }
    return NULL;
}

/* Options that the environment may give; HEARTH_STATE and HEARTH_SOCKET are base/paths'. */
static const struct {
    const char *name, *option;
} variables[] = {
    {"HEARTH_ACCESS_LOG", "access-log"},
    {"HEARTH_BOOT_TIMEOUT", "boot-timeout"},
    {"HEARTH_CHAIN_MAX", "chain-max"},
    {"HEARTH_COMPRESS_AFTER", "compress-after"},
    {"HEARTH_LISTEN", "listen"},
    {"HEARTH_POOL", "pool"},
    {"HEARTH_SNAPSHOT_QUOTA", "snapshot-quota"},
    {"HEARTH_TLS_CERT", "tls-cert"},
    {"HEARTH_TLS_KEY", "tls-key"},
};

int daemon_options_parse(int argc, char **argv, struct daemon_options *ret, struct error *err)
{
    const char *level = getenv("HEARTH_LOG");
    int r;

    *ret = (struct daemon_options){
        .log_level = level && level[0] ? level : "info",
        .ready_fd = -EBADF,
        .pool_size = 1,
        .compress_after_usec = 600 * USEC_PER_SEC,
        .chain_max = 4,
        .log_json = !isatty(STDERR_FILENO),
    };
    for (size_t i = 0; i < ARRAY_SIZE(variables); i++) {
        const char *value = getenv(variables[i].name), *option = variables[i].option;

        if (!value || !value[0])
            continue;
        r = set_value(find_option(option, strlen(option)), value, ret, err);
        if (r < 0)
            return r;
    }
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *equals, *value = "";
        const struct option *o = NULL;

        if (string_starts_with(name, "--")) {
            name += 2;
            equals = strchr(name, '=');
            o = find_option(name, equals ? (size_t)(equals - name) : strlen(name));
        }
        if (!o)
            return error_set(err, EINVAL, "unknown option '%s'; --help lists them", argv[i]);
        equals = strchr(name, '=');
        if (o->kind != OPTION_FLAG) {
            value = equals ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
            if (!value)
                return error_set(err, EINVAL, "--%s: expected %s", o->name, o->argument);
        } else if (equals) {
            return error_set(err, EINVAL, "--%s takes no value", o->name);
        }
        r = set_value(o, value, ret, err);
        if (r < 0)
            return r;
    }
    return 0;
}
