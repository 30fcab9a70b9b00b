#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "base/paths.h"
#include "cli/bench.h"
#include "cli/client.h"

/* Forks, sleeps, restores: what takes long is done less often. */
#define FEWER 4u
#define BLOCK_SIZE ((size_t)1024 * 1024)

static uint64_t fewer(const struct bench *b)
{
    return MAX(b->rounds / FEWER, UINT64_C(1));
}

/* A figure of the last snapshot of a sandbox; negative when the daemon does not tell. */
static double figure(const json_t *sandbox, const char *key)
{
    const json_t *value = json_object_get(json_object_get(sandbox, "last_snapshot"), key);

    return json_is_number(value) ? json_number_value(value) : -1.0;
}

static int touch(struct bench *b, struct error *err)
{
    char script[96];

    (void)snprintf(script, sizeof(script), "yes hearth | head -c %lluM > /dev/shm/filler",
                   (unsigned long long)b->touch_mib);
    return bench_shell(b, script, err);
}

static int forget_touched(struct bench *b, struct error *err)
{
    return bench_shell(b, "rm -f /dev/shm/filler", err);
}

/* ---- checkpoints and forks ---- */

static int checkpoint(struct bench *b, char id[static 65], struct error *err)
{
    _cleanup_free_ char *path = client_path("/v1/sandboxes/{}/checkpoints", b->id);
    json_auto_t *body = NULL, *snapshot = NULL;
    char name[48];
    int r;

    bench_name(b, name, sizeof(name));
    body = json_pack("{s:s}", "name", name);
    r = client_call_long(b->cli, "POST", path, body, CLIENT_WORK_SILENCE_USEC, &snapshot, err);
    if (r >= 0)
        (void)snprintf(id, 65, "%s", client_string(snapshot, "id"));
    return r;
}

static int forget_checkpoint(struct bench *b, const char *id, struct error *err)
{
    _cleanup_free_ char *path = client_path("/v1/snapshots/{}", id);

    return client_call(b->cli, "DELETE", path, NULL, NULL, err);
}

/* Children by `path`, until all are there; then they are removed. */
static int fork_once(struct bench *b, const char *path, unsigned count, struct bench_row *row,
                     struct error *err)
{
    _cleanup_free_ char *text = NULL;
    json_auto_t *body = NULL, *answer = NULL;
    struct error ignored = {0};
    char name[48];
    double took = 0.0;
    int r, removed;

    bench_name(b, name, sizeof(name));
    body = json_pack("{s:i, s:s}", "count", (int)count, "name", name);
    text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    if (!text)
        return error_set(err, ENOMEM, "out of memory");
    r = bench_ask(b, "POST", path, text, &took, &answer, err);
    if (r < 0)
        return r;
    if (row)
        r = bench_sample(row, took, err);
    removed = bench_remove_all(b, json_object_get(answer, "sandboxes"), r < 0 ? &ignored : err);
    return r < 0 ? r : removed;
}

int bench_fork(struct bench *b, struct bench_group *g, struct error *err)
{
    _cleanup_free_ char *fork_path = client_path("/v1/sandboxes/{}/fork", b->id);
    _cleanup_free_ char *restore_path = NULL;
    struct bench_row *one = bench_add_row(g, "ms", -1, "one restore of a checkpoint");
    struct bench_row *many = bench_add_row(g, "ms", 0, "fork of %u", BENCH_CHILDREN);
    struct error ignored = {0};
    uint64_t rounds = fewer(b);
    char id[65] = "";
    int r = checkpoint(b, id, err), removed;

    if (r < 0)
        return r;
    many->reach = 5.0;
    restore_path = client_path("/v1/snapshots/{}/fork", id);
    for (uint64_t i = 0; i <= rounds && r >= 0; i++) { /* the first only warms up */
        bench_progress(b, "forks", i, rounds + 1);
        r = fork_once(b, restore_path, 1, i > 0 ? one : NULL, err);
        if (r >= 0)
            r = fork_once(b, fork_path, BENCH_CHILDREN, i > 0 ? many : NULL, err);
    }
    removed = forget_checkpoint(b, id, r < 0 ? &ignored : err);
    return r < 0 ? r : removed;
}

/* ---- sleep ---- */

struct sleep_rows {
    struct bench_row *slept, *woke, *changed, *written;
};

static int sleep_once(struct bench *b, const struct sleep_rows *rows, struct error *err)
{
    _cleanup_free_ char *down = client_path("/v1/sandboxes/{}/hibernate", b->id);
    _cleanup_free_ char *up = client_path("/v1/sandboxes/{}/resume", b->id);
    json_auto_t *asleep = NULL;
    double slept = 0.0, woke = 0.0;
    int r = bench_ask(b, "POST", down, NULL, &slept, &asleep, err);

    if (r >= 0)
        r = bench_ask(b, "POST", up, NULL, &woke, NULL, err);
    if (r >= 0)
        r = bench_sample(rows->slept, slept, err);
    if (r >= 0)
        r = bench_sample(rows->woke, woke, err);
    if (r >= 0 && figure(asleep, "changed_bytes") >= 0.0) {
        r = bench_sample(rows->changed, figure(asleep, "changed_bytes") / BENCH_MIB, err);
        if (r >= 0)
            r = bench_sample(rows->written, figure(asleep, "written_bytes") / BENCH_MIB, err);
    }
    return r;
}

static void add_sleep_rows(struct bench_group *g, const char *what, struct sleep_rows *ret)
{
    ret->slept = bench_add_row(g, "ms", -1, "hibernate, %s", what);
    ret->woke = bench_add_row(g, "ms", -1, "resume, %s", what);
    ret->changed = bench_add_row(g, "MiB", -1, "memory changed, %s", what);
    ret->written = bench_add_row(g, "MiB", (int)g->n_rows - 1, "written, %s", what);
    ret->written->reach = 1.1;
}

int bench_hibernate(struct bench *b, struct bench_group *g, struct error *err)
{
    struct sleep_rows idle, much;
    uint64_t rounds = fewer(b);
    char what[32];
    int r = 0;

    add_sleep_rows(g, "idle", &idle);
    (void)snprintf(what, sizeof(what), "%llu MiB touched", (unsigned long long)b->touch_mib);
    add_sleep_rows(g, what, &much);
    (void)snprintf(
        g->note, sizeof(g->note),
        "written: all files of the snapshot, device state, maps and manifest too, but no zeros");
    for (uint64_t i = 0; i < rounds && r >= 0; i++) {
        bench_progress(b, "sleeps", i, 2 * rounds);
        r = sleep_once(b, &idle, err);
    }
    for (uint64_t i = 0; i < rounds && r >= 0; i++) {
        bench_progress(b, "sleeps with much memory", rounds + i, 2 * rounds);
        r = touch(b, err);
        if (r >= 0)
            r = sleep_once(b, &much, err);
    }
    return r < 0 ? r : forget_touched(b, err);
}

/* ---- how long a fork holds its parent up ---- */

int bench_pause(struct bench *b, struct bench_group *g, struct error *err)
{
    _cleanup_free_ char *fork_path = client_path("/v1/sandboxes/{}/fork", b->id);
    _cleanup_free_ char *path = client_path("/v1/sandboxes/{}", b->id);
    struct bench_row *idle = bench_add_row(g, "ms", -1, "stands still for a fork, idle");
    struct bench_row *much = bench_add_row(g, "ms", -1, "stands still for a fork, %llu MiB touched",
                                           (unsigned long long)b->touch_mib);
    uint64_t rounds = fewer(b);
    int r = 0;

    (void)snprintf(g->note, sizeof(g->note),
                   "from the freeze of the processes until they go on, as the daemon saw it");
    for (uint64_t i = 0; i < 2 * rounds && r >= 0; i++) {
        json_auto_t *now = NULL;
        bool touched = i >= rounds;

        bench_progress(b, "pauses", i, 2 * rounds);
        if (touched)
            r = touch(b, err);
        if (r >= 0)
            r = fork_once(b, fork_path, 1, NULL, err);
        if (r >= 0)
            r = client_call(b->cli, "GET", path, NULL, &now, err);
        if (r >= 0)
            r = bench_sample(touched ? much : idle, figure(now, "still_ms"), err);
    }
    return r < 0 ? r : forget_touched(b, err);
}

/* ---- the store ---- */

/* The same number of bytes, one after the other, synced; its file has no name. */
static int write_plain(const char *dir, uint64_t bytes, double *ret_ms, struct error *err)
{
    _cleanup_close_ int fd = file_open_unnamed(dir);
    _cleanup_free_ char *block = malloc(BLOCK_SIZE);
    double start;

    if (fd < 0)
        return error_set(err, -fd, "a file in '%s': %s", dir, errno_text(-fd));
    if (!block)
        return error_set(err, ENOMEM, "out of memory");
    for (size_t i = 0; i < BLOCK_SIZE; i++)
        block[i] = (char)(i * 31 + i / 4096);
    start = bench_now_ms();
    for (uint64_t done = 0; done < bytes;) {
        size_t n = (size_t)MIN(bytes - done, (uint64_t)BLOCK_SIZE);
        int r = fd_write_full(fd, block, n);

        if (r < 0)
            return error_set(err, -r, "write to '%s': %s", dir, errno_text(-r));
        done += n;
    }
    if (fsync(fd) < 0)
        return error_set(err, errno, "sync '%s': %s", dir, errno_text(errno));
    *ret_ms = bench_now_ms() - start;
    return 0;
}

static int store_once(struct bench *b, const char *dir, struct bench_row *plain,
                      struct bench_row *store, struct error *err)
{
    _cleanup_free_ char *path = client_path("/v1/sandboxes/{}", b->id);
    json_auto_t *now = NULL;
    double written, store_ms, plain_ms = 0.0;
    char id[65] = "";
    int r = checkpoint(b, id, err);

    if (r >= 0)
        r = forget_checkpoint(b, id, err);
    if (r >= 0)
        r = client_call(b->cli, "GET", path, NULL, &now, err);
    if (r < 0)
        return r;
    written = figure(now, "written_bytes");
    store_ms = figure(now, "memory_ms") + figure(now, "disk_ms") + figure(now, "seal_ms");
    if (written <= 0.0 || store_ms <= 0.0)
        return error_set(err, ENODATA, "the daemon does not tell what its last snapshot cost");
    r = write_plain(dir, (uint64_t)written, &plain_ms, err);
    if (r >= 0)
        r = bench_sample(plain, written / BENCH_MIB / (plain_ms / 1e3), err);
    return r < 0 ? r : bench_sample(store, written / BENCH_MIB / (store_ms / 1e3), err);
}

int bench_store(struct bench *b, struct bench_group *g, struct error *err)
{
    const char *state = b->cli->options.state ? b->cli->options.state : paths_state_dir();
    const char *dir = access(state, W_OK) == 0 ? state : ".";
    struct bench_row *plain = bench_add_row(g, "MiB/s", -1, "plain write, synced");
    struct bench_row *store = bench_add_row(g, "MiB/s", 0, "snapshot with %llu MiB touched, synced",
                                            (unsigned long long)b->touch_mib);
    uint64_t rounds = fewer(b);
    int r = 0;

    (void)snprintf(g->note, sizeof(g->note),
                   "the snapshot's also holds the time of the VMM, the disk's copy and digests; "
                   "plain: in '%.80s'",
                   dir);
    for (uint64_t i = 0; i < rounds && r >= 0; i++) {
        bench_progress(b, "writes", i, rounds);
        r = touch(b, err);
        if (r >= 0)
            r = store_once(b, dir, plain, store, err);
    }
    return r < 0 ? r : forget_touched(b, err);
}

/* ---- restores by hearth-pager ---- */

int bench_restore(struct bench *b, struct bench_group *g, struct error *err)
{
    const char *backend = client_string(b->sandbox, "backend");
    struct bench_row *first, *later;
    uint64_t rounds = fewer(b);
    int r = 0;

    if (strcmp(backend, "firecracker") != 0) {
        (void)snprintf(g->note, sizeof(g->note),
                       "not measured: the backend '%.32s' restores without hearth-pager", backend);
        return 0;
    }
    first = bench_add_row(g, "ms", -1, "first restore: records its working set");
    later = bench_add_row(g, "ms", 0, "later restore: installs what was recorded");
    (void)snprintf(g->note, sizeof(g->note), "with HEARTH_FC_PAGER=1 only; else both are the same");
    for (uint64_t i = 0; i < rounds && r >= 0; i++) {
        _cleanup_free_ char *path = NULL;
        struct error ignored = {0};
        char id[65] = "";

        bench_progress(b, "restores", i, rounds);
        r = checkpoint(b, id, err);
        if (r < 0)
            break;
        path = client_path("/v1/snapshots/{}/fork", id);
        r = fork_once(b, path, 1, first, err);
        if (r >= 0)
            r = fork_once(b, path, 1, later, err);
        if (forget_checkpoint(b, id, r < 0 ? &ignored : err) < 0 && r >= 0)
            r = -EIO;
    }
    return r;
}
