#pragma once

/*
 * Where things are. Cache: what can be made again (HEARTH_CACHE, default /var/cache/hearth).
 * State: what exists (HEARTH_STATE, default /var/lib/hearth). Absolute, without a trailing slash.
 */
const char *paths_cache_dir(void);
const char *paths_state_dir(void);
/* Unix socket of the daemon (HEARTH_SOCKET, default STATE/hearthd.sock). */
const char *paths_socket(void);
/* Directory of the running program, where its siblings are. */
const char *paths_program_dir(void);
