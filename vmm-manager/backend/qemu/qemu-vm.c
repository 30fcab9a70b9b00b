#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

#include "backend/qemu/qemu-private.h"
#include "backend/qemu/qemu-process.h"
#include "backend/qemu/qemu-root.h"
#include "backend/serial-log.h"
#include "base/clock.h"
#include "base/fd.h"

#define HOUSEWORK_USEC USEC_PER_SEC
#define KILL_LATE_USEC (10 * USEC_PER_SEC)
/* libvirt writes a last line to its log of a VM a moment after it ended: look again for a while. */
#define SWEEP_ROUNDS 8

struct vm *vm_find(struct backend_qemu *b, const char *id)
{
    for (struct vm *vm = b->vms; vm; vm = vm->next)
        if (strcmp(vm->id, id) == 0)
            return vm;
    return NULL;
}

/* ---- housework: logs are kept small, what libvirt leaves behind goes ---- */

static bool is_known(const char *id, void *userdata)
{
    return vm_find(userdata, id) != NULL;
}

static int on_housework(struct source *s, uint64_t now_usec, void *userdata)
{
    struct backend_qemu *b = userdata;

    for (struct vm *vm = b->vms; vm; vm = vm->next)
        if (vm->pidfd >= 0)
            serial_trim(vm->vm.log_path);
    if (b->sweeps > 0) {
        b->sweeps--;
        root_sweep_logs(driver_root(b->driver), is_known, b);
    }
    return source_set_time(s, b->vms || b->sweeps ? now_usec + HOUSEWORK_USEC : USEC_INFINITY);
}

static void want_housework(struct backend_qemu *b)
{
    uint64_t at = clock_now_usec() + HOUSEWORK_USEC;

    if (!b->housework)
        (void)loop_add_timer(b->loop, "qemu-housework", at, on_housework, b, &b->housework);
    else
        (void)source_set_time(b->housework, at);
}

/* ---- life of a record ---- */

int vm_new(struct backend_qemu *b, const char *id, struct vm **ret)
{
    struct vm *vm;

    if (!name_is_valid(id))
        return -EINVAL;
    if (vm_find(b, id))
        return -EEXIST;
    vm = calloc(1, sizeof(*vm));
    if (!vm)
        return -ENOMEM;
    vm->b = b;
    vm->pidfd = -EBADF;
    (void)snprintf(vm->id, sizeof(vm->id), "%s", id);
    if (!b->vms && !b->sweeps)
        want_housework(b);
    vm->next = b->vms;
    b->vms = vm;
    *ret = vm;
    return 0;
}

static void forget_process(struct vm *vm)
{
    vm->child = source_free(vm->child);
    vm->pidfd = fd_close(vm->pidfd);
    while (vm->n_held > 0)
        (void)fd_close(vm->held[--vm->n_held]);
}

void vm_free(struct vm *vm)
{
    struct backend_qemu *b = vm->b;

    for (struct vm **p = &b->vms; *p; p = &(*p)->next)
        if (*p == vm) {
            *p = vm->next;
            break;
        }
    b->sweeps = SWEEP_ROUNDS;
    forget_process(vm);
    vm->kill_late = source_free(vm->kill_late);
    if (vm->queued)
        job_drop(TAKE_PTR(vm->queued));
    while (vm->kills) {
        struct kill_wait *k = vm->kills;

        vm->kills = k->next;
        free(k);
    }
    free(vm);
}

/* Everyone who asked for the end hears of it; a callback may ask for a new VM of the same id. */
static void finish_kills(struct kill_wait *kills, const struct error *err)
{
    while (kills) {
        struct kill_wait *k = kills;

        kills = k->next;
        if (k->done)
            k->done(err, k->userdata);
        free(k);
    }
}

void vm_settle(struct vm *vm)
{
    struct backend_qemu *b = vm->b;
    struct kill_wait *kills;
    char id[sizeof(vm->id)], reason[sizeof(vm->reason)];
    bool died = vm->died;

    if (vm->job)
        return;
    if (vm->pidfd >= 0) {
        if (vm->kills || *vm->reason)
            (void)pidfd_send_signal(vm->pidfd, SIGKILL, NULL, 0);
        else if (vm->queued)
            job_unqueue(vm);
        return;
    }
    if (vm->queued) {
        job_unqueue(vm); /* fails, and settles again */
        return;
    }
    kills = TAKE_PTR(vm->kills);
    memcpy(id, vm->id, sizeof(id));
    memcpy(reason, vm->reason, sizeof(reason));
    vm_free(vm);
    if (kills)
        finish_kills(kills, NULL);
    else if (died && b->gone)
        b->gone(id, reason, b->userdata);
}

static int on_child(struct source *s _unused_, const siginfo_t *info, void *userdata)
{
    struct vm *vm = userdata;

    forget_process(vm);
    vm->died = true;
    if (!vm->kills && !*vm->reason)
        serial_reason(vm->vm.log_path, info, "QEMU", vm->reason, sizeof(vm->reason));
    vm_settle(vm);
    return 0;
}

int vm_watch_consume(struct vm *vm, const struct backend_vm *info, int pidfd)
{
    int r;

    vm->vm = *info;
    vm->pidfd = pidfd;
    r = loop_add_child(vm->b->loop, "qemu-process", pidfd, on_child, vm, &vm->child);
    if (r < 0)
        vm->pidfd = fd_close(vm->pidfd);
    return r;
}

/* SIGKILL was sent long ago: whoever waits is told, the record stays until the process goes. */
static int on_kill_late(struct source *s _unused_, uint64_t now_usec _unused_, void *userdata)
{
    struct vm *vm = userdata;
    struct kill_wait *kills = TAKE_PTR(vm->kills);
    struct error err = {0};

    vm->kill_late = source_free(vm->kill_late);
    (void)error_set(&err, ETIMEDOUT, "QEMU of '%s' (pid %d) does not die", vm->id, (int)vm->vm.pid);
    finish_kills(kills, &err);
    return 0;
}

int vm_kill(struct vm *vm, backend_done_fn done, void *userdata)
{
    struct kill_wait *k = calloc(1, sizeof(*k));
    int r;

    if (!k)
        return -ENOMEM;
    if (!vm->kill_late) {
        r = loop_add_timer(vm->b->loop, "qemu-kill", clock_now_usec() + KILL_LATE_USEC,
                           on_kill_late, vm, &vm->kill_late);
        if (r < 0) {
            free(k);
            return r;
        }
    }
    *k = (struct kill_wait){.done = done, .userdata = userdata, .next = vm->kills};
    vm->kills = k;
    if (vm->job)
        job_cancel(vm->job);
    if (vm->pidfd >= 0) {
        /*
         * libvirt looks after a QEMU whose monitor ended, and when it finds the process still there
         * it waits 200 ms, in which no VM of this name can start. So it hears of the end only when
         * the process is gone.
         */
        if (vm->n_held == 0)
            vm->n_held = process_hold_sockets(vm->pidfd, vm->vm.pid, vm->held, HELD_MAX);
        (void)pidfd_send_signal(vm->pidfd, SIGKILL, NULL, 0);
    } else if (vm->job) {
        /* Being started: its process may be there already, and libvirt stuck with it. */
        _cleanup_close_ int fd = root_open_vm(driver_root(vm->b->driver), vm->id, NULL);

        if (fd >= 0)
            (void)pidfd_send_signal(fd, SIGKILL, NULL, 0);
    }
    return 0;
}
