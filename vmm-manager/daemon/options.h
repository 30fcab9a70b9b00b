#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* The command line of hearthd. Strings are weak: of argv, or of base/paths. */
struct daemon_options {
    const char *state_dir;
    const char *socket_path;
    const char *listen;             /* HOST:PORT, "off", NULL: the default */
    const char *tls_cert, *tls_key; /* PEM files */
    const char *access_log;         /* file or "-"; NULL: none */
    const char *log_level;
    uint32_t max_sandboxes;
    uint32_t pool_size;
    uint64_t boot_timeout_usec;    /* 0: by accelerator */
    uint64_t snapshot_quota_bytes; /* 0: none */
    uint64_t compress_after_usec;  /* 0: never */
    uint32_t chain_max;            /* 0: any */
    int ready_fd;                  /* negative: none */
    bool log_json;
    bool help, version;
};

/* Defaults come from the environment (HEARTH_STATE, HEARTH_SOCKET, HEARTH_LISTEN,
 * HEARTH_TLS_CERT, HEARTH_TLS_KEY, HEARTH_ACCESS_LOG, HEARTH_LOG, HEARTH_BOOT_TIMEOUT,
 * HEARTH_POOL, HEARTH_SNAPSHOT_QUOTA, HEARTH_COMPRESS_AFTER, HEARTH_CHAIN_MAX). */
int daemon_options_parse(int argc, char **argv, struct daemon_options *ret, struct error *err);
void daemon_options_help(void);
