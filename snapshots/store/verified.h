#pragma once

#include <stdbool.h>
#include <sys/stat.h>

/*
 * Files that this process has read and found to have a digest, known by what stat() says of them: a
 * write changes at least the ctime. For large files that never change, whose reading would cost
 * more than their use. Safe from any thread; the oldest are forgotten.
 */
bool verified_has(const struct stat *st, const char *digest);
/* `st` from after the file was read. One that changed a moment ago is not taken. */
void verified_add(const struct stat *st, const char *digest);
bool verified_same(const struct stat *a, const struct stat *b);
