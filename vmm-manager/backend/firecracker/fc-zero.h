#pragma once

#include "base/error.h"

/* Turns blocks of zeros in a file into holes: a guest's memory is mostly that. Blocks. */
int fc_zero_punch(const char *path, struct error *err);
