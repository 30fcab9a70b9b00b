#pragma once

#include "api/http.h"
#include "base/error.h"

/*
 * One JSON object a line for each request that is over. Keys, tokens, signatures, queries and
 * bodies are never in it.
 */
struct access_log;

/* path "-": stderr. Appends. */
int access_log_open(const char *path, struct access_log **ret, struct error *err);
struct access_log *access_log_close(struct access_log *log); /* always NULL */
void access_log_write(struct access_log *log, const struct http_seen *seen);
