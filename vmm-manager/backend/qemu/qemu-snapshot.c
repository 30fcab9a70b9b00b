#include "backend/qemu/qemu-snapshot.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "backend/qemu/qemu-memory.h"
#include "backend/qemu/qemu-qmp.h"
#include "backend/qemu/qemu-root.h"
#include "backend/qemu/qemu-state.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"

/* The console can move a few bytes into a guest that stands still, until its buffers are full. */
#define TRIES 8

static int check_step(void *userdata, struct error *err)
{
    return verb_check(userdata, err);
}

/* The VM's memory; the descriptor keeps the pid from being another's. */
static int find_memory(struct driver *d, const char *id, struct memory *ret, int *ret_pidfd,
                       struct error *err)
{
    _cleanup_(ram_cleanup) struct ram ram = {0};
    pid_t pid;
    _cleanup_close_ int fd = root_open_vm(driver_root(d), id, &pid);
    int r;

    if (fd < 0)
        return error_set(err, ESRCH, "'%s' does not run", id);
    r = process_ram(pid, &ram, err);
    if (r >= 0)
        r = memory_find(pid, &ram, ret, err);
    if (r >= 0)
        *ret_pidfd = TAKE_FD(fd);
    return r;
}

int snapshot_install(struct driver *d, struct verb_request *q, struct error *err)
{
    const struct memory_check check = {.fn = check_step, .userdata = q};
    _cleanup_close_ int pidfd = -EBADF;
    struct memory m;
    int r;

    r = find_memory(d, q->id, &m, &pidfd, err);
    if (r < 0)
        return r;
    /* In this order: whoever cancels and then finds nobody reading may free the pages. */
    q->reads_pages = true;
    r = verb_check(q, err);
    if (r >= 0)
        r = memory_install(&m, q->pages, &check, err);
    q->reads_pages = false;
    return r;
}

static int same_queues(const char *a, const char *b, bool *ret, struct error *err)
{
    _cleanup_free_ char *data_a = NULL, *data_b = NULL;
    size_t size_a, size_b;
    int r;

    r = file_read(a, STATE_MAX, &data_a, &size_a, err);
    if (r >= 0)
        r = file_read(b, STATE_MAX, &data_b, &size_b, err);
    if (r >= 0)
        *ret = state_same_queues(data_a, size_a, data_b, size_b);
    return r;
}

/*
 * Device state and memory must be of one moment. vCPUs and disks stand still, but what arrives on
 * the console still goes through a queue in guest memory: so the state is written again afterwards,
 * which takes a millisecond, and must have its queues in the same place.
 */
static int write_both(const struct verb_request *q, virDomainPtr dom, const struct memory *m,
                      struct error *err)
{
    const struct memory_check check = {.fn = check_step, .userdata = (void *)(uintptr_t)q};
    _cleanup_free_ char *again = string_printf("%s.again", q->state_file);
    _cleanup_close_ int fd = -EBADF;
    bool same = false;
    int r;

    if (!again)
        return error_set(err, ENOMEM, "out of memory");
    r = qmp_save_devices(dom, q->state_file, err);
    for (int i = 0; r >= 0 && !same && i < TRIES; i++) {
        fd = fd_close(fd);
        fd = open(q->memory_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (fd < 0)
            return error_set(err, errno, "create '%s': %s", q->memory_file, errno_text(errno));
        r = memory_save_changed(m, fd, &check, NULL, err);
        if (r >= 0)
            r = qmp_save_devices(dom, again, err);
        if (r >= 0)
            r = same_queues(q->state_file, again, &same, err);
        if (r >= 0 && rename(again, q->state_file) < 0)
            r = error_set(err, errno, "write '%s': %s", q->state_file, errno_text(errno));
    }
    (void)unlink(again);
    if (r >= 0 && !same)
        return error_set(err, EAGAIN, "'%s' does not stand still: its console is too busy", q->id);
    return r;
}

int verb_snapshot(struct driver *d, const struct verb_request *q, struct error *err)
{
    _cleanup_domain_ virDomainPtr dom = NULL;
    _cleanup_close_ int pidfd = -EBADF;
    struct memory m;
    int r;

    r = verb_find(d, q->id, &dom, err);
    if (r >= 0)
        r = find_memory(d, q->id, &m, &pidfd, err);
    if (r >= 0)
        r = verb_check(q, err);
    if (r < 0)
        return r;
    if (virDomainSuspend(dom) < 0)
        return driver_error(err, "pause", q->id);
    r = write_both(q, dom, &m, err);
    if (r < 0) {
        (void)unlink(q->state_file);
        (void)unlink(q->memory_file);
        (void)virDomainResume(dom);
    }
    return r;
}
