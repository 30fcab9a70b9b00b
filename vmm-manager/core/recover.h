#pragma once

#include <stdbool.h>

struct core;
struct sandbox;
struct recovery;

/* The adoption of a sandbox is over, well or not; does nothing on one that is not being adopted. */
void recovery_leave(struct sandbox *sb, bool adopted);

/* Of a recovery that is not over; only when the core ends. */
struct recovery *recovery_free(struct recovery *recovery);
