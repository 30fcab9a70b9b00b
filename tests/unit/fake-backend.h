#pragma once

#include "backend/backend.h"

/*
 * A backend for tests of the core: each VM is a fake-vmm process with a real guest server in it. It
 * is for fault injection and speed; the end-to-end tests run real VMs.
 */
struct fake_knobs {
    const char *boot_mode, *restore_mode; /* of fake-vmm; NULL: normal */
    bool unavailable, fail_boot, fail_restore, fail_save, no_snapshots;
    bool fail_snapshot, fail_resume;
    bool closes_console; /* a snapshot ends the connection to the console */
    bool from_restored;  /* a snapshot holds what changed since the last restore only */
    unsigned n_boots, n_restores, n_saves, n_kills, n_snapshots, n_resumes; /* counted */
    unsigned n_pages; /* of the last restore */
};
extern struct fake_knobs fake_knobs;

int backend_fake_new(const struct backend_env *env, struct backend **ret, struct error *err);
