#include "core/create-private.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "core/guest-fate.h"
#include "core/image-defaults.h"
#include "core/lifecycle.h"
#include "core/pool.h"
#include "core/timeouts.h"

/*
 * Theory of operation. A creation takes these steps, each ending in a callback on the loop:
 *
 *   queue     at most CORE_CREATIONS_MAX are in flight
 *   resolve   backend, image, kernel, initramfs, room on the disk (worker)
 *   template  found, or made by the first who needs it
 *   disk      a copy of the template's disk; an empty one for a cold boot
 *   machine   restored from the template, or booted
 *   guest     console, hello, identity (clone hygiene: before this nothing of the user runs)
 *
 * A step that fails reports EVENT_FAILED; lifecycle.c and teardown.c undo everything. Steps that
 * cannot be taken back (worker jobs, backend calls) are counted in sb->pending: after a removal in
 * the middle their callbacks only let teardown go on. When a template cannot be restored it is
 * discarded, and this creation boots cold instead, once.
 */
static void step_boot_cold(struct sandbox *sb);

struct creation *creation_free(struct creation *c)
{
    if (!c)
        return NULL;
    (void)template_wait_free(c->wait);
    (void)template_unref(c->template);
    (void)disk_copy_free(c->copy);
    (void)source_free(c->answer);
    free(c);
    return NULL;
}

void creation_quiesce(struct sandbox *sb)
{
    if (!sb->creation)
        return;
    if (sb->creation->resolving)
        resolve_cancel(sb->creation->resolving);
    sb->creation->resolving = NULL; /* the core is being freed: it goes without a word */
    sb->creation->wait = template_wait_free(sb->creation->wait);
    sb->creation->answer = source_free(sb->creation->answer);
    disk_copy_quiesce(sb->creation->copy);
}

static void progress(struct creation *c, const char *step, int percent)
{
    if (c->cb.on_progress && !c->forgotten)
        c->cb.on_progress(step, percent, c->userdata);
}

static void fail(struct sandbox *sb, const struct error *err)
{
    (void)sandbox_event(sb, EVENT_FAILED, err);
}

static void fail_errno(struct sandbox *sb, int r, const char *what)
{
    struct error err = {0};

    (void)error_set(&err, -r, "sandbox '%s': %s: %s", sb->id, what, errno_text(-r));
    fail(sb, &err);
}

/* Time since the last call: what the step that ends now took. */
static uint64_t lap(struct creation *c)
{
    uint64_t now = clock_now_usec(), took = now - c->step_usec;

    c->step_usec = now;
    return took;
}

/*
 * A call that could not be taken back is over. False: the sandbox is on its way out (and may be
 * gone by now), or the core is.
 */
static bool still_creating(struct sandbox *sb)
{
    if (sb->core->closing)
        return false;
    if (sb->state != SANDBOX_CREATING) {
        sandbox_unpend(sb);
        return false;
    }
    sb->pending--;
    return true;
}

/* ---- guest ---- */

static void fall_back(struct sandbox *sb, const struct error *reason);

static void on_link_ready(struct guest_link *link, void *userdata)
{
    struct sandbox *sb = userdata;
    struct creation *c = sb->creation;

    (void)link;
    sb->timings.console_usec = lap(c);
    sb->timings.total_usec = clock_now_usec() - c->asked_usec;
    if (c->template) {
        template_set_proven(c->template);
        if (!sb->pooled)
            pools_used(sb->core, &c->resolution, &sb->spec);
    }
    c->template = template_unref(c->template);
    log_sandbox(LOG_LEVEL_INFO, sb->id, "Guest answers after %llu us",
                (unsigned long long)sb->timings.total_usec);
    (void)sandbox_event(sb, EVENT_READY, NULL);
}

static void on_link_broken(struct guest_link *link, const struct error *reason, void *userdata)
{
    struct sandbox *sb = userdata;
    struct creation *c = sb->creation;
    struct error err = *reason;

    if (sb->state != SANDBOX_CREATING) { /* it was ready: this is the running sandbox's console */
        sandbox_console_broken(link, reason, userdata);
        return;
    }
    guest_fate_explain("the guest", sb->vm.log_path, &err);
    error_wrap(&err, "sandbox '%s'", sb->id);
    /* A template of which no clone ever answered is more likely broken than this one clone. */
    if (c->template && !template_is_proven(c->template))
        fall_back(sb, &err);
    else
        fail(sb, &err);
}

static void step_guest(struct sandbox *sb)
{
    static const struct guest_link_callbacks callbacks = {on_link_ready, on_link_broken};
    struct creation *c = sb->creation;
    struct guest_link_options options = {0};
    struct link_identity identity;
    uint64_t timeout = c->cold ? core_boot_timeout_usec(sb->core, c->resolution.caps.accelerator)
                               : core_answer_timeout_usec(sb->core);
    int r;

    progress(c, "wait for the guest", -1);
    sandbox_identity(sb, &identity);
    options.loop = sb->core->loop;
    options.backend = sb->slot->backend;
    options.vm_id = sb->id;
    options.deadline_usec = clock_now_usec() + timeout;
    options.thaw = LINK_THAW_ALWAYS;
    options.identity = &identity;
    r = guest_link_new(&options, &callbacks, sb, &sb->link);
    if (r < 0)
        fail_errno(sb, r, "connect");
}

/* ---- machine ---- */

static void on_machine(const struct backend_vm *vm, const struct error *err, void *userdata)
{
    struct sandbox *sb = userdata;
    struct creation *c = sb->creation;
    struct error why = {0};

    if (!still_creating(sb))
        return;
    if (err) {
        error_copy(&why, err);
        error_wrap(&why, "sandbox '%s'", sb->id);
        if (c->template)
            fall_back(sb, &why);
        else
            fail(sb, &why);
        return;
    }
    sb->vm = *vm;
    sb->timings.restore_usec = lap(c);
    step_guest(sb);
}

static void step_machine(struct sandbox *sb)
{
    struct creation *c = sb->creation;
    struct backend *backend = sb->slot->backend;
    char disk[512], memory[512], state[512];
    const struct vm_saved saved = {.memory_file = memory, .state_file = state};
    struct error err = {0};
    struct vm_spec spec;
    uint64_t now = clock_now_usec();
    int r;

    sandbox_vm_spec(sb, disk, &spec);
    spec.kernel = c->resolution.kernel;
    spec.initramfs = c->resolution.initramfs;
    sb->vm_exists = true;
    r = sandbox_store(sb, &err); /* before the VM: a daemon that dies now leaves a trace of it */
    if (r < 0) {
        fail(sb, &err);
        return;
    }
    sb->pending++;
    if (c->template) {
        progress(c, "restore", -1);
        (void)snprintf(memory, sizeof(memory), "%s/%s", template_dir(c->template), TEMPLATE_MEMORY);
        (void)snprintf(state, sizeof(state), "%s/%s", template_dir(c->template), TEMPLATE_STATE);
        r = backend->ops->restore(backend, &spec, &saved, now + core_restore_timeout_usec(sb->core),
                                  on_machine, sb);
    } else {
        progress(c, "boot", -1);
        r = backend->ops->boot(
            backend, &spec, now + core_boot_timeout_usec(sb->core, c->resolution.caps.accelerator),
            on_machine, sb);
    }
    if (r < 0) {
        sb->pending--;
        fail_errno(sb, r, c->template ? "restore" : "boot");
    }
}

/* ---- disk ---- */

static void on_disk(const struct error *err, void *userdata)
{
    struct sandbox *sb = userdata;
    struct creation *c = sb->creation;
    struct error why = {0};

    if (!still_creating(sb))
        return;
    c->copy = disk_copy_free(c->copy);
    if (err) {
        error_copy(&why, err);
        error_wrap(&why, "sandbox '%s'", sb->id);
        fail(sb, &why);
        return;
    }
    sb->timings.disk_usec = lap(c);
    step_machine(sb);
}

static void step_disk(struct sandbox *sb)
{
    struct creation *c = sb->creation;
    char from[512] = "", to[512];
    struct error err = {0};
    struct vm_spec spec;
    int r;

    r = dir_create(sb->dir, 0700, &err);
    if (r < 0) {
        fail(sb, &err);
        return;
    }
    sandbox_vm_spec(sb, to, &spec);
    if (c->template)
        (void)snprintf(from, sizeof(from), "%s/%s", template_dir(c->template), TEMPLATE_DISK);
    progress(c, "disk", -1);
    sb->pending++;
    r = disk_copy_start(sb->core, c->template ? from : NULL, to, sb->origin.disk_mib, on_disk, sb,
                        &c->copy);
    if (r < 0) {
        sb->pending--;
        fail_errno(sb, r, "copy the disk");
    }
}

/* ---- template ---- */

static void on_template_progress(const char *step, int percent, void *userdata)
{
    struct sandbox *sb = userdata;

    progress(sb->creation, step, percent);
}

static void on_template(struct template *t, const struct error *err, void *userdata)
{
    struct sandbox *sb = userdata;
    struct creation *c = sb->creation;
    struct error why = {0};

    c->wait = template_wait_free(c->wait);
    c->template = t;
    sb->timings.template_usec = lap(c);
    if (err) {
        error_copy(&why, err);
        error_wrap(&why, "sandbox '%s'", sb->id);
        fail(sb, &why);
        return;
    }
    if (!t) {
        step_boot_cold(sb);
        return;
    }
    memcpy(sb->template_id, template_id(t), MANIFEST_ID_SIZE);
    step_disk(sb);
}

static void step_boot_cold(struct sandbox *sb)
{
    struct creation *c = sb->creation;
    struct error err = {0};

    if (sb->pooled || c->resolution.recipe) { /* only a clone of the template will do */
        (void)error_set_code(&err, ERR_TEMPLATE_INVALID,
                             "sandbox '%s': template '%s' cannot be restored", sb->id,
                             c->resolution.template_id);
        fail(sb, &err);
        return;
    }
    if (c->resolution.kernel[0] == '\0') {
        (void)error_set_code(
            &err, ERR_TEMPLATE_INVALID,
            "sandbox '%s': template '%s' cannot be restored, and the kernel it was "
            "made with is gone",
            sb->id, sb->template_id);
        fail(sb, &err);
        return;
    }
    c->cold = true;
    sb->timings.cold = true;
    sb->template_id[0] = '\0';
    step_disk(sb);
}

static void step_template(struct sandbox *sb)
{
    static const struct template_callbacks callbacks = {.on_progress = on_template_progress,
                                                        .on_ready = on_template};
    struct creation *c = sb->creation;
    struct error err = {0};

    if (!c->resolution.caps.snapshot_memory || sb->spec.build) {
        step_boot_cold(sb);
        return;
    }
    if (template_acquire(sb->core, &c->resolution, /* recipe= */ NULL, &callbacks, sb, &c->wait,
                         &err) < 0)
        fail(sb, &err);
}

/* ---- fall back: the VM of the failed restore goes, then a cold boot in the same place ---- */

static void on_fallback_killed(const struct error *err, void *userdata)
{
    struct sandbox *sb = userdata;
    struct error failed = {0};
    char disk[512];
    struct vm_spec spec;

    if (!still_creating(sb))
        return;
    if (err) {
        error_copy(&failed, err);
        error_wrap(&failed, "sandbox '%s'", sb->id);
        fail(sb, &failed);
        return;
    }
    memset(&sb->vm, 0, sizeof(sb->vm));
    /* The disk belongs to the memory that was not restored: start from an empty one. */
    sandbox_vm_spec(sb, disk, &spec);
    (void)unlink(disk);
    step_boot_cold(sb);
}

static void fall_back(struct sandbox *sb, const struct error *reason)
{
    struct creation *c = sb->creation;
    struct backend *backend = sb->slot->backend;
    int r;

    sb->link = guest_link_free(sb->link);
    if (!c->resolution.recipe) /* else somebody made it with care: he is told, it stays */
        template_discard(c->template, reason);
    c->template = template_unref(c->template);
    if (c->fell_back || sb->pooled || c->resolution.recipe) {
        fail(sb, reason);
        return;
    }
    c->fell_back = true;
    log_sandbox(LOG_LEVEL_WARNING, sb->id, "Restore failed, booting instead: %s", reason->text);
    sb->pending++;
    r = backend->ops->kill(backend, sb->id, on_fallback_killed, sb);
    if (r < 0) {
        sb->pending--;
        fail_errno(sb, r, "end the VM that could not be restored");
    }
}

/* ---- resolve ---- */

static void on_resolve_progress(const char *step, int percent, void *userdata)
{
    struct sandbox *sb = userdata;

    if (!sb->creation)
        return;
    progress(sb->creation, step, percent);
    if (sb->state == SANDBOX_CREATING) /* a download that goes on has all the time it needs */
        sandbox_arm_deadline(sb, sandbox_state_timeout_usec(SANDBOX_CREATING));
}

static void on_resolved(const struct resolution *resolution, const struct error *err,
                        void *userdata)
{
    struct sandbox *sb = userdata;
    struct creation *c = sb->creation;

    if (c)
        c->resolving = NULL;
    if (!still_creating(sb))
        return;
    if (err) {
        fail(sb, err);
        return;
    }
    if (resolution->config && image_defaults(&sb->spec, resolution->config) < 0) {
        fail_errno(sb, -ENOMEM, "take over the image's configuration");
        return;
    }
    if (resolution != &c->resolution)
        c->resolution = *resolution;
    c->resolution.config = NULL;
    sb->slot = resolution->slot;
    sb->origin = resolution->origin;
    sb->timings.resolve_usec = lap(c);
    step_template(sb);
}

static void step_resolve(struct sandbox *sb)
{
    struct creation *c = sb->creation;
    int r;

    c->in_flight = true;
    sb->core->n_creating++;
    sb->timings.queue_usec = lap(c);
    progress(c, "look up image and kernel", -1);
    sb->pending++;
    if (resolve_now(sb->core, &sb->spec, &c->resolution)) {
        on_resolved(&c->resolution, NULL, sb);
        return;
    }
    r = resolve_start(sb->core, &sb->spec, on_resolve_progress, on_resolved, sb, &c->resolving);
    if (r < 0) {
        sb->pending--;
        fail_errno(sb, r, "look up image and kernel");
    }
}

/* ---- queue ---- */

static void queue_push(struct core *core, struct creation *c)
{
    c->queued = true;
    if (core->queue_tail)
        core->queue_tail->next = c;
    else
        core->queue_head = c;
    core->queue_tail = c;
    core->n_queued++;
}

static void queue_remove(struct core *core, struct creation *c)
{
    struct creation *previous = NULL;

    if (!c->queued)
        return;
    for (struct creation *i = core->queue_head; i; previous = i, i = i->next) {
        if (i != c)
            continue;
        if (previous)
            previous->next = c->next;
        else
            core->queue_head = c->next;
        if (core->queue_tail == c)
            core->queue_tail = previous;
        break;
    }
    c->next = NULL;
    c->queued = false;
    core->n_queued--;
}

static void queue_run(struct core *core)
{
    while (core->queue_head && core->n_creating < CORE_CREATIONS_MAX && !core->closing) {
        struct creation *c = core->queue_head;

        queue_remove(core, c);
        step_resolve(c->sandbox);
    }
}

static int on_queue(struct source *s, void *userdata)
{
    struct core *core = userdata;

    (void)s;
    core->queue_wake = source_free(core->queue_wake);
    queue_run(core);
    return 0;
}

/* From the loop: creation never calls back from inside sandbox_create(). */
static int queue_wake(struct core *core)
{
    if (core->queue_wake || core->closing)
        return 0;
    return loop_add_defer(core->loop, "creation-queue", on_queue, core, &core->queue_wake);
}

static void leave_flight(struct creation *c)
{
    struct core *core = c->sandbox->core;

    queue_remove(core, c);
    if (!c->in_flight)
        return;
    c->in_flight = false;
    core->n_creating--;
    if (queue_wake(core) < 0)
        log_error("Failed to wake the creation queue: out of memory, ignoring");
}

struct creation *creation_new(struct sandbox *sb, const struct sandbox_create_callbacks *cb,
                              void *userdata)
{
    struct creation *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    c->sandbox = sb;
    if (cb)
        c->cb = *cb;
    c->forgotten = !cb;
    c->userdata = userdata;
    c->asked_usec = c->step_usec = clock_now_usec();
    return c;
}

int creation_start(struct sandbox *sb, const struct sandbox_create_callbacks *cb, void *userdata,
                   struct error *err)
{
    struct core *core = sb->core;
    struct creation *c;
    int r;

    if (core->n_queued >= CORE_CREATION_QUEUE_MAX)
        return error_set_code(err, ERR_TOO_MANY, "%u creations are waiting already",
                              CORE_CREATION_QUEUE_MAX);
    c = creation_new(sb, cb, userdata);
    if (!c)
        return error_set(err, ENOMEM, "sandbox '%s': out of memory", sb->id);
    r = queue_wake(core);
    if (r < 0) {
        free(c);
        return error_set(err, -r, "sandbox '%s': %s", sb->id, errno_text(-r));
    }
    sb->creation = c;
    queue_push(core, c);
    return 0;
}

void creation_finish(struct sandbox *sb)
{
    struct creation *c = TAKE_PTR(sb->creation);

    if (!c) /* adopted, not created */
        return;
    leave_flight(c);
    if (c->cb.on_done && !c->forgotten)
        c->cb.on_done(sb, NULL, c->userdata);
    (void)creation_free(c);
}

void creation_cancel(struct sandbox *sb)
{
    struct creation *c = sb->creation;

    if (!c)
        return;
    queue_remove(sb->core, c);
    if (c->resolving)
        resolve_cancel(c->resolving);
    c->wait = template_wait_free(c->wait);
    c->answer = source_free(c->answer);
}

void creation_report_failure(struct sandbox *sb)
{
    struct creation *c = TAKE_PTR(sb->creation);

    if (!c)
        return;
    leave_flight(c);
    if (!sb->failure.errnum) /* a claim, and its sandbox was removed at once */
        (void)error_set_code(&sb->failure, ERR_CANCELLED, "sandbox '%s': removed", sb->id);
    if (c->cb.on_done && !c->forgotten)
        c->cb.on_done(NULL, &sb->failure, c->userdata);
    (void)creation_free(c);
}

void creation_forget(struct sandbox *sb, const void *userdata)
{
    if (sb->creation && sb->creation->userdata == userdata)
        sb->creation->forgotten = true;
}
