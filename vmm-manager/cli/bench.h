#pragma once

#include <jansson.h>

#include "cli/bench-stats.h"
#include "cli/cli.h"

/*
 * `hearth bench`: what things cost on this machine, measured through the API like any client.
 *
 * Everything it makes has a name that begins with `prefix`, so that whoever cleans up finds it by
 * that alone: bench_end(), and after a death of this program the guard that bench_begin() left.
 */
#define BENCH_ROWS_MAX 8u
#define BENCH_ROUNDS_DEFAULT 20u
#define BENCH_CHILDREN 8u
#define BENCH_MIB (1024.0 * 1024.0)

struct bench;
struct bench_group;

struct bench_measure {
    const char *name, *title;
    int (*run)(struct bench *b, struct bench_group *g, struct error *err);
};
extern const struct bench_measure bench_measures[];
extern const size_t bench_measure_count;

struct bench_row {
    char name[64];
    const char *unit; /* static: "ms", "MiB", "MiB/s" */
    struct samples samples;
    int against;  /* row of the same group that its ratio refers to; -1: none */
    double reach; /* what the ratio should reach; 0: nothing is said */
};

struct bench_group {
    const struct bench_measure *measure; /* static */
    struct bench_row rows[BENCH_ROWS_MAX];
    size_t n_rows;
    char note[200];       /* what to know of it, or why it was not measured; "": nothing */
    struct error failure; /* errnum 0: none */
};

struct bench {
    struct cli *cli; /* weak */
    uint64_t rounds;
    char prefix[24];
    unsigned n_names;
    json_t *sandbox; /* owned: the one that most is measured with */
    const char *id;  /* weak: of it */
    char template_id[65];
    uint64_t touch_mib;   /* how much memory is touched where much is */
    bool pool_configured; /* as it was before */
    uint64_t pool_size;
    int guard;
};

/* Makes the sandbox; what it returns on failure was cleaned up. */
int bench_begin(struct bench *b, struct cli *cli, struct error *err);
/* Removes all that was made, in every case; what cannot be removed is told. */
void bench_end(struct bench *b);

/* ---- for the measurements ---- */

/* Another row; NULL when there are too many, which is a mistake of ours. */
struct bench_row *bench_add_row(struct bench_group *g, const char *unit, int against,
                                const char *format, ...) _printf_(4, 5);
int bench_sample(struct bench_row *row, double value, struct error *err);
void bench_progress(struct bench *b, const char *what, uint64_t done, uint64_t total);

double bench_now_ms(void);
/*
 * One request on the kept connection; the clock runs from its first byte to the last one of the
 * answer, without any JSON. `ret` may be NULL.
 */
int bench_ask(struct bench *b, const char *method, const char *path, const char *body,
              double *ret_ms, json_t **ret, struct error *err);
/* The empty call: a request that nothing is done for. */
int bench_empty(struct bench *b, struct bench_row *row, struct error *err);
/* A new name of ours. */
void bench_name(struct bench *b, char *name, size_t size);
/* A sandbox of the same kind; the time until the answer. */
int bench_create(struct bench *b, double *ret_ms, json_t **ret, struct error *err);
/* Runs a command with a stream of its own, to the end; the time when its first output came. */
int bench_first_output(struct bench *b, const char *id, double *ret_ms, struct error *err);
int bench_remove(struct bench *b, const json_t *sandbox, struct error *err);
int bench_remove_all(struct bench *b, const json_t *sandboxes, struct error *err);
/* Runs a shell command that must succeed in the sandbox. */
int bench_shell(struct bench *b, const char *script, struct error *err);
/* Sets the pool of the template and waits until it has so many; none with 0. */
int bench_pool(struct bench *b, uint64_t size, struct error *err);
int bench_pool_wait(struct bench *b, uint64_t size, struct error *err);

/* bench-trips.c, bench-snapshots.c */
int bench_claim(struct bench *b, struct bench_group *g, struct error *err);
int bench_creation(struct bench *b, struct bench_group *g, struct error *err);
int bench_exec(struct bench *b, struct bench_group *g, struct error *err);
int bench_session(struct bench *b, struct bench_group *g, struct error *err);
int bench_fork(struct bench *b, struct bench_group *g, struct error *err);
int bench_hibernate(struct bench *b, struct bench_group *g, struct error *err);
int bench_pause(struct bench *b, struct bench_group *g, struct error *err);
int bench_store(struct bench *b, struct bench_group *g, struct error *err);
int bench_restore(struct bench *b, struct bench_group *g, struct error *err);

/* ---- bench-report.c ---- */
/* Exit status of the whole: the table, or with --json all of it, on stdout. */
int bench_print(struct bench *b, const struct bench_group *groups, size_t n_groups);
/* DIR/NAME.svg for each group with values. */
int bench_draw(const struct bench_group *groups, size_t n_groups, const char *dir,
               struct error *err);
