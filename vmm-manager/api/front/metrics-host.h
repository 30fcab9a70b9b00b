#pragma once

#include <stdint.h>

#include "base/buf.h"

/* Parts of metrics_print(): what is counted by looking. */
struct core;
struct loop;

int metrics_head(struct buf *text, const char *name, const char *type, const char *help);
int metrics_value(struct buf *text, const char *name, const char *type, const char *help,
                  double value);
int metrics_print_core(struct core *core, struct buf *text);
int metrics_print_process(const struct loop *loop, uint64_t started_wall_usec, struct buf *text);
