#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "host/console.h"

/*
 * A process in the guest, as seen over one attachment. Output arrives in order per stream with its
 * byte offset. Flow control: at most EXEC_WINDOW bytes per stream are in flight beyond what the
 * owner has acknowledged with exec_consumed(); an owner who stops acknowledging stalls that stream
 * of that process only.
 */
struct exec;

#define EXEC_WINDOW (256u * 1024u)
#define EXEC_STREAMS_MAX 8u /* streams 0 to 7 */

struct exec_stream {
    uint8_t fd;    /* 3 to 7 */
    bool to_guest; /* the process reads it */
    bool marked;   /* records with the offsets of stdout and stderr, see session.proto */
};

/* File systems of its own: see Confine in session.proto. Everything weak. */
#define EXEC_SCRATCH_MAX 4u
#define EXEC_FILES_MAX 128u
#define EXEC_FILE_PATH_MAX 511u
struct exec_file {
    const char *path; /* absolute, at most EXEC_FILE_PATH_MAX bytes */
    const void *data;
    size_t size;
};
struct exec_confine {
    struct {
        const char *path; /* absolute */
        uint64_t size_bytes;
    } scratch[EXEC_SCRATCH_MAX];
    size_t n_scratch;
    const struct exec_file *files;
    size_t n_files;
};

struct exec_spec {
    char *const *argv; /* NULL-terminated, at least one */
    char *const *env;  /* NULL-terminated "K=V", may be NULL */
    const char *cwd;   /* NULL: the user's home or "/" */
    const char *user;  /* NULL: root */
    bool tty;
    uint16_t rows, cols; /* with tty; 0: 24 x 80 */
    const struct exec_stream *streams;
    size_t n_streams;
    uint64_t memory_max_bytes; /* 0: none */
    uint32_t pids_max;         /* 0: none */
    uint32_t ring_bytes;       /* 0: the guest's default */
    bool drop_when_full;       /* nobody reads: drop the oldest instead of stalling the process */
    uint32_t timeout_msec;     /* 0: none; enforced in the guest on the whole tree */
    uint32_t kill_grace_msec;
    bool close_stdin; /* stdin is /dev/null */
    bool no_new_privileges;
    const struct exec_confine *confine; /* NULL: none */
    const char *label;                  /* NULL or at most 128 bytes */
};

struct exec_exit {
    uint8_t status; /* exit code when signal is 0 */
    uint8_t signal;
    bool timed_out;
    bool oom_killed;
    uint64_t user_usec, system_usec, max_rss_bytes, wall_usec;
    uint64_t end[EXEC_STREAMS_MAX]; /* output offsets when it ended */
};

/* Shell convention: status, or 128 + signal. */
int exec_exit_code(const struct exec_exit *exit);

struct exec_range {
    uint64_t start, end;
    bool present, ended;
};

struct exec_callbacks {
    /* It runs. ranges[i] tells what the ring holds of output stream i (after attach). May be NULL.
     */
    void (*on_started)(struct exec *e, uint64_t process_id, uint32_t pid,
                       const struct exec_range ranges[EXEC_STREAMS_MAX], void *userdata);
    /* Bytes of an output stream; acknowledge with exec_consumed() once they are out of our hands.
     */
    void (*on_output)(struct exec *e, uint8_t stream, uint64_t offset, const uint8_t *data,
                      size_t size, void *userdata);
    /* All writers of the stream are gone. May be NULL. */
    void (*on_stream_end)(struct exec *e, uint8_t stream, uint64_t offset, void *userdata);
    /* More input may be written (room grew from 0). May be NULL. */
    void (*on_writable)(struct exec *e, uint8_t stream, void *userdata);
    /* The process ended; all output below exit->end was delivered before. More may follow from
     * children that hold the pipes, until the exec is freed. */
    void (*on_exit)(struct exec *e, const struct exec_exit *exit, void *userdata);
    /*
     * Could not start, or the attachment is over: taken by another (ERR_CONFLICT), console broken,
     * or process and output have ended after on_exit (ERR_NONE, errnum 0). Last call.
     */
    void (*on_closed)(struct exec *e, const struct error *reason, void *userdata);
};

/* Starts a process. Callbacks come from the loop, never from inside this call. */
int exec_start(struct console *c, const struct exec_spec *spec, const struct exec_callbacks *cb,
               void *userdata, struct exec **ret, struct error *err);

/* Takes over the output of a running or ended process from the given offsets (NULL: from the
 * oldest). */
int exec_attach(struct console *c, uint64_t process_id, const uint64_t from[EXEC_STREAMS_MAX],
                const struct exec_callbacks *cb, void *userdata, struct exec **ret,
                struct error *err);

/* Detaches: the process goes on in the guest. Always returns NULL. Legal inside callbacks. */
struct exec *exec_free(struct exec *e);

uint64_t exec_process_id(const struct exec *e); /* 0 before on_started */

/* Bytes that exec_write() takes now. */
size_t exec_writable(const struct exec *e, uint8_t stream);
/* Queues input; takes all or nothing (-EAGAIN beyond exec_writable, -EPIPE after close). */
int exec_write(struct exec *e, uint8_t stream, const void *data, size_t size);
/* End of input on that stream, after what was written. */
int exec_close_stream(struct exec *e, uint8_t stream);
void exec_consumed(struct exec *e, uint8_t stream, size_t size);

enum exec_signal_scope {
    EXEC_SIGNAL_PROCESS,
    EXEC_SIGNAL_TREE,
    EXEC_SIGNAL_RECENT, /* of its tree, those that began after the last input on a stream >= 3 */
    EXEC_SIGNAL_FOREGROUND, /* of its terminal */
};
int exec_signal(struct exec *e, int signo, enum exec_signal_scope scope);
int exec_resize(struct exec *e, uint16_t rows, uint16_t cols);

/* Processes by id, without an attachment. */
int exec_signal_process(struct console *c, uint64_t process_id, int signo,
                        enum exec_signal_scope scope, uint64_t deadline_usec, console_done_fn done,
                        void *userdata);
/* Forgets an ended process and its output. */
int exec_release(struct console *c, uint64_t process_id, uint64_t deadline_usec,
                 console_done_fn done, void *userdata);

struct exec_info {
    uint64_t process_id;
    uint32_t pid;
    bool running, tty;
    struct exec_exit exit; /* when not running */
    char label[129];
    char command[257]; /* argv joined, escaped, cut */
    uint64_t started_wall_usec;
    struct exec_range ranges[EXEC_STREAMS_MAX];
};
/* `infos` is valid during the call only; err is NULL on success. */
typedef void (*exec_list_fn)(struct console *c, const struct exec_info *infos, size_t count,
                             const struct error *err, void *userdata);
int exec_list(struct console *c, uint64_t deadline_usec, exec_list_fn done, void *userdata);
