#include "faults/fc-bench.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/strv.h"
#include "base/worker.h"

struct seen gone_seen;

static void on_gone(const char *id, const char *reason, void *userdata)
{
    (void)id;
    (void)userdata;
    gone_seen.gone++;
    (void)snprintf(gone_seen.err.text, sizeof(gone_seen.err.text), "%s", reason);
}

void on_vm(const struct backend_vm *vm, const struct error *err, void *userdata)
{
    struct seen *seen = userdata;

    seen->calls++;
    if (err)
        seen->err = *err;
    else
        seen->vm = *vm;
}

void on_done(const struct error *err, void *userdata)
{
    struct seen *seen = userdata;

    seen->calls++;
    if (err)
        seen->err = *err;
}

void in_tmp(const char *name, char *path, size_t size)
{
    (void)snprintf(path, size, "%s/%s", test_tmpdir(), name);
}

void plan(int call, const char *fault)
{
    char path[200], text[64];

    in_tmp("plan", path, sizeof(path));
    (void)snprintf(text, sizeof(text), "%d %s\n", call, fault);
    ASSERT_OK(file_write_atomic(path, text, strlen(text), 0600, NULL));
}

void install_stand_in(void)
{
    static bool done;
    char path[200];

    if (done)
        return;
    done = true;
    log_set_level(getenv("HEARTH_TEST_LOG") ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR);
    in_tmp("firecracker", path, sizeof(path));
    ASSERT_OK(file_copy_sparse(STAND_IN, path, 0755, NULL));
    (void)setenv("HEARTH_FIRECRACKER", path, 1);
    (void)setenv("HEARTH_JAILER", "/nonexistent", 1);
    (void)setenv("HEARTH_FC_POOL", "0", 0);
    ASSERT_OK(prctl(PR_SET_CHILD_SUBREAPER, 1));
}

void make_files(struct bench *b)
{
    static const char *const names[] = {"image", "disk", "kernel", "initramfs", "memory", "state"};

    for (int i = 0; i < 6; i++) {
        (void)snprintf(b->file[i], sizeof(b->file[i]), "%s/f-%s", b->state, names[i]);
        ASSERT_OK(file_write_atomic(b->file[i], "x", 1, 0644, NULL));
    }
    b->spec = (struct vm_spec){
        .id = "vm-1",
        .dir = b->vm_dir,
        .cpus = 1,
        .memory_mib = 128,
        .image = b->file[0],
        .disk = b->file[1],
        .kernel = b->file[2],
        .initramfs = b->file[3],
        .memory_file = b->file[4],
    };
}

void open_backend(struct bench *b)
{
    struct backend_env env = {.state_dir = b->state, .gone = on_gone};
    struct error err = {0};

    ASSERT_OK(loop_new(&b->loop));
    ASSERT_OK(workers_new(b->loop, "w", 2, 64, &b->workers));
    env.loop = b->loop;
    env.workers = b->workers;
    if (backend_firecracker_new(&env, &b->backend, &err) < 0)
        test_fail(__FILE__, __LINE__, "backend: %s", err.text);
}

void close_backend(struct bench *b)
{
    b->backend->ops->quiesce(b->backend);
    b->workers = workers_free(b->workers);
    for (int i = 0; i < 2; i++)
        (void)loop_run_once(b->loop, 0);
    b->backend = b->backend->ops->free(b->backend);
    b->loop = loop_free(b->loop);
}

unsigned count_entries(const char *path)
{
    unsigned n = 0;
    struct dirent *e;
    DIR *d = opendir(path);

    while (d && (e = readdir(d)))
        n += e->d_name[0] != '.';
    if (d)
        (void)closedir(d);
    return n;
}

void bench_begin(struct bench *b)
{
    char pids[200];

    install_stand_in();
    *b = (struct bench){.fds = count_entries("/proc/self/fd")};
    memset(&gone_seen, 0, sizeof(gone_seen));
    in_tmp("pids", pids, sizeof(pids));
    (void)unlink(pids);
    in_tmp("s", b->state, sizeof(b->state));
    (void)snprintf(b->vm_dir, sizeof(b->vm_dir), "%s/vm", b->state);
    ASSERT_OK(dir_create(b->vm_dir, 0700, NULL));
    make_files(b);
    open_backend(b);
}

void wait_for(struct bench *b, const unsigned *count, unsigned wanted)
{
    /* Longer than any verb has: it is to say itself what it waited for. */
    uint64_t until = clock_now_usec() + 2 * GOOD_USEC;

    while (*count < wanted) {
        if (clock_now_usec() > until)
            test_fail(__FILE__, __LINE__, "no answer in time");
        ASSERT_OK(loop_run_once(b->loop, 100 * USEC_PER_MSEC));
    }
}

/* ---- what may be left: nothing ---- */

unsigned count_living(void)
{
    _cleanup_free_ char *text = NULL;
    char path[200], *rest, *line;
    unsigned n = 0;

    in_tmp("pids", path, sizeof(path));
    if (file_read(path, 1u << 20, &text, NULL, NULL) < 0)
        return 0;
    for (rest = text; (line = strsep(&rest, "\n")) != NULL;)
        n += *line && kill((pid_t)strtol(line, NULL, 10), 0) == 0;
    return n;
}

static void assert_nothing_left(const struct bench *b)
{
    char path[256];

    (void)snprintf(path, sizeof(path), "%s/fc/firecracker", b->state);
    ASSERT_EQ(count_entries(path), 0);
    (void)snprintf(path, sizeof(path), "%s/fc/vms", b->state);
    ASSERT_EQ(count_entries(path), 0);
    ASSERT_EQ(count_living(), 0);
}

void bench_end(struct bench *b)
{
    assert_nothing_left(b);
    close_backend(b);
    ASSERT_EQ(count_entries("/proc/self/fd"), b->fds);
    ASSERT_OK(dir_remove(b->state, NULL));
}

/* ---- verbs ---- */

void kill_vm(struct bench *b)
{
    struct seen seen = {0};

    ASSERT_OK(b->backend->ops->kill(b->backend, "vm-1", on_done, &seen));
    wait_for(b, &seen.calls, 1);
    ASSERT_EQ(seen.err.errnum, 0);
}

void boot(struct bench *b, uint64_t timeout_usec, struct seen *seen)
{
    *seen = (struct seen){0};
    ASSERT_OK(
        b->backend->ops->boot(b->backend, &b->spec, clock_now_usec() + timeout_usec, on_vm, seen));
    wait_for(b, &seen->calls, 1);
}

void restore(struct bench *b, uint64_t timeout_usec, struct seen *seen)
{
    const struct vm_saved saved = {.memory_file = b->file[4], .state_file = b->file[5]};

    *seen = (struct seen){0};
    ASSERT_OK(b->backend->ops->restore(b->backend, &b->spec, &saved,
                                       clock_now_usec() + timeout_usec, on_vm, seen));
    wait_for(b, &seen->calls, 1);
}

void save(struct bench *b, uint64_t timeout_usec, struct seen *seen)
{
    *seen = (struct seen){0};
    ASSERT_OK(b->backend->ops->save(b->backend, "vm-1", b->file[5], clock_now_usec() + timeout_usec,
                                    on_done, seen));
    wait_for(b, &seen->calls, 1);
}

void snapshot(struct bench *b, uint64_t timeout_usec, struct seen *seen)
{
    char state[200], memory[200];

    (void)snprintf(state, sizeof(state), "%s/new-state", b->state);
    (void)snprintf(memory, sizeof(memory), "%s/new-memory", b->state);
    (void)unlink(state);
    (void)unlink(memory);
    *seen = (struct seen){0};
    ASSERT_OK(b->backend->ops->snapshot(b->backend, "vm-1", state, memory,
                                        clock_now_usec() + timeout_usec, on_done, seen));
    wait_for(b, &seen->calls, 1);
    ASSERT_EQ(access(state, F_OK) == 0, seen->err.errnum == 0);
    ASSERT_EQ(access(memory, F_OK) == 0, seen->err.errnum == 0);
}

void restore_and_snapshot(struct bench *b, uint64_t timeout_usec, struct seen *seen)
{
    restore(b, timeout_usec, seen);
    ASSERT_EQ(seen->err.errnum, 0);
    snapshot(b, timeout_usec, seen);
}

/* It has its own deadline. */
void resume(struct bench *b, uint64_t timeout_usec _unused_, struct seen *seen)
{
    *seen = (struct seen){0};
    ASSERT_OK(b->backend->ops->resume(b->backend, "vm-1", on_done, seen));
    wait_for(b, &seen->calls, 1);
}
