#pragma once

#include <stddef.h>
#include <stdint.h>

/* The one function of a fuzz target. Must survive any bytes; always returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
