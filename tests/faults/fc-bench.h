#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "backend/firecracker/firecracker.h"
#include "base/clock.h"
#include "harness/test.h"

/* A Firecracker backend on the stand-in, and its verbs, waited for. Fails the test by itself. */
#define HANG_USEC (300 * USEC_PER_MSEC) /* deadline of verbs that will hang */
#define GOOD_USEC (20 * USEC_PER_SEC)
#define LATE_USEC (1 * USEC_PER_SEC)
/* API calls of each verb. */
#define BOOT_CALLS 9
#define RESTORE_CALLS 2
#define SAVE_CALLS 2
#define SNAPSHOT_CALLS 2

struct bench {
    struct loop *loop;
    struct workers *workers;
    struct backend *backend;
    char state[128];
    char vm_dir[160];
    char file[6][200]; /* image, disk, kernel, initramfs, memory, state */
    struct vm_spec spec;
    unsigned fds; /* open before */
};

struct seen {
    unsigned calls;
    struct error err;
    struct backend_vm vm;
    unsigned gone;
};

/* Of the last bench: ends that nobody asked for. */
extern struct seen gone_seen;

void wait_for(struct bench *b, const unsigned *count, unsigned wanted);
unsigned count_entries(const char *path);
unsigned count_living(void);
void bench_begin(struct bench *b);
void bench_end(struct bench *b);
void open_backend(struct bench *b);
void close_backend(struct bench *b);
void install_stand_in(void);
void make_files(struct bench *b);
void in_tmp(const char *name, char *path, size_t size);
void plan(int call, const char *fault);
void kill_vm(struct bench *b);
void boot(struct bench *b, uint64_t timeout_usec, struct seen *seen);
void restore(struct bench *b, uint64_t timeout_usec, struct seen *seen);
void save(struct bench *b, uint64_t timeout_usec, struct seen *seen);
void snapshot(struct bench *b, uint64_t timeout_usec, struct seen *seen);
void resume(struct bench *b, uint64_t timeout_usec, struct seen *seen);
void restore_and_snapshot(struct bench *b, uint64_t timeout_usec, struct seen *seen);
void on_vm(const struct backend_vm *vm, const struct error *err, void *userdata);
void on_done(const struct error *err, void *userdata);
