#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "guest/stream.h"

/*
 * A process that the host asked for, and its output. States:
 *
 *   SPAWNING  forked; the error pipe tells whether it could start (closed by exec: yes)
 *   RUNNING   Started was sent
 *   EXITED    reaped; output and status are kept until Release or until too many others came
 *   RELEASED  forgotten by the host, but background children hold its pipes: their output is read
 *             and thrown away, so that they do not die of SIGPIPE
 *
 * `op` marks file operations and dial, children that run our own code: they live only as long as
 * their channel.
 */
struct server;

#define PROCESS_STREAMS 8u
#define PROCESSES_MAX 1024u
#define PROCESSES_EXITED_MAX 256u
#define PROCESSES_RELEASED_MAX 256u
#define PROCESS_ARGV_SHOWN 1024u /* bytes of argv in List */
#define PROCESS_LABEL_MAX 128u
#define PROCESS_RECENT_MAX 4096u

enum process_state {
    PROCESS_SPAWNING,
    PROCESS_RUNNING,
    PROCESS_EXITED,
    PROCESS_RELEASED,
};
#define PROCESS_STATE_COUNT 4

struct process {
    struct server *server; /* weak */
    TAILQ_ENTRY(process) link, ready_link;
    bool ready; /* in server->ready */

    uint64_t id;
    enum process_state state;
    bool op, tty, drop_when_full;
    pid_t pid;
    int pidfd, error_fd; /* owned */
    struct source pid_source, error_source;
    int cgroup_fd;    /* owned; -EBADF: none */
    int procs_fd;     /* owned; -EBADF: not read yet */
    uint64_t cgroup;  /* number of its cgroup */
    bool cgroup_left; /* its directory is still there */
    uint32_t channel; /* 0: nobody attached */

    uint64_t deadline_usec, kill_usec; /* USEC_INFINITY: none */
    uint32_t kill_grace_msec;

    uint32_t status, signal;
    bool timed_out, oom_killed, exit_sent;
    struct rusage usage;
    uint64_t started_usec, ended_usec, started_wall_usec;

    char *label;   /* owned */
    char **argv;   /* owned, cut */
    pid_t *recent; /* owned: members when a stream >= 3 last got input; the leader may be missing */
    size_t n_recent;
    bool look;   /* a record of a stream >= 3 has come: see process_look_around() */
    bool alone;  /* since then: nobody else was in the tree, nor came input that may change that */
    pid_t *told; /* owned: whom an interrupt of RECENT has reached; see signals.c */
    size_t n_told;
    uint64_t retell_usec; /* when it is said again, to those it has not found yet */
    unsigned retells;     /* times left */
    struct stream streams[PROCESS_STREAMS];
};
TAILQ_HEAD(process_list, process);

/* A cgroup that outlives its entry: daemons of a forgotten process are still in it. */
struct leftover {
    TAILQ_ENTRY(leftover) link;
    uint64_t id;
};
TAILQ_HEAD(leftover_list, leftover);

/* A new entry in the table; NULL when out of memory. */
struct process *process_new(struct server *s);
/* Takes it out of the table, closes everything, forgets it. Kills nothing. */
void process_free(struct process *p);

struct process *process_find(struct server *s, uint64_t id);
struct process *process_find_channel(struct server *s, uint32_t channel);
/* Processes that are not over. */
unsigned process_count_alive(const struct server *s);
/* Nothing that a request has started lives any more, daemons included; or nothing but p. */
bool process_none_left(const struct server *s);
bool process_is_alone(const struct process *p);

/* It may have something to send. */
void process_mark_ready(struct process *p);
/* Sends what windows and the connection allow, in turns. */
void process_pump(struct server *s);

/* Moves the output to a channel, from its oldest byte; the old one gets Closed. */
void process_attach(struct process *p, uint32_t channel);
/* Nobody is attached any more. An operation of ours ends, or is freed if it already has. */
void process_detach(struct process *p);
/* A new conversation, or the host is gone: nobody is attached to anything. */
void process_detach_all(struct server *s);

/* Forgets an exited process. */
void process_release(struct process *p);
/* Keeps the numbers of exited and released ones, and the memory of rings, within their limits. */
void process_evict(struct server *s);

/* Reaps it if it is dead. */
void process_reap(struct process *p);
/* The error pipe told: starts, or fails and disappears. */
void process_spawned(struct process *p);
/* Removes cgroups of exited and of forgotten processes that have become empty. */
void process_sweep_cgroups(struct server *s);

/* Says an interrupt of RECENT again to what came up meanwhile, and plans the next time. */
void process_retell(struct process *p, uint64_t now_usec);
/* Acts on deadlines that are over. */
void process_run_timers(struct server *s, uint64_t now_usec);
/* When the next one is due. */
uint64_t process_next_timer(const struct server *s);
/* A pause that did not count, from before the freeze to after the thaw. */
void process_shift_timers(struct server *s, uint64_t by_usec);

/* The channel's process is signalled; scope is of session.proto. 0 or a negative errno. */
int process_signal(struct process *p, int signo, int scope);
/* Notes who is in the tree, before input reaches a stream >= 3. */
void process_snapshot(struct process *p);
/*
 * Looks whether shells that have told the end of a command are alone now, when what they told has
 * been sent: before their next command there is then nobody to be noted.
 */
void process_look_around(struct server *s);
/* SIGKILL for every process of every request. */
void process_kill_all(struct server *s, int signo);
