#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/pidfd.h>

#include "backend/qemu/qemu-private.h"
#include "backend/qemu/qemu-root.h"
#include "base/clock.h"
#include "base/fd.h"

/* After the deadline libvirt gets this long to notice that its QEMU was killed. */
#define GRACE_USEC (2 * USEC_PER_SEC)
#define READING_USEC (100 * USEC_PER_MSEC)
/* A QEMU that dies closes its monitor a moment before it is gone. */
#define ENDED_MSEC 200

/*
 * One verb on its way through a worker. The loop owns it; the worker sees `driver`, `request` and
 * the result fields only. At the deadline the loop kills the VM's process, which frees a worker
 * stuck in libvirt; should even that not help, the answer goes out and the job ends whenever it
 * ends.
 */
struct job {
    struct vm *vm; /* weak; lives while the job does */
    enum job_kind kind;
    struct driver *driver; /* ref */
    struct verb_request request;
    backend_vm_fn on_vm;     /* NULL once called */
    backend_done_fn on_done; /* the same */
    void *userdata;
    struct source *watchdog; /* owned */
    bool late;               /* the watchdog saw the deadline pass */
    bool killed;             /* by the watchdog */
    bool gave_up;            /* the watchdog has answered that it failed */
    /* result */
    struct backend_vm result;
    int pidfd; /* owned */
    struct error err;
    struct error late_err; /* of a restored VM's resume, after `early` was posted */
};

void job_cancel(struct job *job)
{
    job->request.cancel = true;
}

static void job_free(struct job *job)
{
    job->watchdog = source_free(job->watchdog);
    job->pidfd = fd_close(job->pidfd);
    verb_request_done(&job->request);
    free(job);
}

/* Calls whoever waits, once. */
static void answer(struct job *job, const struct error *err)
{
    backend_vm_fn on_vm = TAKE_PTR(job->on_vm);
    backend_done_fn on_done = TAKE_PTR(job->on_done);

    if (on_vm)
        on_vm(err ? NULL : &job->result, err, job->userdata);
    if (on_done)
        on_done(err, job->userdata);
}

/* On the loop, while the worker goes on: the restored VM is there, whoever waits may talk to it. */
static void on_early(void *userdata)
{
    struct job *job = userdata;
    int r;

    if (job->vm->kills)
        return;
    r = vm_watch_consume(job->vm, &job->result, TAKE_FD(job->pidfd));
    if (r >= 0)
        answer(job, NULL);
    else
        (void)error_fill(&job->err, r, "watch QEMU of '%s'", job->vm->id);
}

/* Whether the VM's process is gone, or goes right now. */
static bool has_ended(const struct job *job)
{
    _cleanup_close_ int fd = root_open_vm(driver_root(job->driver), job->request.id, NULL);
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return fd < 0 || poll(&p, 1, ENDED_MSEC) > 0;
}

/*
 * libvirt answers a resume some 20 ms after the guest runs, because QEMU and the guest are busy
 * with each other then. Nobody waits for that: a failure ends the VM as if it had ended by itself.
 */
static void run_start(struct job *job)
{
    struct verb_request *q = &job->request;

    if (verb_start(job->driver, q, &job->result, &job->pidfd, &job->err) < 0 || !q->state_file)
        return;
    (void)loop_post(job->vm->b->loop, on_early, job);
    if (verb_resume(job->driver, q->id, &job->late_err) < 0 && has_ended(job))
        error_clear(&job->late_err); /* no failure of its own: the loop tells of the end */
}

static void job_run(void *userdata)
{
    struct job *job = userdata;
    const struct verb_request *q = &job->request;
    struct driver *d = job->driver;

    switch (job->kind) {
    case JOB_START:
        run_start(job);
        return;
    case JOB_SAVE:
        (void)verb_save(d, q, &job->err);
        return;
    case JOB_SNAPSHOT:
        (void)verb_snapshot(d, q, &job->err);
        return;
    case JOB_PAUSE:
        (void)verb_pause(d, q->id, &job->err);
        return;
    case JOB_RESUME:
        (void)verb_resume(d, q->id, &job->err);
        return;
    case JOB_ADOPT:
        (void)verb_adopt(d, q, &job->result, &job->pidfd, &job->err);
        return;
    }
}

/* The process of a saved VM is gone. */
static void on_saved_gone(const struct error *err, void *userdata)
{
    struct job *job = userdata;

    if (err && !job->err.errnum)
        error_copy(&job->err, err);
    answer(job, job->err.errnum ? &job->err : NULL);
    job_free(job);
}

/* The VM as the worker found or made it comes under the loop's eyes, if on_early() has not done so.
 */
static void take_result(struct job *job)
{
    struct vm *vm = job->vm;
    int r;

    if (!job->err.errnum && job->pidfd >= 0) {
        r = vm_watch_consume(vm, &job->result, TAKE_FD(job->pidfd));
        (void)error_fill(&job->err, r, "watch QEMU of '%s'", vm->id);
        if (r >= 0 && vm->kills)
            (void)error_set(&job->err, ECANCELED, "'%s' was given up", vm->id);
    }
    if (job->late_err.errnum && !job->on_vm && !vm->died)
        (void)snprintf(vm->reason, sizeof(vm->reason), "%.255s", job->late_err.text);
    else if (job->late_err.errnum && job->on_vm && !job->err.errnum)
        error_copy(&job->err, &job->late_err);
}

static void job_done(void *userdata, int cancelled)
{
    struct job *job = userdata;
    struct vm *vm = job->vm;
    bool starts = job->kind == JOB_START || job->kind == JOB_ADOPT;

    job->watchdog = source_free(job->watchdog);
    vm->job = NULL;
    if (cancelled)
        (void)error_set(&job->err, ECANCELED, "'%s': the daemon ends", vm->id);
    take_result(job);
    if (job->kind == JOB_SAVE && !cancelled) {
        if (vm_kill(vm, on_saved_gone, job) >= 0) {
            vm_settle(vm);
            return;
        }
        (void)error_set(&job->err, ENOMEM, "out of memory");
    }
    if (starts && job->on_vm && !job->err.errnum) {
        /* Answered while the record is quiet: the answer may bring a kill or the next verb. */
        answer(job, NULL);
        job_free(job);
        return;
    }
    if (starts && (job->on_vm || job->gave_up) && vm->pidfd >= 0 && !vm->kills)
        (void)vm_kill(vm, NULL, NULL); /* started, but of no use */
    vm_settle(vm);
    answer(job, job->err.errnum ? &job->err : NULL);
    job_free(job);
}

static int on_watchdog(struct source *s, uint64_t now_usec, void *userdata)
{
    struct job *job = userdata;
    bool late = job->late;

    job->late = true;
    job_cancel(job);
    /* A snapshot that takes too long must not cost the VM, unless QEMU hangs. */
    if (!late && job->kind == JOB_SNAPSHOT)
        return source_set_time(s, now_usec + GRACE_USEC);
    if (!job->killed) {
        _cleanup_close_ int fd =
            root_open_vm(driver_root(job->driver), job->request.id, /* ret_pid= */ NULL);

        job->killed = true;
        if (fd >= 0 && job->kind != JOB_ADOPT)
            (void)pidfd_send_signal(fd, SIGKILL, NULL, 0);
        return source_set_time(s, now_usec + GRACE_USEC);
    }
    if (job->request.reads_pages) /* which are gone after the answer */
        return source_set_time(s, now_usec + READING_USEC);
    if (job->on_vm || job->on_done) {
        struct error err = {0};

        (void)error_set(&err, ETIMEDOUT, "'%s': libvirt does not answer", job->request.id);
        job->gave_up = true;
        answer(job, &err);
    }
    return 0;
}

static int submit(struct job *job)
{
    int r;

    r = workers_submit(job->vm->b->workers, job_run, job_done, job);
    if (r >= 0)
        job->vm->job = job;
    return r;
}

int job_submit_consume(struct vm *vm, enum job_kind kind, struct verb_request *q,
                       backend_vm_fn on_vm, backend_done_fn on_done, void *userdata)
{
    struct backend_qemu *b = vm->b;
    struct job *job = calloc(1, sizeof(*job));
    int r;

    if (!job) {
        verb_request_done(q);
        return -ENOMEM;
    }
    job->vm = vm;
    job->kind = kind;
    job->driver = b->driver;
    job->request = *q;
    job->on_vm = on_vm;
    job->on_done = on_done;
    job->userdata = userdata;
    job->pidfd = -EBADF;
    r = loop_add_timer(b->loop, "qemu-deadline", q->deadline_usec, on_watchdog, job,
                       &job->watchdog);
    if (r >= 0 && !vm->job) {
        r = submit(job);
    } else if (r >= 0) {
        bool answered = !vm->job->on_vm && !vm->job->on_done;

        r = answered && !vm->queued ? 0 : -EBUSY;
        if (r >= 0)
            vm->queued = job;
    }
    if (r < 0)
        job_free(job);
    return r;
}

void job_unqueue(struct vm *vm)
{
    struct job *job = TAKE_PTR(vm->queued);
    int r = vm->pidfd < 0 ? -ESRCH : submit(job);

    if (r >= 0)
        return;
    (void)error_set(&job->err, -r, "'%s': %s", vm->id,
                    vm->pidfd < 0 ? "the VM has ended" : errno_text(-r));
    vm_settle(vm);
    answer(job, &job->err);
    job_free(job);
}

void job_drop(struct job *job)
{
    job_free(job);
}
