#pragma once

#include "core/core-private.h"

/* Forks under way, for the rest of the core. */
void forks_free(struct core *core);
bool forks_use_snapshot(const struct core *core, const char *id);
/* Adds the ids of those that forks need to *list. */
int forks_list_snapshots(const struct core *core, char ***list);
