#pragma once

#include "cli/cli.h"

/*
 * A child that removes a sandbox if this program dies without doing so itself (SIGKILL, a crash):
 * `run` leaves nothing behind in any case. It waits on a pipe: a byte lets it go, the end of the
 * pipe without one means that we are gone. It holds none of our streams and is deaf to the
 * terminal. Returns the descriptor to let it go with, or a negative errno: then there is no guard.
 */
int run_guard_start(struct cli *cli, const char *sandbox);
/* The sandbox is removed, or another program is to keep it. Closes the descriptor. */
void run_guard_release(int fd);
