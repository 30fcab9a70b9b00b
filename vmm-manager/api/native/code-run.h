#pragma once

#include "api/native/native.h"

/* The daemon ends: sandboxes that are left are removed by the next one. */
void code_runs_free(struct api_native *api);
