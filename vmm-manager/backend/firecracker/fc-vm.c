#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/pidfd.h>

#include "backend/firecracker/fc-private.h"
#include "backend/serial-log.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/strv.h"

#define KILL_LATE_USEC (10 * USEC_PER_SEC)

struct fc_vm *fc_vm_find(struct fc *b, const char *id)
{
    for (struct fc_vm *vm = b->vms; vm; vm = vm->next)
        if (strcmp(vm->id, id) == 0)
            return vm;
    return NULL;
}

int fc_vm_new(struct fc *b, const char *id, struct fc_vm **ret)
{
    struct fc_vm *vm;

    if (!name_is_valid(id))
        return -EINVAL;
    if (fc_vm_find(b, id))
        return -EEXIST;
    vm = calloc(1, sizeof(*vm));
    if (!vm)
        return -ENOMEM;
    vm->b = b;
    vm->vmm.pidfd = -EBADF;
    vm->cancel_fd = -EBADF;
    (void)snprintf(vm->id, sizeof(vm->id), "%s", id);
    vm->next = b->vms;
    b->vms = vm;
    fc_want_housework(b);
    *ret = vm;
    return 0;
}

static void forget_process(struct fc_vm *vm)
{
    vm->child = source_free(vm->child);
    vm->vmm.pidfd = fd_close(vm->vmm.pidfd);
}

static void forget_requests(struct fc_vm *vm)
{
    vm->call = fc_call_free(vm->call);
    fc_requests_done(vm->requests, vm->n_requests);
    vm->n_requests = vm->next_request = 0;
}

void fc_vm_free(struct fc_vm *vm)
{
    for (struct fc_vm **p = &vm->b->vms; *p; p = &(*p)->next)
        if (*p == vm) {
            *p = vm->next;
            break;
        }
    forget_process(vm);
    forget_requests(vm);
    vm->kill_late = source_free(vm->kill_late);
    while (vm->kills) {
        struct fc_kill_wait *k = vm->kills;

        vm->kills = k->next;
        free(k);
    }
    free(vm->disk);
    free(vm->memory_file);
    free(vm->state_file);
    free(vm->changed_file);
    free(vm);
}

/* ---- answers ---- */

/* What is told to whom, apart from the VM: a callback may free it, or ask for a new one of its id.
 */
struct answer {
    backend_vm_fn on_vm;
    backend_done_fn on_done;
    void *userdata;
    struct backend_vm vm;
    struct error err;
    struct fc_kill_wait *kills; /* owned */
    struct error kill_err;
};

static void take_verb_answer(struct fc_vm *vm, struct answer *ret)
{
    ret->on_vm = TAKE_PTR(vm->on_vm);
    ret->on_done = TAKE_PTR(vm->on_done);
    ret->userdata = vm->userdata;
    ret->vm = vm->vm;
    ret->err = vm->err;
    vm->verb = VERB_NONE;
    error_clear(&vm->err);
}

static void give(struct answer *a)
{
    const struct error *err = a->err.errnum ? &a->err : NULL;

    if (a->on_vm)
        a->on_vm(err ? NULL : &a->vm, err, a->userdata);
    if (a->on_done)
        a->on_done(err, a->userdata);
    while (a->kills) {
        struct fc_kill_wait *k = a->kills;

        a->kills = k->next;
        if (k->done)
            k->done(a->kill_err.errnum ? &a->kill_err : NULL, k->userdata);
        free(k);
    }
}

void fc_vm_finish(struct fc_vm *vm)
{
    struct fc *b = vm->b;
    struct answer a = {0};
    char id[sizeof(vm->id)], reason[sizeof(vm->reason)];
    bool ran = vm->verb == VERB_SNAPSHOT || vm->verb == VERB_UNDO || vm->verb == VERB_RESUME;
    bool tell = (ran || (vm->died && vm->verb == VERB_NONE)) && !vm->kills;

    if (!vm->reason[0])
        (void)snprintf(vm->reason, sizeof(vm->reason), "%.255s", vm->err.text);
    if (vm->vmm.jail.jailed)
        fc_uid_release(b, vm->vmm.jail.uid);
    take_verb_answer(vm, &a);
    a.kills = TAKE_PTR(vm->kills);
    memcpy(id, vm->id, sizeof(id));
    memcpy(reason, vm->reason, sizeof(reason));
    fc_vm_free(vm);
    give(&a);
    if (tell && b->gone)
        b->gone(id, reason, b->userdata);
}

/* ---- the end ---- */

/* SIGKILL was sent long ago: whoever waits is told, the record stays until the process goes. */
static int on_kill_late(struct source *s _unused_, uint64_t now_usec _unused_, void *userdata)
{
    struct fc_vm *vm = userdata;
    struct answer a = {0};

    vm->kill_late = source_free(vm->kill_late);
    (void)error_set(&a.kill_err, ETIMEDOUT, "Firecracker of '%s' (pid %d) does not die", vm->id,
                    (int)vm->vm.pid);
    if (vm->verb != VERB_NONE && !vm->err.errnum)
        error_copy(&vm->err, &a.kill_err);
    take_verb_answer(vm, &a);
    a.kills = TAKE_PTR(vm->kills);
    vm->saved = false;
    give(&a);
    return 0;
}

void fc_vm_end(struct fc_vm *vm, const struct error *err)
{
    if (err && vm->verb != VERB_NONE && !vm->err.errnum)
        error_copy(&vm->err, err);
    forget_requests(vm);
    if (vm->phase == FC_ENDING || vm->phase == FC_CLEANING || vm->busy)
        return;
    if (vm->vmm.pidfd < 0 || !vm->child) {
        /* Nobody will tell when it is gone; the worker waits for it. */
        fc_vm_clean(vm);
        return;
    }
    vm->phase = FC_ENDING;
    (void)pidfd_send_signal(vm->vmm.pidfd, SIGKILL, NULL, 0);
    (void)loop_add_timer(vm->b->loop, "firecracker-kill", clock_now_usec() + KILL_LATE_USEC,
                         on_kill_late, vm, &vm->kill_late);
}

static int on_child(struct source *s _unused_, const siginfo_t *info, void *userdata)
{
    struct fc_vm *vm = userdata;
    struct error err = {0};
    bool by_itself = vm->phase != FC_ENDING;

    forget_process(vm);
    vm->kill_late = source_free(vm->kill_late);
    if (by_itself) {
        vm->died = true;
        if (!vm->reason[0])
            serial_reason(vm->vm.log_path, info, "Firecracker", vm->reason, sizeof(vm->reason));
        (void)error_set_code(&err, ERR_BACKEND_FAILED, "'%s': %s", vm->id, vm->reason);
        fc_vm_end(vm, &err);
        return 0;
    }
    fc_vm_clean(vm);
    return 0;
}

int fc_vm_watch(struct fc_vm *vm)
{
    return loop_add_child(vm->b->loop, "firecracker-process", vm->vmm.pidfd, on_child, vm,
                          &vm->child);
}

int fc_vm_kill(struct fc_vm *vm, backend_done_fn done, void *userdata)
{
    struct fc_kill_wait *k = calloc(1, sizeof(*k));
    struct error err = {0};

    if (!k)
        return -ENOMEM;
    *k = (struct fc_kill_wait){.done = done, .userdata = userdata, .next = vm->kills};
    vm->kills = k;
    if (vm->cancel_fd >= 0)
        (void)eventfd_write(vm->cancel_fd, 1);
    (void)error_set(&err, ECANCELED, "'%s' was given up", vm->id);
    fc_vm_end(vm, &err);
    return 0;
}

/* ---- requests ---- */

/* A request of the verb failed: what becomes of the VM. */
static void on_failure(struct fc_vm *vm, long status, const struct error *err)
{
    bool first = vm->next_request == 0;

    forget_requests(vm);
    if (vm->verb != VERB_SNAPSHOT || (first && status < 400)) {
        fc_vm_end(vm, err);
    } else if (first) {
        /* The pause was refused. A resume without one would silence the vsock device. */
        error_copy(&vm->err, err);
        vm->phase = FC_RUNNING;
        fc_vm_answer(vm);
    } else {
        fc_vm_undo(vm, err);
    }
}

static void on_answer(long status, const json_t *answer, const struct error *err, void *userdata)
{
    struct fc_vm *vm = userdata;

    vm->call = NULL;
    if (vm->verb == VERB_LOOK) {
        forget_requests(vm);
        fc_vm_adopted(vm, answer);
    } else if (err) {
        struct error why = *err;

        error_wrap(&why, "'%s'", vm->id);
        on_failure(vm, status, &why);
    } else {
        vm->next_request++;
        fc_vm_call(vm);
    }
}

void fc_vm_answer(struct fc_vm *vm)
{
    struct answer a = {0};

    take_verb_answer(vm, &a);
    give(&a);
}

static void succeed(struct fc_vm *vm)
{
    forget_requests(vm);
    if (vm->verb == VERB_SAVE) {
        vm->saved = true;
        fc_vm_end(vm, NULL);
    } else if (vm->verb == VERB_SNAPSHOT) {
        fc_vm_copy(vm);
    } else {
        vm->phase = FC_RUNNING;
        fc_vm_answer(vm);
    }
}

void fc_vm_call(struct fc_vm *vm)
{
    struct error err = {0};
    struct fc_request *q = &vm->requests[vm->next_request];
    char socket[108];

    vm->phase = FC_CALLING;
    if (vm->next_request == vm->n_requests) {
        succeed(vm);
        return;
    }
    fc_jail_path(&vm->vmm.jail, FC_API_SOCKET, socket);
    if (fc_client_call(vm->b->client, socket, q->method, q->path, TAKE_PTR(q->body),
                       vm->deadline_usec, on_answer, vm, &vm->call, &err) < 0)
        fc_vm_end(vm, &err);
}
