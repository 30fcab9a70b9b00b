#include <stdlib.h>

#include "cli/bench.h"
#include "cli/client.h"

/* How long a client waits: for a sandbox, a command, a line of a session. */
#define WARM_UP 10u /* the first ones make the guest load and translate what they run */
#define CLAIMS_AT_ONCE 8u

static bool is_claimed(const json_t *sandbox)
{
    return json_is_true(json_object_get(json_object_get(sandbox, "timings"), "claimed"));
}

/* Empty calls and claims in turns while the pool has some, then all of them removed. */
static int claim_some(struct bench *b, struct bench_row *empty, struct bench_row *claim,
                      uint64_t count, struct error *err)
{
    json_auto_t *boxes = json_array();
    struct error ignored = {0};
    double took = 0.0;
    int r = bench_pool_wait(b, count, err), removed;

    for (uint64_t i = 0; i < count && r >= 0; i++) {
        json_t *box = NULL;

        r = bench_empty(b, empty, err);
        if (r >= 0)
            r = bench_create(b, &took, &box, err);
        if (r >= 0 && !is_claimed(box))
            r = error_set(err, EAGAIN, "a sandbox is not from the pool, is somebody else busy?");
        if (r >= 0)
            r = bench_sample(claim, took, err);
        if (box && json_array_append_new(boxes, box) < 0 && r >= 0)
            r = error_set(err, ENOMEM, "out of memory");
    }
    removed = bench_remove_all(b, boxes, r < 0 ? &ignored : err);
    return r < 0 ? r : removed;
}

int bench_claim(struct bench *b, struct bench_group *g, struct error *err)
{
    struct bench_row *empty = bench_add_row(g, "ms", -1, "empty call");
    struct bench_row *claim = bench_add_row(g, "ms", 0, "claim from the pool");
    uint64_t size = MIN(b->rounds, (uint64_t)CLAIMS_AT_ONCE);
    int r;

    claim->reach = 2.0;
    bench_progress(b, "filling the pool", 0, b->rounds);
    r = bench_pool(b, size, err);
    for (uint64_t done = 0; done < b->rounds && r >= 0; done += size) {
        bench_progress(b, "claims", done, b->rounds);
        r = claim_some(b, empty, claim, MIN(size, b->rounds - done), err);
    }
    return r;
}

/* Without the pool: from nothing. */
int bench_creation(struct bench *b, struct bench_group *g, struct error *err)
{
    struct bench_row *created = bench_add_row(g, "ms", -1, "create");
    struct bench_row *output = bench_add_row(g, "ms", 0, "create, then first output of a command");
    int r = bench_pool(b, 0, err);

    for (uint64_t i = 0; i < b->rounds && r >= 0; i++) {
        json_auto_t *box = NULL;
        double start = bench_now_ms(), took = 0.0, seen = 0.0;
        struct error ignored = {0};
        int removed;

        bench_progress(b, "creations", i, b->rounds);
        r = bench_create(b, &took, &box, err);
        if (r < 0)
            break;
        r = bench_first_output(b, client_string(box, "id"), &seen, err);
        if (r >= 0 && !is_claimed(box)) {
            r = bench_sample(created, took, err);
            if (r >= 0)
                r = bench_sample(output, seen - start, err);
        }
        removed = bench_remove(b, box, r < 0 ? &ignored : err);
        r = r < 0 ? r : removed;
    }
    return r;
}

/* The same request again and again, in turns with an empty call. */
static int trips(struct bench *b, struct bench_group *g, const char *path, const char *body,
                 const char *name, struct error *err)
{
    struct bench_row *empty = bench_add_row(g, "ms", -1, "empty call");
    struct bench_row *trip = bench_add_row(g, "ms", 0, "%s", name);
    int r = 0;

    for (uint64_t i = 0; i < WARM_UP && r >= 0; i++)
        r = bench_ask(b, "POST", path, body, NULL, NULL, err);
    for (uint64_t i = 0; i < b->rounds * 5 && r >= 0; i++) {
        double took = 0.0;

        bench_progress(b, name, i, b->rounds * 5);
        r = bench_empty(b, empty, err);
        if (r >= 0)
            r = bench_ask(b, "POST", path, body, &took, NULL, err);
        if (r >= 0)
            r = bench_sample(trip, took, err);
    }
    return r;
}

int bench_exec(struct bench *b, struct bench_group *g, struct error *err)
{
    _cleanup_free_ char *path = client_path("/v1/sandboxes/{}/exec", b->id);

    return trips(b, g, path, "{\"argv\":[\"true\"]}", "exec 'true', to its result", err);
}

int bench_session(struct bench *b, struct bench_group *g, struct error *err)
{
    _cleanup_free_ char *path = client_path("/v1/sandboxes/{}/sessions/bench/run", b->id);
    _cleanup_free_ char *sessions = client_path("/v1/sandboxes/{}/sessions", b->id);
    _cleanup_free_ char *session = client_path("/v1/sandboxes/{}/sessions/bench", b->id);
    json_auto_t *body = json_pack("{s:s}", "name", "bench");
    struct error ignored = {0};
    int r, closed;

    r = client_call(b->cli, "POST", sessions, body, NULL, err);
    if (r < 0)
        return r;
    r = trips(b, g, path, "{\"text\":\":\"}", "session ':', to its result", err);
    closed = client_call(b->cli, "DELETE", session, NULL, NULL, r < 0 ? &ignored : err);
    return r < 0 ? r : closed;
}
