#pragma once

#include "api/e2b/connect.h"
#include "api/e2b/e2b.h"
#include "api/http.h"
#include "base/loop.h"
#include "core/core.h"
#include "host/exec.h"
#include "host/files.h"

/* Insides of the E2B API, shared by its handlers. */
#define E2B_ENVD_VERSION "0.5.7" /* whose features work here */
#define E2B_ENVD_PORT 49983
#define E2B_CALL_USEC (30 * USEC_PER_SEC)
#define E2B_DEFAULT_USER "user"
#define E2B_TOKEN_PURPOSE "envd"
#define E2B_TRAFFIC_PURPOSE "traffic"

struct e2b_build;
struct e2b_files;
struct e2b_process;
struct e2b_sweep;
struct e2b_watcher;

/* What a sandbox's CPUs had done when somebody asked last. */
#define E2B_SAMPLES 256u
struct e2b_sample {
    char sandbox_id[65];
    uint64_t cpu_usec, at_usec;
};

struct api_e2b {
    struct core *core;             /* weak */
    struct loop *loop;             /* weak */
    struct e2b_process *processes; /* owned list */
    unsigned n_processes;
    struct e2b_watcher *watchers; /* owned list */
    unsigned n_watchers;
    struct source *sweep;          /* owned: forgets processes that ended a while ago */
    struct e2b_build *builds;      /* owned list, the newest first */
    struct e2b_files *files;       /* owned list: uploads for builds, the newest first */
    struct e2b_sweep *image_sweep; /* weak: the worker\'s */
    bool https;                    /* how the port is reached */
    struct e2b_sample samples[E2B_SAMPLES];
};

void e2b_watchers_free(struct api_e2b *e2b);
struct api_e2b *e2b_of(const struct request *req);

/* ---- control plane errors: {"code": status, "message"} ---- */
void e2b_answer_error(struct request *req, const struct error *err);
void e2b_answer_status(struct request *req, unsigned status, const char *message);

/* ---- whose sandbox: by the headers or the host name ---- */
/*
 * The sandbox that an envd call is for, and its console; NULL: the answer is out (401 without its
 * access token, then 502 when there is none). signed_url: the caller checks a signature instead.
 */
struct sandbox *envd_sandbox(struct request *req, bool signed_url);
struct console *envd_console(struct request *req, struct sandbox **ret_sb);
/* 1 and the sandbox and its port that headers or host name give; 0: none; -EINVAL: half of it. */
int envd_address(struct request *req, char ret_id[static 65], uint16_t *ret_port);
void envd_answer_gone(struct request *req, const char *id);
void envd_answer_denied(struct request *req);
/* It cannot be woken: as gone as one that never was. For touch_ops. */
void envd_answer_not_usable(struct request *req, const struct error *err);
/* A value of the query; false: the error is already the answer. */
bool e2b_query(struct request *req, const char *key, const char **ret);
/* The same for Connect calls, with the message decoded. NULL: the answer is out. */
struct console *envd_call(struct request *req, bool stream, struct sandbox **ret_sb,
                          json_t **ret_message);
/* The user the client asks for (Basic authorization), else the sandbox's, else E2B's. Copied. */
int envd_user(struct request *req, struct sandbox *sb, char ret[static 129], struct error *err);

/* The template's name as its creator knows it. */
const char *e2b_template_of(struct sandbox *sb, char buf[static 64]);
/* Of the tenant that images and templates belong to. */
bool e2b_is_home(const struct request *req);

/* ---- paths as clients write them: absolute, or below the user's home ---- */
struct envd_account {
    uint32_t uid, gid;
    const char *home;
};
/* A fresh absolute path; NULL: out of memory. */
char *envd_join(const char *home, const char *path);
typedef void (*envd_resolved_fn)(struct request *req, struct sandbox *sb, struct console *c,
                                 const char *path, const struct envd_account *account, void *state);
/*
 * Finds the user in the guest and makes the path absolute. `fn` is called from the loop or at once;
 * on failure the request is answered instead. `release` (may be NULL) frees the state in any case,
 * afterwards. Takes over the request's state until then.
 */
void envd_resolve(struct request *req, struct sandbox *sb, struct console *c, const char *user,
                  const char *path, envd_resolved_fn fn, void *state, void (*release)(void *state));

/* ---- proto3 JSON ---- */
/* A field by its two spellings, NULL when absent or null. */
json_t *pb_get(const json_t *message, const char *camel, const char *snake);
const char *pb_string(const json_t *message, const char *camel, const char *snake);
/* "" for 0 as well: -EINVAL for what is neither. Numbers may come as strings. */
int pb_u64(const json_t *message, const char *camel, const char *snake, uint64_t max,
           uint64_t *ret);
