#include "store/step.h"

#include <stddef.h>

static store_step_fn listener;
static void *listener_data;

void store_step_listen(store_step_fn fn, void *userdata)
{
    listener = fn;
    listener_data = userdata;
}

int store_step(const char *step)
{
    return listener ? listener(step, listener_data) : 0;
}
