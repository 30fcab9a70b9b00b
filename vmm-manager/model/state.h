#pragma once

/* States of a sandbox. The transitions are in core/lifecycle.c. */
enum sandbox_state {
    SANDBOX_CREATING,
    SANDBOX_RUNNING,
    SANDBOX_PAUSING,
    SANDBOX_PAUSED,
    SANDBOX_RESUMING,
    SANDBOX_STOPPING,
    SANDBOX_STOPPED,
    SANDBOX_FAILED,
};
#define SANDBOX_STATE_COUNT (SANDBOX_FAILED + 1)

const char *sandbox_state_name(enum sandbox_state state);
/* The state, or -EINVAL. */
int sandbox_state_from_string(const char *s);
