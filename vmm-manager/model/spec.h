#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* Limits of what a request may ask for. */
#define SPEC_CPUS_MAX 32u
#define SPEC_MEMORY_MIB_MIN 64u
#define SPEC_MEMORY_MIB_MAX (256u * 1024u)
#define SPEC_DISK_MIB_MIN 16u
#define SPEC_DISK_MIB_MAX (1024u * 1024u)
#define SPEC_TIMEOUT_SEC_MAX (30u * 24u * 3600u)
#define SPEC_RETENTION_SEC_MAX (10u * 365u * 24u * 3600u)
#define SPEC_ENV_MAX 1024u
#define SPEC_ENV_BYTES_MAX (256u * 1024u)
#define SPEC_ARGV_BYTES_MAX (768u * 1024u)

/* What a client asks a sandbox to be. Everything owned. */
struct sandbox_spec {
    char *name;        /* NULL or name_is_valid(), unique among living sandboxes of its tenant */
    char *image;       /* image name; NULL with template */
    char *template;    /* template name; NULL: the implicit one of image and size */
    char *backend;     /* NULL: the best that works here */
    char *user;        /* default of exec, NULL: root */
    char *workdir;     /* default of exec, NULL */
    char **env;        /* default of exec, "K=V" */
    char **entrypoint; /* what a run without a program starts, before its arguments; NULL: none */
    char **cmd;        /* arguments of a run that has none; NULL: none */
    uint32_t cpus;
    uint32_t memory_mib;
    uint32_t disk_mib;
    uint32_t timeout_sec;   /* life time; 0: none */
    uint32_t idle_sec;      /* hibernates when unused for so long; 0: never by itself */
    uint32_t retention_sec; /* removed when asleep for so long; 0: never */
    char *on_timeout;       /* "kill", "hibernate"; NULL: kill */
    char **metadata;        /* of the client's, "K=V"; never read by us */
    bool private_ports;     /* its ports need a token by E2B's way to them; true by default */
    char *tenant;           /* whose it is, NULL: TENANT_DEFAULT; never from a client's body */
    bool transient;         /* of one request: no later daemon keeps it; neither from a body */
    bool build;             /* runs steps of a build: booted without a template, gone with it */
};

void sandbox_spec_init(struct sandbox_spec *spec); /* defaults: base, 1 cpu, 256 MiB, 4096 MiB */
void sandbox_spec_done(struct sandbox_spec *spec);
int sandbox_spec_copy(const struct sandbox_spec *from, struct sandbox_spec *to);

/*
 * Strict: an unknown key, a wrong type, a value out of range are errors that name the key, the
 * value and what was expected. `spec` is initialised by the caller and keeps defaults of absent
 * keys. Keys: name image template backend user workdir env{} entrypoint[] cmd[] cpus memory_mib
 * disk_mib timeout_sec idle_sec retention_sec on_timeout.
 */
int sandbox_spec_from_json(const json_t *json, struct sandbox_spec *spec, struct error *err);
/* The same for what sandbox_spec_to_json() wrote and we stored: with what no client may say. */
int sandbox_spec_from_stored(const json_t *json, struct sandbox_spec *spec, struct error *err);
const char *sandbox_spec_tenant(const struct sandbox_spec *spec); /* never NULL */
/* The end of its life time puts it to sleep instead of ending it. */
bool sandbox_spec_hibernates(const struct sandbox_spec *spec);
json_t *sandbox_spec_to_json(const struct sandbox_spec *spec); /* NULL: out of memory */

/* What to run. Everything owned. */
struct exec_request {
    char **argv;
    char **env;
    char *cwd;
    char *user;
    bool tty;
    bool stdin_open; /* input will come; otherwise stdin is /dev/null */
    bool detach;     /* answer when started; output is kept in the guest, oldest dropped */
    bool keep;       /* goes on when the client goes away, to be attached again */
    uint16_t rows, cols;
    uint32_t timeout_msec;
    uint64_t memory_max_bytes;
    uint32_t pids_max;
};
void exec_request_done(struct exec_request *req);
/* Keys: argv[] env{} cwd user tty stdin detach keep rows cols timeout_ms memory_max_bytes pids_max.
 */
int exec_request_from_json(const json_t *json, struct exec_request *req, struct error *err);
