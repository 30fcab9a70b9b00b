#pragma once

#include <stddef.h>

/* The CPU as far as a snapshot's fit goes: its model on x86, implementer and part on ARM. */
void fc_cpu_name(char *name, size_t size);
