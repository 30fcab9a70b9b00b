#pragma once

#include "api/e2b/e2b-private.h"

/* A sandbox as the control plane's answers show it. NULL: out of memory. */

/* After create, connect and resume. */
json_t *e2b_sandbox_json(struct core *core, struct sandbox *sb);
/* In lists, and alone with more of it. */
json_t *e2b_listed_json(struct sandbox *sb);
json_t *e2b_detail_json(struct core *core, struct sandbox *sb);

bool e2b_is_paused(struct sandbox *sb);
