#pragma once

#include <stddef.h>

/* The text of openapi.yaml, with a NUL behind it. */
const char *openapi_text(size_t *ret_size);
