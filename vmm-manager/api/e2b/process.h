#pragma once

#include "api/e2b/e2b-private.h"

/*
 * Processes that were started by Start. One attachment in the daemon serves all clients of a
 * process: each gets the output from the moment it came; what nobody listens to is dropped. A
 * client that goes away does not end the process. An ended one is remembered for a while.
 */
#define PROCESS_KEPT_USEC (30 * USEC_PER_SEC)
#define PROCESSES_MAX 16384u
#define PROCESS_STREAM_MAX (4u * 1024u * 1024u) /* waits for one client */
#define PROCESS_CHUNK (32u * 1024u)
#define PROCESS_LABEL "e2b:" /* of the guest's process, followed by the tag */

struct e2b_client;
struct e2b_input;

struct e2b_process {
    struct api_e2b *e2b; /* weak */
    struct e2b_process *prev, *next;
    char sandbox_id[65];
    struct sandbox *sb;          /* weak, valid while watch is there */
    struct sandbox_watch *watch; /* owned; NULL when the console went */
    struct exec *exec;           /* owned; NULL: not attached */
    uint64_t process_id;
    uint32_t pid;
    char *tag;      /* owned, may be NULL */
    json_t *config; /* owned: {cmd, args, envs, cwd?} */
    bool tty, has_stdin, started, exited;
    struct exec_exit exit;
    uint64_t exited_usec;
    uint64_t skip[EXEC_STREAMS_MAX];  /* after a new attachment: output below is old */
    size_t unacked[EXEC_STREAMS_MAX]; /* held back for a slow client */
    struct e2b_client *clients;       /* each owned by its request */
    struct e2b_input *inputs;         /* each owned by who writes, oldest first */
};

struct process_start {
    const struct exec_spec *spec;
    const char *tag;
    json_t *config_consume;
    bool has_stdin;
};
/* Starts one and makes the request its first client, which gets every answer from here on. */
void e2b_process_start(struct api_e2b *e2b, struct request *req, struct sandbox *sb,
                       struct console *c, const struct process_start *start);
/* Makes the request a client of a process. */
void e2b_process_connect(struct e2b_process *p, struct request *req);
/* Attached, or about to be: -errno when it cannot. */
int e2b_process_attach(struct e2b_process *p, struct console *c, struct sandbox *sb,
                       struct error *err);
/* message NULL: all is written; else why not. It still is the caller's to free. */
typedef void (*process_input_fn)(enum connect_code code, const char *message, void *userdata);
/*
 * Writes to an attached process as fast as it reads, behind what others write. 1: all is written;
 * 0: `done` follows from the loop unless *ret is freed before; -EPIPE: its input is closed.
 */
int e2b_process_input(struct e2b_process *p, char *data_consume, size_t size, process_input_fn done,
                      void *userdata, struct e2b_input **ret);
struct e2b_input *e2b_input_free(struct e2b_input *input); /* always NULL */
/* A process that the guest knows and we do not (any more). NULL: out of memory. */
struct e2b_process *e2b_process_known(struct api_e2b *e2b, struct sandbox *sb,
                                      const struct exec_info *info);
/* By pid (not 0) or tag. */
struct e2b_process *e2b_process_find(struct api_e2b *e2b, const char *sandbox_id, uint32_t pid,
                                     const char *tag);
void e2b_processes_free(struct api_e2b *e2b);
