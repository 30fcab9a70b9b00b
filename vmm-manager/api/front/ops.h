#pragma once

#include "api/route.h"

/* Routes about the daemon itself, served beside every API; their context is the front. */
extern const struct route ops_routes[];
extern const size_t ops_routes_count;
