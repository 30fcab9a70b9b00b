#pragma once

#include "base/macros.h"

/* The kernel's console: the only place to complain before the host is reached. */
void console_open(void);
/* One line, "hearth-init: TEXT". */
void console_say(const char *format, ...) _printf_(1, 2);
/* Waits until what was said has left the machine: before it ends. */
void console_drain(void);
