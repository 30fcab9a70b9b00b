#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/loop.h"

/*
 * A raw HTTP client for tests, in the same thread as the server: every wait runs the server's loop,
 * at most 10 s.
 */
struct client {
    struct loop *loop; /* weak */
    int fd;
    struct buf in;
    bool eof;
};

/* A listening Unix socket, non-blocking. */
int client_listen(const char *path);
/* Path of a Unix socket, or http://127.0.0.1:PORT. */
void client_connect(struct client *c, struct loop *loop, const char *path);
void client_close(struct client *c);
/* Sends all of it, unless the server closes before. */
void client_send(struct client *c, const void *data, size_t size);
void client_send_text(struct client *c, const char *text);
/* Sends what the socket takes without waiting; returns the count. */
size_t client_send_some(struct client *c, const void *data, size_t size);
/* Until the input holds `text`, `size` bytes, or the end. */
void client_wait_text(struct client *c, const char *text);
void client_wait_size(struct client *c, size_t size);
void client_wait_eof(struct client *c);
/* Connects, sends, waits for a whole answer with Content-Length and returns its status; the body is
 * c->in. */
unsigned client_exchange(struct client *c, struct loop *loop, const char *path,
                         const char *request);
/* Runs the loop until *flag is set. */
void client_run_until(struct loop *loop, const bool *flag);
/* Runs the loop for that long: to see that something does NOT happen. */
void client_run_for(struct loop *loop, unsigned msec);
