#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "guest/serve.h"
#include "protocol/frame.h"
#include "protocol/session.pb-c.h"

/*
 * A small host in a test: speaks to guest_serve() in a child process, or to a guest over any
 * connected stream. Every channel is a `struct run` that collects what comes.
 */
#define CLIENT_RUNS 64u
#define CLIENT_STREAMS 8u

struct run {
    uint32_t channel;
    bool started, exited, closed, failed, done;
    uint64_t process_id;
    uint32_t pid;
    uint32_t status, signal;
    bool timed_out, oom_killed;
    uint64_t end[CLIENT_STREAMS];
    int code; /* of Error */
    uint32_t errnum;
    char message[512];
    bool present[CLIENT_STREAMS], ended[CLIENT_STREAMS];
    uint64_t range_start[CLIENT_STREAMS], range_end[CLIENT_STREAMS]; /* of Started */
    uint64_t first[CLIENT_STREAMS];                         /* offset of the first byte collected */
    uint64_t offset[CLIENT_STREAMS];                        /* of the next byte */
    uint64_t sent[CLIENT_STREAMS], granted[CLIENT_STREAMS]; /* input */
    struct buf out[CLIENT_STREAMS];
    uint64_t total[CLIENT_STREAMS];
    uint64_t window;         /* kept open this far ahead, 0: by hand */
    bool discard;            /* count the output only */
    Hearth__V1__Event *last; /* owned: last event of another kind */
    unsigned events;
};

struct client {
    int fd;
    pid_t pid; /* of guest_serve(); 0: none */
    struct buf in;
    uint32_t last_channel;
    struct run *runs[CLIENT_RUNS]; /* owned */
    size_t n_runs;
    bool greeted, thawed;
    uint8_t nonce[16];
};

/* A server of its own. */
void client_start(struct client *c, const struct guest_options *options);
/* Over a connected descriptor. */
void client_use(struct client *c, int fd);
void client_stop(struct client *c);
void client_hello(struct client *c);

/* Sends a request on a fresh channel. Owned by the client. */
struct run *client_request(struct client *c, Hearth__V1__Request *request);
void client_send(struct client *c, uint32_t channel, Hearth__V1__Request *request);
void client_raw(struct client *c, const void *data, size_t size);
/* Takes one frame; fails the test after some seconds of silence. */
void client_step(struct client *c);
/* The same, but returns false when nothing comes within msec. */
bool client_try(struct client *c, int msec);
#define CLIENT_WAIT(c, condition)                                                                  \
    do {                                                                                           \
        while (!(condition))                                                                       \
            client_step(c);                                                                        \
    } while (0)

/* Exec of "sh -c TEXT" with windows of 256 KiB; change `exec` first through the callback-free form.
 */
struct exec_args {
    Hearth__V1__Exec exec;
    ProtobufCBinaryData argv[16], env[16];
    Hearth__V1__StreamSpec specs[4], *spec_list[4];
    Hearth__V1__StreamLimit limits[CLIENT_STREAMS], *limit_list[CLIENT_STREAMS];
    Hearth__V1__Limits cgroup;
    Hearth__V1__Tty tty;
};
void exec_args_init(struct exec_args *a, const char *const *argv);
void exec_args_env(struct exec_args *a, const char *text);
void exec_args_stream(struct exec_args *a, uint32_t fd, bool to_guest, bool marked);
struct run *client_exec(struct client *c, struct exec_args *a, uint64_t window);
struct run *client_sh(struct client *c, const char *text);
struct run *client_attach(struct client *c, uint64_t process_id, const uint64_t *from,
                          uint64_t window);
struct run *client_file(struct client *c, const char *user, Hearth__V1__FileOp *op);

void run_write(struct client *c, struct run *r, uint8_t stream, const void *data, size_t size);
void run_close(struct client *c, struct run *r, uint32_t stream);
void run_signal(struct client *c, struct run *r, uint32_t signo, int scope);
void run_window(struct client *c, struct run *r, uint32_t stream, uint64_t offset);
/* Next length-prefixed Reply of stream 3, or NULL; freed by the caller. */
Hearth__V1__Reply *run_reply(struct run *r);
ProtobufCBinaryData bytes_of(const char *text);
