#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protocol/session.pb-c.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/loop.h"
#include "host/console.h"

/*
 * The other end of a console in a test: a guest that says exactly what the test tells it. All on
 * one thread: waiting for a request runs the loop.
 */
struct peer {
    struct loop *loop;       /* owned */
    struct console *console; /* owned; NULL when a callback freed it */
    int fd;                  /* owned: the guest's end */
    struct buf in;
    size_t used; /* bytes of the last request, consumed with the next */
    uint8_t nonce[16];
    uint32_t hello_channel;

    unsigned opened, broken;
    struct error open_error, reason;
};

/* A console whose hello is under way; peer_open() also answers it. */
void peer_begin(struct peer *p, uint64_t deadline_usec);
void peer_open(struct peer *p);
void peer_end(struct peer *p);

/* Runs the loop until the condition holds, at most a few seconds. */
#define PEER_WAIT(p, condition)                                                                    \
    do {                                                                                           \
        for (int peer_i = 0; !(condition); peer_i++) {                                             \
            if (peer_i == 300)                                                                     \
                test_fail(__FILE__, __LINE__, "waited in vain: %s", #condition);                   \
            peer_turn(p);                                                                          \
        }                                                                                          \
    } while (0)
void peer_turn(struct peer *p);

/* Waits for the next request of the host; freed by the caller. */
Hearth__V1__Request *peer_request(struct peer *p, uint32_t *ret_channel);
/* The channel of the next request, which must be of that kind. */
uint32_t peer_expect(struct peer *p, int op_case);
/* Waits for the next DATA frame; copies its payload. */
size_t peer_expect_data(struct peer *p, uint32_t channel, uint8_t stream, uint64_t offset, void *to,
                        size_t to_size);
/* Nothing is under way to the guest. */
bool peer_quiet(struct peer *p);
/* Waits for the hello, remembering its nonce. */
void peer_expect_hello(struct peer *p);

/* Bytes that the guest would send for these. Append to `to`. */
void put_event(struct buf *to, uint32_t channel, const Hearth__V1__Event *event);
void put_data(struct buf *to, uint32_t channel, uint8_t stream, uint64_t offset, const void *data,
              size_t size);
void put_hello(struct buf *to, uint32_t channel, const uint8_t nonce[16], bool sync);
void put_started(struct buf *to, uint32_t channel, uint64_t process_id);
void put_exit(struct buf *to, uint32_t channel, uint32_t status, uint64_t end1, uint64_t end2);
void put_window(struct buf *to, uint32_t channel, uint32_t stream, uint64_t offset);
void put_stream_end(struct buf *to, uint32_t channel, uint32_t stream, uint64_t offset);
void put_closed(struct buf *to, uint32_t channel, const char *reason);
void put_done(struct buf *to, uint32_t channel);
void put_error(struct buf *to, uint32_t channel, int code, int errnum, const char *message);
/* A Reply on stream 3 at *offset, which moves on. */
void put_reply(struct buf *to, uint32_t channel, uint64_t *offset, const Hearth__V1__Reply *reply);

/* Sends and empties. */
void peer_send(struct peer *p, struct buf *bytes);
void peer_send_bytes(struct peer *p, const void *data, size_t size);
