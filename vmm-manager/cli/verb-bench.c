#include "cli/verbs.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/bench.h"
#include "cli/remote.h"

#define OUT_DEFAULT "hearth-bench"
#define GROUPS_MAX 16u

const struct bench_measure bench_measures[] = {
    {"claim", "Claim from the warm pool, in turns with an empty call", bench_claim},
    {"create", "Create a sandbox without a pool, to the first output", bench_creation},
    {"exec", "Exec round trip, in turns with an empty call", bench_exec},
    {"session", "Session round trip, in turns with an empty call", bench_session},
    {"fork", "Fork of 8 against one restore", bench_fork},
    {"hibernate", "Hibernate and resume", bench_hibernate},
    {"pause", "How long a fork holds its parent up", bench_pause},
    {"store", "Writing a snapshot against a plain write", bench_store},
    {"restore", "Restore with a recorded working set against the first", bench_restore},
};
const size_t bench_measure_count = ARRAY_SIZE(bench_measures);
static_assert(ARRAY_SIZE(bench_measures) <= GROUPS_MAX, "each has a place");

/* Those that were asked for by name, or all; -EINVAL for a name that is none. */
static int choose(char **args, uint32_t count, struct bench_group *groups, size_t *ret_count,
                  struct error *err)
{
    size_t n = 0;

    for (uint32_t i = 0; i < count; i++) {
        bool known = false;

        for (size_t k = 0; k < bench_measure_count; k++)
            known = known || strcmp(args[i], bench_measures[k].name) == 0;
        if (!known)
            return error_set(err, EINVAL, "'%s' is no measurement; see 'hearth help bench'",
                             args[i]);
    }
    for (size_t k = 0; k < bench_measure_count; k++) {
        bool wanted = count == 0;

        for (uint32_t i = 0; i < count; i++)
            wanted = wanted || strcmp(args[i], bench_measures[k].name) == 0;
        if (wanted)
            groups[n++].measure = &bench_measures[k];
    }
    *ret_count = n;
    return 0;
}

/* What fails is told and leaves the others alone, but for the end of us or of the daemon. */
static int measure_all(struct bench *b, struct bench_group *groups, size_t n, struct error *err)
{
    for (size_t i = 0; i < n; i++) {
        struct bench_group *g = &groups[i];
        int r;

        cli_progress_begin(b->cli, g->measure->title);
        r = g->measure->run(b, g, &g->failure);
        cli_progress_end(b->cli);
        if (r < 0)
            (void)error_fill(&g->failure, r, "failed");
        if (r == -EINTR || r == -ECONNRESET) {
            error_copy(err, &g->failure);
            return r;
        }
        if (r < 0)
            cli_note(b->cli, "%s: %s", g->measure->name, g->failure.text);
    }
    return 0;
}

static int report(struct bench *b, const struct bench_group *groups, size_t n)
{
    const char *dir = b->cli->options.out ? b->cli->options.out : OUT_DEFAULT;
    struct error err = {0};

    if (bench_print(b, groups, n) < 0)
        return EXIT_FAILED;
    if (bench_draw(groups, n, dir, &err) < 0)
        return cli_fail(b->cli, &err);
    cli_note(b->cli, "pictures are in '%s'", dir);
    for (size_t i = 0; i < n; i++) {
        if (groups[i].failure.errnum)
            return EXIT_FAILED;
    }
    return EXIT_DONE;
}

int verb_bench(struct cli *cli, char **args, uint32_t count)
{
    static struct bench_group groups[GROUPS_MAX];
    struct bench b;
    struct error err = {0};
    size_t n = 0;
    int r, status;

    if (choose(args, count, groups, &n, &err) < 0) {
        (void)cli_fail(cli, &err);
        return EXIT_USAGE;
    }
    r = remote_signals(cli, &err);
    if (r >= 0)
        r = bench_begin(&b, cli, &err);
    if (r < 0)
        return remote_fail(cli, r, &err);
    r = measure_all(&b, groups, n, &err);
    status = r < 0 ? remote_fail(cli, r, &err) : report(&b, groups, n);
    bench_end(&b);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < groups[i].n_rows; k++)
            samples_done(&groups[i].rows[k].samples);
    }
    return status;
}
