#pragma once

#include <stdbool.h>

#include "base/error.h"

/*
 * Why a guest ended or never answered, read from the end of what its kernel printed. The text comes
 * from the guest: it is bounded and escaped before it goes into an error.
 */
enum guest_fate {
    GUEST_FATE_UNKNOWN,
    GUEST_FATE_POWERED_OFF,
    GUEST_FATE_INIT_FAILED, /* hearth-init could not do its part and said why */
    GUEST_FATE_PANIC,
    GUEST_FATE_OUT_OF_MEMORY,
};
#define GUEST_FATE_LINE_MAX 200u

/* `line` gets the telling line, or the last one; "" when there is none. Small file: may block. */
enum guest_fate guest_fate_read(const char *log_path, char line[GUEST_FATE_LINE_MAX]);

/*
 * The VMM of `what` ended by itself: fills err with a panic, out of memory, or plainly gone.
 * Returns true when the guest powered off in order; then err is not touched.
 */
bool guest_fate_ended(const char *what, const char *log_path, const char *reason,
                      struct error *err);
/* The guest of `what` did not answer for err: makes it say what its kernel said. */
void guest_fate_explain(const char *what, const char *log_path, struct error *err);
