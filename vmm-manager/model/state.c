#include "model/state.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/macros.h"

static const char *const state_names[] = {
    [SANDBOX_CREATING] = "creating", [SANDBOX_RUNNING] = "running",
    [SANDBOX_PAUSING] = "pausing",   [SANDBOX_PAUSED] = "paused",
    [SANDBOX_RESUMING] = "resuming", [SANDBOX_STOPPING] = "stopping",
    [SANDBOX_STOPPED] = "stopped",   [SANDBOX_FAILED] = "failed",
};
static_assert(ARRAY_SIZE(state_names) == SANDBOX_STATE_COUNT, "every state has a name");

const char *sandbox_state_name(enum sandbox_state state)
{
    return state_names[state];
}

int sandbox_state_from_string(const char *s)
{
    for (int i = 0; i < SANDBOX_STATE_COUNT; i++) {
        if (strcmp(s, state_names[i]) == 0)
            return i;
    }
    return -EINVAL;
}
