#pragma once

#include <jansson.h>

#include "base/error.h"

/* Exit status of the program for an error: 127 and 126 as a shell has them, 2 for usage, else 1. */
int exit_code_of_error(enum error_code code);
/* Exit status for a Result or SessionResult; 1 when it carries none. */
int exit_code_of_result(const json_t *result);
