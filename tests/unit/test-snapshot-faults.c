#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "harness/test.h"
#include "snapshot-fixture.h"
#include "store/step.h"

/*
 * Every step of every change of the store fails once, with ENOSPC and EIO in turns, and the process
 * is killed once at each: what was there stays whole, what was to come is whole or not there.
 */

static const unsigned pages[] = {0, 1, 2, 5, 255, 256, 700, 1023};
static const unsigned more[] = {1, 300};

struct stage {
    struct fixture f;
    char a[MANIFEST_ID_SIZE], b[MANIFEST_ID_SIZE]; /* b lies over a */
    char made[MANIFEST_ID_SIZE];
};

typedef int (*deed_fn)(struct stage *s, struct error *err);

static int do_seal(struct stage *s, struct error *err)
{
    return fixture_try(&s->f, s->b, more, ARRAY_SIZE(more), s->made, err);
}

static int do_flatten(struct stage *s, struct error *err)
{
    return snapshot_flatten(s->f.store, s->b, NULL, NULL, err);
}

static int do_compress(struct stage *s, struct error *err)
{
    return snapshot_compress(s->f.store, s->b, NULL, NULL, err);
}

static int do_remove_parent(struct stage *s, struct error *err)
{
    return snapshot_remove(s->f.store, s->a, err);
}

static int do_remove(struct stage *s, struct error *err)
{
    return snapshot_remove(s->f.store, s->b, err);
}

static const struct deed {
    const char *name;
    deed_fn fn;
    bool removes;
} deeds[] = {
    {"seal", do_seal, false},         {"flatten", do_flatten, false},
    {"compress", do_compress, false}, {"remove a parent", do_remove_parent, false},
    {"remove", do_remove, true},
};

static void stage_init(struct stage *s, const char *name)
{
    memset(s, 0, sizeof(*s));
    fixture_init(&s->f, name);
    for (size_t i = 0; i < ARRAY_SIZE(pages); i++)
        fixture_page(&s->f, pages[i], i == 4 ? 0 : 50);
    fixture_snapshot(&s->f, NULL, pages, ARRAY_SIZE(pages), s->a);
    fixture_page(&s->f, 1, 51);
    fixture_page(&s->f, 300, 51);
    fixture_snapshot(&s->f, s->a, more, ARRAY_SIZE(more), s->b);
}

struct trap {
    unsigned at, seen;
    int result; /* errno to return; 0: kill */
};

static int on_step(const char *step, void *userdata)
{
    struct trap *t = userdata;

    (void)step;
    if (++t->seen != t->at)
        return 0;
    if (t->result == 0)
        (void)kill(getpid(), SIGKILL);
    return -t->result;
}

static void whole_or_gone(struct stage *s, const char *id, bool may_go, const char *what)
{
    struct error err = {0};

    if (fixture_check(&s->f, id, &err) < 0 && !(may_go && err.code == ERR_SNAPSHOT_NOT_FOUND))
        test_fail(__FILE__, __LINE__, "%s: %s", what, err.text);
}

static void forget(const struct snapshot_info *info, void *userdata)
{
    char(*ids)[MANIFEST_ID_SIZE] = userdata;

    for (unsigned i = 0; i < 8; i++)
        if (ids[i][0] == '\0') {
            memcpy(ids[i], info->id, MANIFEST_ID_SIZE);
            return;
        }
}

/* After a fault: all that is listed is whole, and nothing else is in the directory. */
static void inspect(struct stage *s, const struct deed *d, unsigned n, const char *how)
{
    char ids[8][MANIFEST_ID_SIZE] = {0};
    char what[128];

    (void)snprintf(what, sizeof(what), "%s, %s at step %u", d->name, how, n);
    whole_or_gone(s, s->b, d->removes, what);
    ASSERT_OK(snapshot_each(s->f.store, forget, ids, NULL));
    for (unsigned i = 0; i < 8 && ids[i][0]; i++) {
        struct error err = {0};

        if (snapshot_verify(s->f.store, ids[i], NULL, NULL, &err) < 0)
            test_fail(__FILE__, __LINE__, "%s: %s", what, err.text);
    }
}

static unsigned count_steps(const struct deed *d, const char *name)
{
    struct stage s;
    struct trap trap = {0};
    struct error err = {0};

    stage_init(&s, name);
    store_step_listen(on_step, &trap);
    if (d->fn(&s, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s: %s", d->name, err.text);
    store_step_listen(NULL, NULL);
    inspect(&s, d, 0, "nothing");
    fixture_done(&s.f);
    return trap.seen;
}

static void one_error(const struct deed *d, unsigned n, int errnum, const char *name)
{
    struct stage s;
    struct trap trap = {.at = n, .result = errnum};
    struct error err = {0};
    size_t entries;
    int r;

    stage_init(&s, name);
    entries = fixture_entries(&s.f);
    store_step_listen(on_step, &trap);
    r = d->fn(&s, &err);
    store_step_listen(NULL, NULL);
    inspect(&s, d, n, errnum == EIO ? "EIO" : "ENOSPC");
    if (r < 0 && !d->removes && fixture_entries(&s.f) != entries)
        test_fail(__FILE__, __LINE__, "%s failed at step %u and left something", d->name, n);
    if (r < 0 && err.text[0] == '\0')
        test_fail(__FILE__, __LINE__, "%s failed at step %u and does not say why", d->name, n);
    fixture_reopen(&s.f);
    inspect(&s, d, n, "an error and a restart");
    if (r < 0 && !d->removes)
        ASSERT_OK(d->fn(&s, NULL)); /* and then it works */
    fixture_done(&s.f);
}

static void one_kill(const struct deed *d, unsigned n, const char *name)
{
    struct stage s;
    int status;
    pid_t pid;

    stage_init(&s, name);
    pid = fork();
    ASSERT_TRUE(pid >= 0);
    if (pid == 0) {
        struct trap trap = {.at = n};

        store_step_listen(on_step, &trap);
        (void)d->fn(&s, NULL);
        _exit(0);
    }
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    fixture_reopen(&s.f);
    inspect(&s, d, n, "kill -9");
    ASSERT_TRUE(fixture_entries(&s.f) <= 3);
    fixture_done(&s.f);
}

static void clean(const char *name)
{
    char path[256];

    (void)snprintf(path, sizeof(path), "%s/%s", test_tmpdir(), name);
    ASSERT_OK(dir_remove(path, NULL));
}

TEST(errors_and_death_at_every_step)
{
    unsigned errors = 0, kills = 0;

    for (size_t i = 0; i < ARRAY_SIZE(deeds); i++) {
        unsigned steps = count_steps(&deeds[i], "count");

        clean("count");
        ASSERT_TRUE(steps > 0);
        for (unsigned n = 1; n <= steps; n++) {
            one_error(&deeds[i], n, n % 2 ? ENOSPC : EIO, "step");
            clean("step");
            one_kill(&deeds[i], n, "step");
            clean("step");
            errors++;
            kills++;
        }
        printf("  %s: %u steps\n", deeds[i].name, steps);
    }
    printf("  %u errors, %u deaths\n", errors, kills);
}

/* Runs in a child: limits and mounts of its own. */
static void in_child(void (*fn)(void))
{
    int status;
    pid_t pid;

    (void)fflush(stdout); /* not twice */
    pid = fork();

    ASSERT_TRUE(pid >= 0);
    if (pid == 0) {
        fn();
        _exit(0);
    }
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        test_skip("no private mounts here");
    ASSERT_EQ(WEXITSTATUS(status), 0);
}

static void file_size_limit(void)
{
    static const rlim_t limits[] = {16, 300, 4096, 65536, 200000, FIXTURE_DISK / 2};

    (void)sigaction(SIGXFSZ, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
    for (size_t i = 0; i < ARRAY_SIZE(limits); i++)
        for (size_t d = 1; d <= 2; d++) { /* flatten, compress: the files are the store's own */
            struct rlimit old;
            struct stage s;
            int r;

            stage_init(&s, "limit");
            ASSERT_OK(getrlimit(RLIMIT_FSIZE, &old));
            ASSERT_OK(setrlimit(RLIMIT_FSIZE, &(struct rlimit){limits[i], old.rlim_max}));
            r = deeds[d].fn(&s, NULL);
            ASSERT_OK(setrlimit(RLIMIT_FSIZE, &old));
            ASSERT_TRUE(r < 0 || limits[i] > 4096);
            inspect(&s, &deeds[d], 0, "RLIMIT_FSIZE");
            ASSERT_EQ(fixture_entries(&s.f), 2);
            fixture_done(&s.f);
            clean("limit");
        }
}

TEST(a_limit_of_file_sizes_leaves_the_store_whole)
{
    in_child(file_size_limit);
}

static void full_disk(void)
{
    unsigned full = 0, done = 0;

    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        _exit(77);
    for (size_t d = 0; d < 3; d++)
        for (unsigned spare = 0; spare <= 2400; spare += 150) {
            char path[128], options[64], filler[160];
            struct stage s;
            struct error err = {0};
            int r, fd;
            off_t room;

            (void)snprintf(path, sizeof(path), "%s/full", test_tmpdir());
            ASSERT_OK(dir_create(path, 0700, NULL));
            (void)snprintf(options, sizeof(options), "size=24m");
            ASSERT_OK(mount("tmpfs", path, "tmpfs", 0, options));
            stage_init(&s, "full");
            /* Fill it up to `spare` KiB. */
            (void)snprintf(filler, sizeof(filler), "%s/filler", path);
            fd = open(filler, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
            ASSERT_TRUE(fd >= 0);
            for (room = 0; fallocate(fd, 0, room, 4096) == 0; room += 4096)
                ;
            ASSERT_OK(
                ftruncate(fd, room - (off_t)spare * 1024 > 0 ? room - (off_t)spare * 1024 : 0));
            r = deeds[d].fn(&s, &err);
            ASSERT_TRUE(r >= 0 || r == -ENOSPC);
            full += r < 0;
            done += r >= 0;
            ASSERT_OK(ftruncate(fd, 0));
            ASSERT_OK(close(fd));
            inspect(&s, &deeds[d], spare, "a full disk");
            ASSERT_EQ(fixture_entries(&s.f), 2 + (d == 0 && r >= 0));
            fixture_done(&s.f);
            ASSERT_OK(umount(path));
        }
    printf("  %u times full, %u times enough room\n", full, done);
    ASSERT_TRUE(full > 10 && done > 3);
    (void)fflush(stdout);
}

TEST(a_full_disk_leaves_the_store_whole)
{
    in_child(full_disk);
}
