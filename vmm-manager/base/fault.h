#pragma once

#include "base/error.h"

/*
 * For tests: a named step of a flow fails, or the daemon dies there. HEARTH_FAULT holds one of
 *
 *   STEP:enospc, STEP:eio   the step fails with that error, once
 *   STEP:kill               SIGKILL at the step, as a crash would
 *   trace:FILE              every step that is passed is appended to FILE, a line each
 *
 * so that a test enumerates the steps from a trace and then breaks each. Any thread.
 */
int fault_at(const char *step); /* 0 or a negative errno */
/* The same, with the reason. */
int fault_check(const char *step, struct error *err);
/* In place of the variable; NULL: none. */
void fault_set(const char *text);
