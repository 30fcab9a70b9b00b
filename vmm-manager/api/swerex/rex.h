#pragma once

#include "api/http.h"
#include "core/core.h"

/*
 * The API of SWE-ReX, for its own client (RemoteRuntime): each sandbox is a runtime below
 * /rex/ID/, with sessions that are real interactive bashes on a terminal.
 */
struct api_swerex;

int swerex_new(struct core *core, struct api_swerex **ret, struct error *err);
struct api_swerex *swerex_free(struct api_swerex *rex); /* always NULL */
struct http_api swerex_http(struct api_swerex *rex);
