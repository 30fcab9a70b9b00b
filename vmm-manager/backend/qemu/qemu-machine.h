#pragma once

#include <stdbool.h>

#include "backend/qemu/qemu-accel.h"

/*
 * What differs between architectures. A guest has the architecture of its host. One row of the
 * table in qemu-machine.c each; the code around it knows no architecture.
 */
struct machine {
    const char *arch;      /* as libvirt and uname say it */
    const char *emulator;  /* program, looked up in PATH */
    const char *type;      /* alias; the driver pins the version behind it */
    const char *options;   /* QEMU machine options that libvirt has no word for; may be NULL */
    const char *features;  /* libvirt <features> children */
    const char *tcg_cpu;   /* CPU model under software emulation */
    const char *tcg_flags; /* comma-separated flags added to it; "" for none */
    const char *boot_args; /* kernel command line, without what the accelerator adds */
    const char *tcg_args;  /* added under software emulation */
    bool mmio;             /* virtio on MMIO slots rather than on PCI */
};

/* NULL when the architecture is not known. */
const struct machine *machine_find(const char *arch);
/* Of the running host; NULL on an architecture without a row. */
const struct machine *machine_native(void);

/* Name of the CPU that a guest sees: part of what a snapshot must fit. */
void machine_cpu_name(const struct machine *m, enum accel accel, char *name, unsigned size);
