#pragma once

#include "cli/cli.h"

/*
 * Connects to the daemon, and starts it when nothing listens: beside this program, in its own
 * session, its output appended to STATE/hearthd.log. Of two programs at once only one starts it: a
 * lock on STATE/hearthd.start. HEARTH_NO_AUTOSTART=1 turns the start off. Returns a non-blocking
 * descriptor or a negative errno; blocks until the daemon is ready or its deadline is over.
 */
int daemon_connect(struct cli *cli, struct error *err);

/* Connects only if one listens; -ECONNREFUSED or -ENOENT otherwise. */
int daemon_connect_running(struct error *err);

/* Whether the daemon behind a connection runs another binary than the one beside this program. */
bool daemon_is_other_build(int fd);

/* Path of the daemon's binary; text holds PATH_MAX bytes. -ENOENT and err when it is not there. */
int daemon_binary(char *text, size_t size, struct error *err);
