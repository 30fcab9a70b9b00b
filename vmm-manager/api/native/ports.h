#pragma once

#include <jansson.h>
#include <stddef.h>

/*
 * Adds the listening sockets that a guest's /proc/net/tcp or tcp6 tells of to `ports`, as {port,
 * address, family}. The text is the guest's: what is no such line is skipped, at most PORTS_MAX are
 * added. 0 or -ENOMEM.
 */
#define PORTS_MAX 1024u
int ports_parse(const char *text, json_t *ports);
