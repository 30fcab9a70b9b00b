#pragma once

#include "backend/backend.h"
#include "backend/qemu/qemu-machine.h"
#include "base/buf.h"

#define XML_SIZE_MAX (64u * 1024u)
#define XML_RAM_ID "hearth.ram" /* QEMU's object of the guest's memory */

/* What a domain is made of. All strings weak. */
struct xml_spec {
    const struct vm_spec *vm;
    const struct machine *machine;
    enum accel accel;
    char *const *packs;       /* strv, drives after the disk; NULL: none */
    const char *emulator;     /* absolute */
    const char *type;         /* pinned machine type, "pc-q35-7.2" */
    const char *console_path; /* Unix socket */
    const char *log_path;     /* serial output, appended */
    const char *memory_file;  /* NULL: anonymous memory */
    bool incoming;            /* waits for a saved state; the memory file is mapped privately */
    bool bare_state;          /* that state comes without a section about its configuration */
};

/* The domain as libvirt reads it. -EINVAL for a path that XML cannot carry. */
int xml_build(const struct xml_spec *spec, struct buf *out, struct error *err);

/* Text for an attribute in single quotes; with `comma`, for a value inside a QEMU option list. */
int xml_escape(struct buf *out, const char *text, bool comma, struct error *err);
