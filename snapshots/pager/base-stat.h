#pragma once

#include "base/error.h"
#include "store/snapshot-internal.h"

/*
 * What stat() says of a template's memory, as a text: who has verified the memory passes it on, and
 * who finds the same need not read all of it again.
 */
#define BASE_STAT_SIZE 160u
int base_stat_print(const char *path, char ret[BASE_STAT_SIZE]); /* 0 or a negative errno */
/* By the text, or by its digest when there is none (NULL). */
int base_stat_check(const struct snapshot *snap, const char *text, struct error *err);
