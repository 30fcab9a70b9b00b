#pragma once

#include "core-fixture.h"

/* What tests of snapshots do most: a wait for one thing and its outcome. */
struct outcome {
    bool done;
    struct error err;
    json_t *result; /* owned */
    struct sandbox_wait *wait;
};

void outcome_done(struct outcome *o);
/* For struct core_call. */
struct core_call outcome_call(struct outcome *o);

/* Begin; the outcome tells. Returns what the core returned. */
int sleep_begin(struct sandbox *sb, struct outcome *o);
int touch_begin(struct sandbox *sb, struct outcome *o);
/* To the end; these must succeed. */
void fixture_sleep(struct fixture *f, struct sandbox *sb);
void fixture_wake(struct fixture *f, struct sandbox *sb);
/* Waits until STATE/snapshots has so many entries. */
void fixture_wait_snapshots(struct fixture *f, size_t count);
