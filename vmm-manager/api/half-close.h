#pragma once

#include "base/loop.h"

/*
 * Makes a server notice clients that have gone. MHD polls edge-triggered and takes a read that came
 * short for the end of what there is: when a client's last bytes and its end come together, the end
 * is never seen, and the connection stays until its time-out. Here the end of a client's half is
 * seen apart, and told to MHD as a new event.
 */
struct half_close;

int half_close_new(struct loop *loop, struct half_close **ret);
struct half_close *half_close_free(struct half_close *h);
/* Until `fd`, the socket of a connection, is closed. */
void half_close_watch(struct half_close *h, int fd);
