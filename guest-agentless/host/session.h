#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "host/console.h"

/*
 * A persistent shell in a sandbox, on top of exec alone. The image's own shell runs once per
 * session; commands reach it through a private pipe (fd 3), end-of-command, exit status and cwd
 * come back through another (fd 4), never by scanning output. One command at a time; others wait in
 * a bounded queue. All of the session's state that must survive a daemon restart is its process id
 * in the guest and the numbers of session_record: session_adopt() goes on where the old daemon
 * ended.
 */
struct session;

enum session_kind {
    SESSION_PIPE, /* stdout and stderr apart, stdin per command */
    SESSION_TTY,  /* one terminal; stdin goes to whatever reads the terminal */
};

struct session_spec {
    const char *name;
    enum session_kind kind;
    const char *user;
    const char *cwd;
    char *const *env;
    uint16_t rows, cols;
};

enum session_state {
    SESSION_STARTING,
    SESSION_IDLE,
    SESSION_RUNNING,
    SESSION_DEAD, /* no shell in the image, or the sandbox is gone */
};

/* What the daemon stores, after every change, to adopt the session later. */
struct session_record {
    uint64_t process_id;     /* of the shell, 0 when none runs */
    uint64_t control_offset; /* of stream 4, in bytes: where the next record begins */
    uint64_t command;        /* number of the current or last command */
    bool running;            /* a command was under way */
    uint64_t start[3]; /* output offsets at its start (1: stdout, 2: stderr); between commands:
                          where the next one's output begins */
    uint64_t started_wall_usec; /* 0: not sent to the shell yet */
    uint64_t timeout_msec;      /* of that command, 0: none */
    /*
     * What the shell was sent for that command, and where on stream 3 it begins: a VMM may drop
     * what a daemon sent just before it died, and the next one sends the rest. Weak; NULL when
     * there is none, or when it is too long to be kept (the size tells).
     */
    const uint8_t *line;
    uint64_t line_start, line_size;
};
#define SESSION_RECORD_LINE_MAX (64u * 1024u)

struct session_result {
    uint64_t command;
    int exit_code; /* 124 with timed_out after a time-out */
    bool timed_out;
    bool shell_exited; /* `exit`, `set -e`, killed: the shell ended with this command */
    bool state_lost;   /* and what it held (cwd, variables, functions) could not be carried over */
    bool oom_killed;
    uint64_t duration_usec;
    uint64_t start[3], end[3]; /* offsets of its output, 1: stdout, 2: stderr */
    const char *cwd;           /* weak, valid during the call; NULL when unknown */
};

struct session_callbacks {
    /* The record changed: store it. */
    void (*on_record)(struct session *s, const struct session_record *record, void *userdata);
    /* The shell is there (first start or a restart after its end). err: it cannot be, session dead.
     */
    void (*on_state)(struct session *s, enum session_state state, const struct error *err,
                     void *userdata);
};

int session_new(struct console *c, const struct session_spec *spec,
                const struct session_callbacks *cb, void *userdata, struct session **ret,
                struct error *err);
/* After a daemon restart or a restore: finds the shell again; a command under way goes on. */
int session_adopt(struct console *c, const struct session_spec *spec,
                  const struct session_record *record, const struct session_callbacks *cb,
                  void *userdata, struct session **ret, struct error *err);
/*
 * Forgets the session here; the shell lives on in the guest (for adoption). Views that are left get
 * their last call from the loop and are still the caller's to free. Before loop_free().
 */
struct session *session_free(struct session *s);
/* Ends the shell and all it started, then session_free may follow. */
int session_kill(struct session *s, console_done_fn done, void *userdata);

enum session_state session_get_state(const struct session *s);
const struct session_record *session_get_record(const struct session *s);

/*
 * A view of one command: the one that runs it, or a later client that attaches to it. Output since
 * the command's start is replayed as far as the guest still has it. At most SESSION_VIEWS_MAX.
 */
struct session_view;

struct session_view_callbacks {
    /* The command left the queue and runs (attach: at once); start[] are its output offsets. Before
     * any output, from the loop. May be NULL. */
    void (*on_started)(struct session_view *v, uint64_t command, const uint64_t start[3],
                       void *userdata);
    void (*on_output)(struct session_view *v, int stream /* 1 or 2 */, uint64_t offset,
                      const uint8_t *data, size_t size, void *userdata);
    /* More of the command's stdin may be written. May be NULL. */
    void (*on_writable)(struct session_view *v, void *userdata);
    /* The command ended and all its output was delivered; or err is set. Last call. */
    void (*on_result)(struct session_view *v, const struct session_result *result,
                      const struct error *err, void *userdata);
};

struct session_run_options {
    const char *text;      /* shell text, no NUL, at most SESSION_TEXT_MAX bytes */
    uint64_t timeout_msec; /* 0: none */
    bool with_stdin;       /* pipe sessions: input will be written; otherwise stdin is /dev/null */
};
#define SESSION_TEXT_MAX (1024u * 1024u)
#define SESSION_QUEUE_MAX 64u
#define SESSION_VIEWS_MAX 16u

int session_run(struct session *s, const struct session_run_options *options,
                const struct session_view_callbacks *cb, void *userdata, struct session_view **ret,
                struct error *err);
/* Follows the current command (or the last one); from[] are stream offsets already seen, 0: all. */
int session_attach(struct session *s, uint64_t command /* 0: current or last */,
                   const uint64_t from[3], const struct session_view_callbacks *cb, void *userdata,
                   struct session_view **ret, struct error *err);
/* The command goes on; only this view ends. Always returns NULL. */
struct session_view *session_view_free(struct session_view *v);

uint64_t session_view_command(const struct session_view *v); /* 0 while queued */
void session_view_consumed(struct session_view *v, int stream, size_t size);
size_t session_view_writable(const struct session_view *v);
int session_view_write(struct session_view *v, const void *data, size_t size);
int session_view_close_stdin(struct session_view *v);
/* To the command that runs: SIGINT and friends reach what it started, not the shell. */
int session_view_signal(struct session_view *v, int signo);
int session_resize(struct session *s, uint16_t rows, uint16_t cols);
