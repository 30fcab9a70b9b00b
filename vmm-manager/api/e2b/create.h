#pragma once

#include "api/e2b/e2b-private.h"

/* What creations have in common. */

/* Seconds of the body, `fallback` when absent. False: the answer is out. */
bool e2b_body_seconds(struct request *req, const char *key, uint32_t fallback, uint32_t *ret);
/* Of the generation of the API that was asked. */
uint32_t e2b_default_timeout(struct request *req);
/* The request is a creation whose template is a snapshot: answers it. */
void e2b_create_from_snapshot(struct request *req, const char *snapshot);
