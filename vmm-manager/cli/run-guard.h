#pragma once

#include "cli/cli.h"

/*
 * A child that cleans up with `fn` if this program dies without doing so itself (SIGKILL, a crash):
 * `run` leaves nothing behind in any case. It waits on a pipe: a byte lets it go, the end of the
 * pipe without one means that we are gone. It holds none of our streams and is deaf to the
 * terminal; what `fn` sees of our memory is as it was at the start. Returns the descriptor to let
 * it go with, or a negative errno: then there is no guard.
 */
typedef void (*run_guard_fn)(struct cli *cli, void *userdata);
int run_guard_start(struct cli *cli, run_guard_fn fn, void *userdata);
/* All is removed, or another program is to keep it. Closes the descriptor. */
void run_guard_release(int fd);
