#pragma once

#include "api/e2b/process.h"

/*
 * Writes the `input` of a message ({stdin} or {pty}, in base64) to a process. As
 * e2b_process_input(), and err says why it failed.
 */
int process_input_message(struct e2b_process *p, struct console *c, struct sandbox *sb,
                          const json_t *input, process_input_fn done, void *userdata,
                          struct e2b_input **ret, struct error *err);
