#pragma once

#include "base/loop.h"
#include "core/core.h"
#include "fake-backend.h"
#include "harness/test.h"

/* A core with the fake backend, its own state and cache, an image "base" and a kernel. */
struct fixture {
    struct loop *loop;
    struct core *core;
    struct core_options options;
    char state[256];
};

void fixture_begin(struct fixture *f);
void fixture_end(struct fixture *f);
/* Drops the core as a dying daemon would and makes a new one on the same state. */
void fixture_restart(struct fixture *f);
void fixture_drop(struct fixture *f);
void fixture_recover(struct fixture *f);

/* Runs the loop until *flag, at most 20 s. */
void fixture_wait(struct fixture *f, const bool *flag);

struct created {
    bool done;
    struct sandbox *sandbox;
    struct error err;
    unsigned n_progress;
};
/* Starts a creation of the defaults; `change` may edit the spec. */
int fixture_create(struct fixture *f, void (*change)(struct sandbox_spec *spec),
                   struct created *ret, struct error *err);
/* Creates one and waits for it; NULL and err in `ret` when it failed. */
struct sandbox *fixture_sandbox(struct fixture *f, void (*change)(struct sandbox_spec *spec),
                                struct created *ret);
void fixture_remove(struct fixture *f, struct sandbox *sb);
/* Waits until the sandbox with this id is in that state, or (state < 0) is gone. */
void fixture_wait_state(struct fixture *f, const char *id, int state);
/* Entries of STATE/sub without dot files. */
size_t fixture_count(struct fixture *f, const char *sub);
void fixture_ping(struct fixture *f, struct sandbox *sb);
