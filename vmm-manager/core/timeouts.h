#pragma once

#include <stdint.h>

struct core;

/* How long each wait may last, in one place. */
uint64_t core_boot_timeout_usec(const struct core *core, const char *accelerator);
/* First answer of a restored guest, or of one found after a daemon restart. */
uint64_t core_answer_timeout_usec(const struct core *core);
uint64_t core_restore_timeout_usec(const struct core *core);
uint64_t core_save_timeout_usec(const struct core *core);
uint64_t core_warm_timeout_usec(const struct core *core);
uint64_t core_step_timeout_usec(void); /* one step of a template's set-up */
uint64_t core_reconnect_timeout_usec(const struct core *core);
/* For the guest to stop all processes and to write its disks. */
uint64_t core_freeze_timeout_usec(const struct core *core);
/* For writing or reading all of a machine's memory. */
uint64_t core_snapshot_timeout_usec(const struct core *core, uint32_t memory_mib);
