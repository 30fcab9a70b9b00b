#pragma once

/* What the daemon asks of the kernel for itself. Failures are logged: it works without, but worse.
 */
void process_set_up(void);
