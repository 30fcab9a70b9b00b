#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/loop.h"
#include "host/exec.h"
#include "host/files.h"
#include "host/session-control.h"
#include "host/session-script.h"
#include "host/session.h"

/*
 * Theory of operation. A session has a feed (the attachment to its shell), at most one command that
 * runs, a queue, the last commands with their results, and views. Events of the guest come in
 * through the feed; each changes state, then session_pump() draws the conclusions: starts the next
 * command, writes what fits, tells views what they can be told, acknowledges output. User callbacks
 * come from there and from the delivery of output only, always from the loop.
 *
 * Every entry from the loop is bracketed by session_enter() and session_leave(); what is freed
 * meanwhile is marked, and goes at the last leave.
 *
 * Output is never stored here. A view has its own position in each stream; the feed acknowledges as
 * far as the slowest view has consumed, and nothing when there is none. A view that needs bytes
 * from before the feed's position makes the feed attach again from there; the others skip by
 * offset.
 */

#define SESSION_HISTORY_MAX 16u
#define SESSION_DRAIN_MAX (4u * 1024u * 1024u) /* bytes per stream dropped to see an end */
#define SESSION_STREAM_TO 3u
#define SESSION_STREAM_FROM 4u

struct session_feed {
    struct session *session; /* weak */
    uint64_t process_id;     /* 0: not started */
    struct exec *exec;       /* owned; NULL: not attached */
    bool started;            /* exec is */
    bool exited;             /* the process is over */
    uint64_t received[3], acked[3];
    uint64_t written; /* offset on SESSION_STREAM_TO */
};

struct session_input;

/* A name in the guest that is being removed. */
struct session_removal {
    LIST_ENTRY(session_removal) link;
    struct file_call *call; /* owned */
};
LIST_HEAD(session_removal_list, session_removal);

/* One command; referenced by the session while queued, running or remembered, and by its views. */
struct session_command {
    TAILQ_ENTRY(session_command) link;
    unsigned refs;
    uint64_t number; /* 0: queued */
    char *text;      /* owned; NULL once sent */
    uint64_t timeout_msec;
    bool with_stdin;
    bool close_stdin;    /* asked for before the input was there */
    uint64_t process_id; /* of the shell it ran in */
    uint64_t started_usec, started_wall_usec;
    bool done, timed_out;
    struct error err; /* done without a result */
    struct session_result result;
    char *cwd;                   /* owned */
    struct session_input *input; /* owned: its stdin */
    unsigned n_views;
};
TAILQ_HEAD(session_command_list, session_command);

struct session_view {
    TAILQ_ENTRY(session_view) link;
    struct session *session;         /* ref */
    struct session_command *command; /* ref */
    struct session_view_callbacks cb;
    void *userdata;
    bool freed, told_start, told_result;
    uint64_t next[3], consumed[3]; /* offsets: to deliver, and taken by the owner */
};
TAILQ_HEAD(session_view_list, session_view);

enum session_phase {
    SESSION_PHASE_NONE,    /* no shell */
    SESSION_PHASE_BOOT,    /* started, not ready */
    SESSION_PHASE_ADOPT,   /* attaching to the shell of an earlier daemon */
    SESSION_PHASE_RESTORE, /* ready, takes over the state of its predecessor */
    SESSION_PHASE_UP,
};

/* How far the end of a command has been forced. */
enum session_force {
    SESSION_FORCE_NONE,
    SESSION_FORCE_INTERRUPT, /* SIGINT to what it started, and the shell told */
    SESSION_FORCE_KILL,      /* SIGKILL to what it started */
    SESSION_FORCE_SHELL,     /* session_script_interrupt() to the shell */
    SESSION_FORCE_TREE,      /* SIGKILL to all */
};

/* What is taken over by the next shell. */
struct session_carry {
    bool valid;
    char *cwd;   /* owned */
    char *state; /* owned */
    size_t size;
};

struct session {
    unsigned refs;  /* the owner and every view */
    unsigned depth; /* our functions on the stack */
    bool freed;
    struct console *console; /* weak */
    struct loop *loop;       /* weak */
    struct session_callbacks cb;
    void *userdata;

    char *name, *user, *cwd; /* owned */
    char **env;              /* owned */
    enum session_kind kind;
    uint16_t rows, cols;

    enum session_state state;
    struct error dead_reason;
    struct session_record record;

    const struct session_shell *shells; /* weak */
    size_t shell;                       /* index in shells */
    enum session_phase phase;
    struct session_feed *feed; /* owned: the shell */
    struct session_feed *old;  /* owned: the one before, for its output; may be NULL */
    struct session_control control;
    struct session_carry carry;
    char *last_cwd;   /* owned; NULL: unknown */
    uint64_t mark[3]; /* output offsets where the next command begins */
    bool list_traps;  /* the shell's traps may have changed */
    bool lost_before; /* the shell died between commands */
    enum session_takes takes;
    struct buf line; /* for the shell, not yet written */
    struct buf sent; /* copy of the running command's line, for the record; may be empty */

    struct session_command *current; /* ref */
    struct session_command_list queue, history;
    unsigned n_queued, n_history;
    struct session_view_list views;
    struct session_removal_list removals;

    struct source *timer, *kick, *saver; /* owned */
    bool save_due;
    enum session_force force;
    uint64_t drain[3]; /* bytes that may be dropped although nobody took them */

    bool killing;
    console_done_fn killed;
    void *killed_userdata;
};

/* ---- session.c ---- */
void session_enter(struct session *s);
/* May free s. */
void session_leave(struct session *s);
struct session *session_unref(struct session *s);
/* session_pump() soon, from the loop. */
void session_kick(struct session *s);
void session_pump(struct session *s);
void session_set_state(struct session *s, enum session_state state, const struct error *err);
void session_save(struct session *s);
/* The same, a moment later: a daemon that dies before it sees the command's end again. */
void session_save_later(struct session *s);
/* Nothing more can run here: tells everybody. */
void session_die(struct session *s, const struct error *reason);
/* Completes session_kill(); err is NULL when the shell is gone. */
void session_finish_kill(struct session *s, const struct error *err);

/* ---- session-shell.c: the shell's life ---- */
int session_shell_start(struct session *s, struct error *err);
int session_shell_adopt(struct session *s, struct error *err);
/* The current feed's process ended. */
void session_shell_exited(struct session *s, const struct exec_exit *exit);
/* The current feed could not start or was taken away. */
void session_shell_closed(struct session *s, const struct error *reason);
void session_shell_message(struct session *s, const struct session_message *m);
/* Writes what the guest takes of s->line. */
void session_shell_write(struct session *s);
/* The adopted shell has got `received` bytes of lines: the rest of the running command's goes out.
 */
void session_shell_resend(struct session *s, uint64_t received);
void session_carry_done(struct session_carry *carry);

/* ---- session-feed.c: output ---- */
int session_feed_start(struct session *s, const struct exec_spec *spec, struct session_feed **ret,
                       struct error *err);
struct session_feed *session_feed_new(struct session *s, uint64_t process_id);
struct session_feed *session_feed_free(struct session_feed *f);
/* Attaches from where the views need it. */
int session_feed_attach(struct session_feed *f, struct error *err);
/* Attaches again if a view needs older output than what comes. */
void session_feed_serve(struct session_feed *f);
void session_feed_ack(struct session_feed *f);
/* The feed that has the output of this process; NULL: gone. */
struct session_feed *session_feed_of(struct session *s, uint64_t process_id);
/* The output of this process will not come any more: views stop waiting for it. */
void session_feed_give_up(struct session *s, uint64_t process_id);

/* ---- session-command.c ---- */
struct session_command *session_command_new(void);
struct session_command *session_command_ref(struct session_command *c);
struct session_command *session_command_unref(struct session_command *c);
/* Takes the next one from the queue if the shell is free. */
void session_command_next(struct session *s);
/* The line can go to the shell; input is its stdin's path or NULL. */
void session_command_send(struct session *s, const char *input);
/* It ended: `end` are output offsets, cwd may be NULL. Moves it to the history. */
void session_command_finish(struct session *s, int exit_code, const uint64_t end[3],
                            const char *cwd);
/* It ended without a result. */
void session_command_fail(struct session *s, const struct error *err);
/* From the history, the queue or the current one; 0: the current or last one. */
struct session_command *session_command_find(struct session *s, uint64_t number);
/* Ends the command as ^C would; what the shell holds is kept, or goes to its successor. */
void session_command_interrupt(struct session *s);
/* Begins or goes on forcing the end of the current command. */
void session_command_force(struct session *s, enum session_force force);
void session_command_arm(struct session *s);
int session_command_timer(struct source *source, uint64_t now_usec, void *userdata);

/* ---- session-input.c: stdin of a command in a pipe session ---- */
int session_input_start(struct session *s, struct session_command *c, struct error *err);
struct session_input *session_input_free(struct session_input *in);
size_t session_input_writable(const struct session_input *in);
int session_input_write(struct session_input *in, const void *data, size_t size);
int session_input_close(struct session_input *in);
void session_removals_free(struct session *s);

/* ---- session-view.c ---- */
void session_views_pump(struct session *s);
void session_views_writable(struct session *s, struct session_command *c);
void session_views_reap(struct session *s);

/* For tests: another list of shells, ended by a NULL path; NULL restores the own one. */
void session_set_shells_for_test(const struct session_shell *shells);
