#pragma once

#include "api/e2b/process.h"

/*
 * Which process a call means: its message's `process` has a pid or a tag. One that we do not know
 * (any more) is asked of the guest.
 */
struct process_pick;

/* From the loop, once: p is valid inside this call only; NULL: err says why. */
typedef void (*process_picked_fn)(struct e2b_process *p, struct console *c, const struct error *err,
                                  void *userdata);

/* 1 and *ret: known; 0 and *ret_pick: fn follows; or why not. */
int process_pick(struct api_e2b *e2b, struct sandbox *sb, struct console *c, const json_t *message,
                 process_picked_fn fn, void *userdata, struct e2b_process **ret,
                 struct process_pick **ret_pick, struct error *err);
/* No call of fn any more; also from inside it. Always NULL. */
struct process_pick *process_pick_free(struct process_pick *pick);
