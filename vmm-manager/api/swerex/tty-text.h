#pragma once

#include <jansson.h>
#include <stddef.h>

/*
 * What a terminal showed, as text: escape sequences are taken out, line ends are "\n", bytes that
 * are no UTF-8 become \xNN. Fresh; NULL: out of memory.
 */
char *tty_text(const void *data, size_t size);
/* The last one of these only: for output that was no terminal's. */
char *text_backslashed(const void *data, size_t size);
/* Without white space at both ends, in place. */
char *text_strip(char *text);
/* As Python's repr() of it. */
char *text_repr(const char *text);
