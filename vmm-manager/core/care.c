#include "core/care.h"

#include <linux/ioprio.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/strv.h"
#include "core/fork.h"
#include "core/sandbox-private.h"
#include "core/snapshots.h"

/*
 * Theory of operation. A timer looks every `every_usec`: when nobody creates, wakes, forks or
 * snapshots anything, one piece of work (one snapshot made anew, see snapshot_tend()) goes to the
 * thread; when it is done and there may be more, the next look comes at once. A host that is never
 * idle gets a piece all the same after BUSY_LOOKS_MAX looks: it runs at a low priority. A sandbox
 * that wants a snapshot meanwhile gets it: the work on it comes to nothing.
 *
 * The quota evicts inside of a seal, on a worker, where the core's tables must not be read. So they
 * are read before each seal, on the loop: whatever comes into use later is opened, or looked up,
 * after that, and what was so within the last RECENT_USEC is never evicted.
 */
#define EVERY_MIN_USEC (250 * USEC_PER_MSEC)
#define EVERY_MAX_USEC (30 * USEC_PER_SEC)
#define BUSY_LOOKS_MAX 20u
#define RETRY_USEC (600 * USEC_PER_SEC)
#define RECENT_USEC (10 * USEC_PER_SEC)
#define NICE 10

struct care {
    struct core *core;       /* weak */
    struct workers *workers; /* owned: one thread */
    struct source *timer;    /* owned */
    struct snapshot_care rules;
    _Atomic bool stop;
    uint64_t every_usec, quota_bytes;
    unsigned busy_looks;
    bool working;

    pthread_mutex_t lock; /* for what is below */
    char **in_use;        /* owned: ids */
    bool unknown;         /* not all of them could be listed */
};

struct piece {
    struct care *care;            /* weak: outlives its workers */
    struct snapshot_store *store; /* weak */
    int result;
    struct error err;
};

/* ---- in the background ---- */

static void piece_run(void *userdata)
{
    struct piece *p = userdata;

    (void)setpriority(PRIO_PROCESS, 0, NICE); /* of this thread */
    (void)syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0,
                  IOPRIO_PRIO_VALUE(IOPRIO_CLASS_BE, IOPRIO_BE_NR - 1));
    p->result = snapshot_tend(p->store, &p->care->rules, &p->err);
}

static void look_in(struct care *c, uint64_t usec)
{
    if (source_set_time(c->timer, clock_now_usec() + usec) < 0)
        log_warning("Failed to arm the care of snapshots, ignoring");
}

static void piece_done(void *userdata, int cancelled)
{
    struct piece *p = userdata;
    struct care *c = p->care;
    bool expected = p->err.code == ERR_SNAPSHOT_IN_USE || p->err.code == ERR_SNAPSHOT_NOT_FOUND ||
                    p->err.code == ERR_CANCELLED || p->err.code == ERR_QUOTA_EXCEEDED;

    if (!cancelled && !c->core->closing) {
        c->working = false;
        if (p->result < 0 && expected)
            log_debug("Care of snapshots: %s; another time", p->err.text);
        else if (p->result < 0)
            log_warning("Care of snapshots: %s, ignoring", p->err.text);
        look_in(c, p->result != 0 ? 0 : c->every_usec);
    }
    free(p);
}

static bool is_idle(const struct core *core)
{
    if (core->recovery || core->n_creating > 0 || core->n_queued > 0 || core->forks || core->makes)
        return false;
    for (size_t i = 0; i < core->n_sandboxes; i++) {
        const struct sandbox *sb = core->sandboxes[i];

        if (sb->take || sb->wake || sb->pending > 0)
            return false;
    }
    return true;
}

static int on_look(struct source *s, uint64_t now_usec, void *userdata)
{
    struct care *c = userdata;
    struct piece *p;

    if (c->working)
        return 0;
    if (!is_idle(c->core) && ++c->busy_looks < BUSY_LOOKS_MAX)
        return source_set_time(s, now_usec + c->every_usec);
    c->busy_looks = 0;
    p = calloc(1, sizeof(*p));
    if (p) {
        p->care = c;
        p->store = c->core->snapshots;
        c->working = workers_submit(c->workers, piece_run, piece_done, p) >= 0;
        if (!c->working)
            free(p);
    }
    return c->working ? 0 : source_set_time(s, now_usec + c->every_usec);
}

/* ---- quota ---- */

/* Only what nobody named and nobody stands on: for all else somebody would miss it. */
static bool may_evict(const struct snapshot_info *info, void *userdata)
{
    struct care *c = userdata;
    bool may = info->kind == SNAPSHOT_CHECKPOINT && !info->name[0] &&
               clock_wall_usec() > info->opened_wall_usec + RECENT_USEC;

    (void)pthread_mutex_lock(&c->lock);
    may = may && !c->unknown;
    for (char **id = c->in_use; may && id && *id; id++)
        may = strcmp(*id, info->id) != 0;
    (void)pthread_mutex_unlock(&c->lock);
    return may;
}

static void on_evicted(const struct snapshot_info *info, void *userdata)
{
    (void)userdata;
    log_notice("Snapshot '%s' of sandbox '%s' was evicted: %llu bytes for the quota", info->id,
               info->sandbox, (unsigned long long)info->stored_bytes);
}

static int list_in_use(const struct core *core, char ***list)
{
    int r = forks_list_snapshots(core, list);

    for (size_t i = 0; i < core->n_sandboxes && r >= 0; i++) {
        const struct sandbox *sb = core->sandboxes[i];
        const char *ids[] = {sb->snapshot, sb->restored_from, sb->checkpoint};

        for (size_t k = 0; k < ARRAY_SIZE(ids) && r >= 0; k++)
            r = ids[k][0] ? strv_append(list, ids[k]) : 0;
    }
    return r;
}

void care_before_seal(struct care *c)
{
    char **list = NULL;
    int r;

    if (!c)
        return;
    r = list_in_use(c->core, &list);
    (void)pthread_mutex_lock(&c->lock);
    (void)strv_free(c->in_use);
    c->in_use = list;
    c->unknown = r < 0;
    (void)pthread_mutex_unlock(&c->lock);
}

uint64_t core_snapshot_bytes(const struct core *core, uint64_t *ret_quota_bytes)
{
    *ret_quota_bytes = core->care->quota_bytes;
    return snapshot_store_bytes(core->snapshots);
}

/* ---- life ---- */

int care_new(struct core *core, const struct core_options *options, struct care **ret)
{
    struct care *c = calloc(1, sizeof(*c));
    int r;

    if (!c)
        return -ENOMEM;
    c->core = core;
    (void)pthread_mutex_init(&c->lock, NULL);
    c->rules = (struct snapshot_care){
        .chain_max = options->chain_max,
        .compress_after_usec = options->compress_after_usec,
        .min_free_bytes = core->min_free_mib * UINT64_C(1048576),
        .retry_usec = RETRY_USEC,
        .stop = &c->stop,
    };
    c->every_usec = EVERY_MAX_USEC;
    if (c->rules.compress_after_usec > 0)
        c->every_usec = MAX(MIN(c->rules.compress_after_usec / 4, EVERY_MAX_USEC), EVERY_MIN_USEC);
    r = workers_new(core->loop, "hearth-care", 1, 1, &c->workers);
    if (r >= 0)
        r = loop_add_timer(core->loop, "snapshot-care", clock_now_usec() + c->every_usec, on_look,
                           c, &c->timer);
    if (r < 0) {
        (void)care_free(c);
        return r;
    }
    c->quota_bytes = options->snapshot_quota_bytes;
    if (c->quota_bytes > 0) {
        const struct snapshot_quota quota = {
            .max_bytes = c->quota_bytes,
            .may = may_evict,
            .evicted = on_evicted,
            .userdata = c,
        };

        snapshot_store_set_quota(core->snapshots, &quota);
    }
    *ret = c;
    return 0;
}

void care_quiesce(struct care *c)
{
    if (!c)
        return;
    c->timer = source_free(c->timer);
    atomic_store(&c->stop, true);
    c->workers = workers_free(c->workers);
}

struct care *care_free(struct care *c)
{
    if (!c)
        return NULL;
    care_quiesce(c);
    (void)strv_free(c->in_use);
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
    return NULL;
}
