#pragma once

#include "host/console.h"
#include "host/exec.h"

/*
 * One command in a guest, run for the daemon's own ends: warm-ups and the steps of a template. Its
 * output is kept only as a tail for an error message. Nothing of it is left in the guest.
 */
struct guest_run;

#define GUEST_RUN_TAIL_MAX 2048u

struct guest_run_result {
    int exit_code; /* as a shell says it */
    bool timed_out;
    const char *tail; /* weak: the end of stdout and stderr, as it came, with a NUL after it */
    size_t tail_size;
};

/*
 * It has ended and is forgotten in the guest, or err says why it did not run. Called once, from the
 * loop; guest_run_free() is legal inside, and what the arguments point to goes with it.
 */
typedef void (*guest_run_fn)(const struct guest_run_result *result, const struct error *err,
                             void *userdata);

/* Who runs it, and where; everything weak. */
struct guest_run_as {
    const char *user;    /* NULL: root */
    const char *workdir; /* NULL: the user's home or "/" */
    char *const *env;    /* "K=V"; NULL: none */
};

/* `console` is weak and outlives it, or ends with it: see sandbox_watch_new(). as: NULL: root. */
int guest_run_new(struct console *console, char *const *argv, const struct guest_run_as *as,
                  uint32_t timeout_msec, guest_run_fn done, void *userdata, struct guest_run **ret,
                  struct error *err);
/*
 * While the command is under way only together with its console: a question that is on its way to
 * the guest cannot be taken back. Always NULL.
 */
struct guest_run *guest_run_free(struct guest_run *run);
