#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/firecracker/fc-private.h"
#include "backend/firecracker/fc-zero.h"
#include "base/clock.h"
#include "base/strv.h"

/*
 * Snapshots of running VMs. Firecracker writes the device state and the pages that changed since
 * the last snapshot; the latter over a file in the jail that stays there, so that it always holds
 * all that changed since the VM was loaded. Whoever asked gets a copy.
 *
 * A snapshot ends all vsock connections: they are to be made anew after resume(). Without a
 * snapshot a pause would leave the vsock device deaf for good (Firecracker 1.16), so there is none.
 */
#define UNDO_USEC (500 * USEC_PER_MSEC) /* a process that does not answer by then is ended */
#define RESUME_USEC (5 * USEC_PER_SEC)
#define LOOK_USEC (2 * USEC_PER_SEC)

/* Requests that were built, or an error. */
static int start(struct fc_vm *vm, enum fc_verb verb, int n_requests, uint64_t deadline_usec)
{
    if (n_requests < 0)
        return n_requests;
    vm->n_requests = n_requests;
    vm->next_request = 0;
    vm->verb = verb;
    vm->deadline_usec = deadline_usec;
    fc_vm_call(vm);
    return 0;
}

static int check_phase(const struct fc_vm *vm, enum fc_phase wanted)
{
    if (vm->phase == FC_ENDING || vm->phase == FC_CLEANING)
        return -ESRCH;
    return vm->phase == wanted ? 0 : -EBUSY;
}

int fc_vm_snapshot(struct fc_vm *vm, const char *state_file, const char *memory_file,
                   uint64_t deadline_usec, backend_done_fn done, void *userdata)
{
    int r = check_phase(vm, FC_RUNNING);

    if (r < 0)
        return r;
    if (string_set(&vm->state_file, state_file) < 0 ||
        string_set(&vm->changed_file, memory_file) < 0)
        return -ENOMEM;
    vm->on_done = done;
    vm->userdata = userdata;
    return start(vm, VERB_SNAPSHOT, fc_machine_snapshot(!vm->vmm.restored, vm->requests),
                 deadline_usec);
}

int fc_vm_resume(struct fc_vm *vm, backend_done_fn done, void *userdata)
{
    int r = check_phase(vm, FC_PAUSED);

    if (r < 0)
        return r;
    vm->on_done = done;
    vm->userdata = userdata;
    return start(vm, VERB_RESUME, fc_machine_resume(vm->requests), clock_now_usec() + RESUME_USEC);
}

void fc_vm_undo(struct fc_vm *vm, const struct error *err)
{
    int r;

    error_copy(&vm->err, err);
    r = start(vm, VERB_UNDO, fc_machine_resume(vm->requests), clock_now_usec() + UNDO_USEC);
    if (r < 0)
        fc_vm_end(vm, NULL);
}

/* ---- copy ---- */

struct copy_job {
    struct fc_vm *vm; /* weak, not for the worker; lives while the job does */
    struct fc_jail jail;
    bool restored;
    char *state_file, *changed_file; /* owned */
    struct error err;
};

static void copy_free(struct copy_job *job)
{
    free(job->state_file);
    free(job->changed_file);
    free(job);
}

static void copy_run(void *userdata)
{
    struct copy_job *job = userdata;
    int r;

    r = fc_jail_take_out(&job->jail, FC_NAME_NEW_STATE, job->state_file, &job->err);
    if (r >= 0)
        r = fc_jail_copy_out(&job->jail, FC_NAME_CHANGED, job->changed_file, &job->err);
    if (r >= 0 && !job->restored) /* all of the memory, whose zeros are what it was before */
        r = fc_zero_punch(job->changed_file, &job->err);
    if (r < 0) {
        (void)unlink(job->state_file);
        (void)unlink(job->changed_file);
    }
}

static void copy_done(void *userdata, int cancelled)
{
    struct copy_job *job = userdata;
    struct fc_vm *vm = job->vm;

    vm->busy = false;
    if (cancelled)
        (void)error_set(&job->err, ECANCELED, "'%s': the daemon ends", vm->id);
    if (vm->err.errnum || vm->kills) {
        fc_vm_end(vm, NULL); /* it died, or is wanted dead, meanwhile */
    } else if (job->err.errnum) {
        fc_vm_undo(vm, &job->err);
    } else {
        vm->phase = FC_PAUSED;
        fc_vm_answer(vm);
    }
    copy_free(job);
}

void fc_vm_copy(struct fc_vm *vm)
{
    struct copy_job *job = calloc(1, sizeof(*job));
    struct error err = {0};
    int r = -ENOMEM;

    if (job) {
        job->vm = vm;
        job->jail = vm->vmm.jail;
        job->restored = vm->vmm.restored;
        if (string_set(&job->state_file, vm->state_file) >= 0 &&
            string_set(&job->changed_file, vm->changed_file) >= 0)
            r = workers_submit(vm->b->workers, copy_run, copy_done, job);
    }
    if (r < 0) {
        if (job)
            copy_free(job);
        (void)error_set(&err, -r, "'%s': copy the snapshot: %s", vm->id, errno_text(-r));
        fc_vm_undo(vm, &err);
        return;
    }
    vm->phase = FC_COPYING;
    vm->busy = true;
}

/* ---- adoption ---- */

int fc_vm_adopt(struct fc_vm *vm, backend_vm_fn done, void *userdata)
{
    vm->on_vm = done;
    vm->userdata = userdata;
    return start(vm, VERB_LOOK, fc_machine_look(vm->requests), clock_now_usec() + LOOK_USEC);
}

void fc_vm_adopted(struct fc_vm *vm, const json_t *answer)
{
    const char *state = json_string_value(json_object_get(answer, "state"));
    int r;

    /* One that does not answer runs perhaps; its guest will tell. */
    if (!state || strcmp(state, "Paused") != 0) {
        vm->phase = FC_RUNNING;
        fc_vm_answer(vm);
        return;
    }
    r = start(vm, VERB_WAKE, fc_machine_wake(!vm->vmm.restored, vm->requests),
              clock_now_usec() + RESUME_USEC);
    if (r < 0) {
        struct error err = {0};

        (void)error_set(&err, -r, "'%s': %s", vm->id, errno_text(-r));
        fc_vm_end(vm, &err);
    }
}
