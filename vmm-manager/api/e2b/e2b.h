#pragma once

#include "api/http.h"
#include "core/core.h"

/*
 * The API of E2B, for its unmodified clients: the control plane (/sandboxes, /v2/…), for each
 * sandbox what envd serves (processes and files as Connect calls, /files, /health, /metrics,
 * /envs), and a sandbox's own ports. The latter two are claimed by headers (E2b-Sandbox-Id, -Port)
 * or by the host name (PORT-ID.any.domain).
 */
struct api_e2b;

int e2b_new(struct core *core, struct api_e2b **ret, struct error *err);
struct api_e2b *e2b_free(struct api_e2b *e2b); /* always NULL */
/* Links that it gives are of this kind, unless a proxy says otherwise. */
void e2b_set_https(struct api_e2b *e2b);

#define E2B_APIS 3u
/* For the front: ports, envd, control plane. */
void e2b_apis(struct api_e2b *e2b, struct http_api ret[static E2B_APIS]);
