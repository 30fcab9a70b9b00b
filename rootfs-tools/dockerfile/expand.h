#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/*
 * Words of an instruction, by the rules of Dockerfiles: single quotes keep everything, double
 * quotes keep blanks, the escape character takes the meaning off what follows.
 */
#define EXPAND_BYTES_MAX ((size_t)256 * 1024)
#define EXPAND_DEPTH_MAX 16u

/* The value of a variable, weak; NULL: it is not set. */
typedef const char *(*expand_fn)(const char *name, void *userdata);

/*
 * One word with its quotes removed and $x, ${x}, ${x:-y}, ${x-y}, ${x:+y}, ${x+y}, ${x:?y} and
 * ${x?y} replaced. Owned by the caller. With raw, quotes and escapes stay: the text of a
 * here-document. Errors say what is wrong with the word.
 */
int expand_word(const char *word, char escape, bool raw, expand_fn lookup, void *userdata,
                char **ret, struct error *err);
/* At blanks outside of quotes; quotes stay. A strv, owned by the caller. */
int expand_split(const char *text, char escape, char ***ret, struct error *err);
