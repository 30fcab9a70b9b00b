#include "core/core.h"

#include <fcntl.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"
#include "base/strv.h"
#include "core/care.h"
#include "core/core-private.h"
#include "core/events.h"
#include "core/fork.h"
#include "core/guest-fate.h"
#include "core/keys.h"
#include "core/lifecycle.h"
#include "core/pool.h"
#include "core/recover.h"
#include "core/resolve-cache.h"
#include "core/sandbox-private.h"
#include "core/template.h"
#include "store/snapshot.h"

#define VM_WORKERS 8u
#define IO_WORKERS 4u
#define IMAGE_WORKERS 4u
#define WORKER_QUEUE_MAX 4096u
#define URING_ENTRIES 256u

/* ---- the state directory ---- */

/* One daemon a directory: two would fight over the same VMs. */
static int take_lock(struct core *core, struct error *err)
{
    _cleanup_free_ char *path = string_printf("%s/hearthd.lock", core->state_dir);
    char text[32];
    ssize_t n;

    if (!path)
        return error_set(err, ENOMEM, "out of memory");
    core->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (core->lock_fd < 0)
        return error_set(err, errno, "open '%s': %s", path, errno_text(errno));
    if (flock(core->lock_fd, LOCK_EX | LOCK_NB) < 0) {
        n = pread(core->lock_fd, text, sizeof(text) - 1, 0);
        text[n > 0 ? n : 0] = '\0';
        text[strcspn(text, "\n")] = '\0';
        return error_set_code(err, ERR_CONFLICT,
                              "state directory '%s': another hearthd (pid %s) owns it",
                              core->state_dir, text[0] ? text : "unknown");
    }
    n = snprintf(text, sizeof(text), "%d\n", (int)getpid());
    if (ftruncate(core->lock_fd, 0) < 0 || pwrite(core->lock_fd, text, (size_t)n, 0) != n)
        return error_set(err, errno ? errno : EIO, "write '%s': %s", path, errno_text(errno));
    return 0;
}

static int open_state(struct core *core, const char *state_dir, struct error *err)
{
    _cleanup_free_ char *db = NULL, *snapshots = NULL;
    int r;

    core->state_dir = string_printf("%s", state_dir);
    core->sandboxes_dir = string_printf("%s/sandboxes", state_dir);
    core->templates_dir = string_printf("%s/templates", state_dir);
    db = string_printf("%s/hearth.db", state_dir);
    snapshots = string_printf("%s/snapshots", state_dir);
    if (!core->state_dir || !core->sandboxes_dir || !core->templates_dir || !db || !snapshots)
        return error_set(err, ENOMEM, "out of memory");
    r = dir_create(core->sandboxes_dir, 0700, err);
    if (r >= 0)
        r = dir_create(core->templates_dir, 0700, err);
    if (r >= 0)
        r = take_lock(core, err);
    if (r >= 0)
        r = store_open(db, &core->store, err);
    if (r >= 0)
        r = keys_new(core, &core->keys, err);
    if (r >= 0)
        r = snapshot_store_open(snapshots, core->templates_dir, &core->snapshots, err);
    return r;
}

/* ---- backends ---- */

static void on_vm_gone(const char *id, const char *reason, void *userdata)
{
    struct core *core = userdata;
    struct sandbox *sb = core_sandbox_by_id(core, id);
    struct error err = {0};
    char what[64];

    if (core->closing)
        return;
    if (!sb) {
        if (!templates_vm_gone(core, id, reason))
            log_debug("VM '%s' ended (%s); nobody waits for it", id, reason);
        return;
    }
    sb->vm.pid = 0;
    (void)snprintf(what, sizeof(what), "sandbox '%s'", sb->id);
    if (guest_fate_ended(what, sb->vm.log_path, reason, &err)) {
        (void)error_set_code(&err, ERR_GUEST_GONE, "%s: the guest powered off", what);
        (void)sandbox_event(sb, EVENT_GUEST_OFF, &err);
    } else {
        (void)sandbox_event(sb, EVENT_FAILED, &err);
    }
}

static int make_backends(struct core *core, const struct core_options *options, struct error *err)
{
    const struct backend_env env = {
        .loop = core->loop,
        .workers = core->vm_workers,
        .state_dir = core->state_dir,
        .gone = on_vm_gone,
        .userdata = core,
    };

    if (options->n_backends > CORE_BACKENDS_MAX)
        return error_set(err, E2BIG, "at most %u backends", CORE_BACKENDS_MAX);
    for (size_t i = 0; i < options->n_backends; i++) {
        struct backend_slot *slot = &core->slots[core->n_slots];
        struct error why = {0};

        if (options->backends[i].make(&env, &slot->backend, &why) < 0) {
            log_warning("Backend '%s' cannot be used: %s, ignoring", options->backends[i].name,
                        why.text);
            continue;
        }
        pthread_mutex_init(&slot->probe_lock, NULL);
        core->n_slots++;
    }
    return 0;
}

struct backend_slot *core_slot(struct core *core, const char *name)
{
    for (size_t i = 0; i < core->n_slots; i++) {
        if (strcmp(core->slots[i].backend->ops->name, name) == 0)
            return &core->slots[i];
    }
    return NULL;
}

struct backend *core_backend(struct core *core, const char *name, struct error *err)
{
    struct backend_slot *slot = name ? core_slot(core, name) : NULL;

    if (!name && core->n_slots > 0)
        slot = &core->slots[0];
    if (!slot)
        (void)error_set_code(err, ERR_BACKEND_UNAVAILABLE, "backend '%s': unknown",
                             name ? name : "any");
    return slot ? slot->backend : NULL;
}

/* ---- the table of sandboxes ---- */

size_t core_count_sandboxes(const struct core *core)
{
    size_t n = 0;

    for (size_t i = 0; i < core->n_sandboxes; i++)
        n += !core->sandboxes[i]->pooled;
    return n;
}

int core_add_sandbox(struct core *core, struct sandbox *sb)
{
    if (core->n_sandboxes >= core->sandboxes_room ||
        (!sb->pooled && core_count_sandboxes(core) >= core->max_sandboxes))
        return -EAGAIN;
    core->sandboxes[core->n_sandboxes++] = sb;
    return 0;
}

void core_drop_sandbox(struct core *core, struct sandbox *sb)
{
    for (size_t i = 0; i < core->n_sandboxes; i++) {
        if (core->sandboxes[i] != sb)
            continue;
        core_tell(sb, "removed");
        core->n_sandboxes--;
        memmove(&core->sandboxes[i], &core->sandboxes[i + 1],
                (core->n_sandboxes - i) * sizeof(core->sandboxes[0]));
        return;
    }
}

void core_move_last(struct core *core, struct sandbox *sb)
{
    for (size_t i = 0; i < core->n_sandboxes; i++) {
        if (core->sandboxes[i] != sb)
            continue;
        memmove(&core->sandboxes[i], &core->sandboxes[i + 1],
                (core->n_sandboxes - i - 1) * sizeof(core->sandboxes[0]));
        core->sandboxes[core->n_sandboxes - 1] = sb;
        return;
    }
}

struct sandbox *core_sandbox_by_id(struct core *core, const char *id)
{
    for (size_t i = 0; i < core->n_sandboxes; i++) {
        if (strcmp(core->sandboxes[i]->id, id) == 0)
            return core->sandboxes[i];
    }
    return NULL;
}

bool core_image_in_use(struct core *core, const char *image_sha256)
{
    for (size_t i = 0; i < core->n_sandboxes; i++) {
        const struct sandbox *sb = core->sandboxes[i];

        if (!sb->pooled && strcmp(sb->origin.image_sha256, image_sha256) == 0)
            return true;
    }
    return templates_use_image(core, image_sha256);
}

/* ---- life of the core ---- */

int core_new(struct loop *loop, const struct core_options *options, struct core **ret,
             struct error *err)
{
    struct core *core;
    int r;

    if (sodium_init() < 0)
        return error_set(err, EIO, "libsodium cannot be initialised");
    core = calloc(1, sizeof(*core));
    if (!core)
        return error_set(err, ENOMEM, "out of memory");
    core->loop = loop;
    core->lock_fd = -EBADF;
    initramfs_cache_init(&core->initramfs);
    core->max_sandboxes = options->max_sandboxes ? options->max_sandboxes : CORE_SANDBOXES_DEFAULT;
    core->max_sandboxes = MIN(core->max_sandboxes, CORE_SANDBOXES_MAX);
    core->min_free_mib = options->min_free_mib ? options->min_free_mib : CORE_MIN_FREE_MIB;
    core->answer_timeout_usec = options->answer_timeout_usec;
    core->pool_size = MIN(options->pool_size, CORE_POOLED_MAX);
    core->sandboxes_room = core->max_sandboxes + 2 * CORE_POOLED_MAX; /* and those that go */
    core->sandboxes = calloc(core->sandboxes_room, sizeof(core->sandboxes[0]));
    r = core->sandboxes ? string_set(&core->init_path, options->init_path) : -ENOMEM;
    if (r >= 0)
        r = workers_new(loop, "hearth-vm", VM_WORKERS, WORKER_QUEUE_MAX, &core->vm_workers);
    if (r >= 0)
        r = workers_new(loop, "hearth-io", IO_WORKERS, WORKER_QUEUE_MAX, &core->io_workers);
    if (r >= 0)
        r = workers_new(loop, "hearth-image", IMAGE_WORKERS, WORKER_QUEUE_MAX,
                        &core->image_workers);
    if (r < 0)
        (void)error_set(err, -r, "core: %s", errno_text(-r));
    if (r >= 0 && uring_new(loop, URING_ENTRIES, &core->uring) < 0)
        log_info("There is no io_uring here; copies run on workers");
    if (r >= 0)
        r = open_state(core, options->state_dir, err);
    if (r >= 0)
        r = make_backends(core, options, err);
    if (r >= 0) {
        r = care_new(core, options, &core->care);
        if (r < 0)
            (void)error_set(err, -r, "care of snapshots: %s", errno_text(-r));
    }
    if (r < 0) {
        (void)core_free(core);
        return r;
    }
    *ret = core;
    return 0;
}

/*
 * Everything that could call back on its own goes first, then the workers; what they and the
 * backends have posted by then is delivered while `closing` makes every completion a no-op, so that
 * nothing calls into freed memory later.
 */
struct core *core_free(struct core *core)
{
    if (!core)
        return NULL;
    core->closing = true;
    for (size_t i = 0; i < core->n_slots; i++)
        if (core->slots[i].backend->ops->quiesce)
            core->slots[i].backend->ops->quiesce(core->slots[i].backend);
    core->queue_wake = source_free(core->queue_wake);
    pools_quiesce(core);
    care_quiesce(core->care);
    core->uring = uring_free(core->uring); /* waits for what is in flight; copies go next */
    for (size_t i = 0; i < core->n_sandboxes; i++)
        sandbox_quiesce(core->sandboxes[i]);
    templates_quiesce(core);
    atomic_store(&core->images_stop, true);
    core->image_workers = workers_free(core->image_workers);
    core->io_workers = workers_free(core->io_workers);
    core->vm_workers = workers_free(core->vm_workers);
    for (unsigned i = 0; i < 2; i++) /* what the first round posts comes with the second */
        (void)loop_run_once(core->loop, /* timeout_usec= */ 0);
    core->recovery = recovery_free(core->recovery);
    pools_free(core);
    for (size_t i = 0; i < core->n_sandboxes; i++)
        (void)sandbox_free(core->sandboxes[i]);
    forks_free(core);
    resolve_cache_clear(core);
    template_makes_free(core);
    templates_free(core);
    for (size_t i = 0; i < core->n_slots; i++) {
        core->slots[i].backend = core->slots[i].backend->ops->free(core->slots[i].backend);
        pthread_mutex_destroy(&core->slots[i].probe_lock);
    }
    initramfs_cache_done(&core->initramfs);
    core->keys = keys_free(core->keys);
    core->store = store_close(core->store);
    core->snapshots = snapshot_store_close(core->snapshots);
    core->care = care_free(core->care); /* the store asked it until now */
    core->lock_fd = fd_close(core->lock_fd);
    free(core->sandboxes);
    free(core->state_dir);
    free(core->sandboxes_dir);
    free(core->templates_dir);
    free(core->init_path);
    free(core);
    return NULL;
}

struct loop *core_loop(struct core *core)
{
    return core->loop;
}

struct workers *core_workers(struct core *core)
{
    return core->io_workers;
}

struct workers *core_image_workers(struct core *core, const _Atomic bool **ret_stop)
{
    *ret_stop = &core->images_stop;
    return core->image_workers;
}
