#pragma once

#include <stddef.h>
#include <stdint.h>

#include "api/http.h"
#include "base/buf.h"

/*
 * What the daemon counts, printed in Prometheus' text format. Requests are told by struct
 * http_seen; everything about sandboxes is looked at when somebody asks.
 */
struct core;
struct metrics;

#define METRICS_TEXT_MAX (4u * 1024u * 1024u)
#define METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

int metrics_new(struct metrics **ret);
struct metrics *metrics_free(struct metrics *m); /* always NULL */

void metrics_seen(struct metrics *m, const struct http_seen *seen);
/* `connections`: open at the moment. 0 or -ENOBUFS, -ENOMEM. */
int metrics_print(const struct metrics *m, struct core *core, unsigned connections,
                  struct buf *text);
