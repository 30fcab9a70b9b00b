#include <fcntl.h>
#include <jansson.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "harness/test.h"
#include "pager/pager-spawn.h"
#include "pager/working-set.h"
#include "snapshot-fixture.h"

/*
 * hearth-pager without a VMM: a child maps memory, makes a userfaultfd and hands it over as
 * Firecracker does, in two regions that do not lie side by side. Detached pagers come back to this
 * process when their starter has ended, so that it sees the end of all of them.
 */
#define PAGE 4096ull
#define SPLIT 600ull /* pages of the first region */
#define THREADS 4u

struct vmm {
    struct fixture *f;
    uint8_t *low, *high; /* the two regions */
    int uffd, connection;
    const unsigned *pages; /* to touch */
    size_t n_pages;
};

static struct fixture fixture;
static char snapshot_path[300], base_path[300], socket_path[128], stats_path[128], log_path[128];

static uint8_t *vmm_page(const struct vmm *v, uint64_t page)
{
    return page < SPLIT ? v->low + page * PAGE : v->high + (page - SPLIT) * PAGE;
}

static void vmm_map(struct vmm *v)
{
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_EVENT_REMOVE};
    uint64_t sizes[2] = {SPLIT * PAGE, (FIXTURE_PAGES - SPLIT) * PAGE};

    v->uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (v->uffd < 0)
        _exit(77);
    ASSERT_OK(ioctl(v->uffd, UFFDIO_API, &api));
    for (int i = 0; i < 2; i++) {
        uint8_t *at =
            mmap(NULL, sizes[i], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        struct uffdio_register registered = {.range = {.start = (uintptr_t)at, .len = sizes[i]},
                                             .mode = UFFDIO_REGISTER_MODE_MISSING};

        ASSERT_TRUE(at != MAP_FAILED);
        ASSERT_OK(madvise(at, sizes[i], MADV_NOHUGEPAGE));
        ASSERT_OK(ioctl(v->uffd, UFFDIO_REGISTER, &registered));
        *(i ? &v->high : &v->low) = at;
    }
}

static void vmm_connect(struct vmm *v)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    memcpy(address.sun_path, socket_path, strlen(socket_path) + 1);
    v->connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_OK(connect(v->connection, (const struct sockaddr *)&address, sizeof(address)));
}

/* The text, and `fd` beside it unless it is negative. */
static void vmm_send(const struct vmm *v, const char *text, int fd)
{
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    union {
        const char *from;
        char *to;
    } bytes = {.from = text};
    struct iovec io = {.iov_base = bytes.to, .iov_len = strlen(text)};
    struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1};

    if (fd >= 0) {
        message.msg_control = control.space;
        message.msg_controllen = sizeof(control.space);
        control.head = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
    }
    ASSERT_EQ(sendmsg(v->connection, &message, 0), (long long)strlen(text));
}

static void vmm_hand_over(struct vmm *v)
{
    char text[512];

    vmm_map(v);
    (void)snprintf(text, sizeof(text),
                   "[{\"base_host_virt_addr\":%llu,\"size\":%llu,\"offset\":0,\"page_size\":4096,"
                   "\"page_size_kib\":4096},"
                   "{\"base_host_virt_addr\":%llu,\"size\":%llu,\"offset\":%llu,\"page_size\":4096,"
                   "\"page_size_kib\":4096}]",
                   (unsigned long long)(uintptr_t)v->low, SPLIT * PAGE,
                   (unsigned long long)(uintptr_t)v->high, (FIXTURE_PAGES - SPLIT) * PAGE,
                   SPLIT * PAGE);
    vmm_connect(v);
    vmm_send(v, text, v->uffd);
}

/* ---- the test's side ---- */

static void setup(const char *name)
{
    static bool once;

    if (!once)
        ASSERT_OK(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
    once = true;
    fixture_init(&fixture, name);
    (void)snprintf(socket_path, sizeof(socket_path), "%s/uffd.sock", test_tmpdir());
    (void)snprintf(stats_path, sizeof(stats_path), "%s/stats.json", test_tmpdir());
    (void)snprintf(log_path, sizeof(log_path), "%s/log", test_tmpdir());
    (void)unlink(log_path);
    (void)unlink(stats_path);
}

static void use(const char *id)
{
    (void)snprintf(snapshot_path, sizeof(snapshot_path), "%s/%s", fixture.root, id);
    (void)snprintf(base_path, sizeof(base_path), "%s/%s/memory", fixture.templates,
                   fixture.template_id);
}

/* Three over each other, the middle one compressed. */
static void make_chain(char ids[3][MANIFEST_ID_SIZE])
{
    for (unsigned k = 0; k < 3; k++) {
        unsigned pages[200];

        for (unsigned i = 0; i < 200; i++) {
            pages[i] = (k * 311 + i * 5 + i * i) % FIXTURE_PAGES;
            fixture_page(&fixture, pages[i], i % 7 == 3 ? 0 : 60 + k);
        }
        fixture_snapshot(&fixture, k ? ids[k - 1] : NULL, pages, 200, ids[k]);
    }
    ASSERT_OK(snapshot_compress(fixture.store, ids[1], NULL, NULL, NULL));
}

static int start_pager(uint64_t connect_timeout_usec, struct error *err)
{
    struct pager_spawn options = {.program = HEARTH_PAGER,
                                  .socket = socket_path,
                                  .snapshot_dir = snapshot_path,
                                  .base_memory = base_path,
                                  .log_file = log_path,
                                  .stats_file = stats_path,
                                  .uid = getuid(),
                                  .gid = getgid(),
                                  .connect_timeout_usec = connect_timeout_usec};

    return pager_spawn(&options, err);
}

static void must_start(void)
{
    struct error err = {0};

    if (start_pager(0, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s", err.text);
}

static pid_t start_vmm(void (*fn)(struct vmm *v), const struct vmm *like)
{
    pid_t pid;

    (void)fflush(stdout);
    pid = fork();
    ASSERT_TRUE(pid >= 0);
    if (pid == 0) {
        struct vmm v = *like;

        v.f = &fixture;
        fn(&v);
        _exit(0);
    }
    return pid;
}

/* Its status; then nothing may be left of the pager. */
static int wait_all(pid_t vmm)
{
    int status, vmm_status = -1;

    for (;;) {
        pid_t pid = waitpid(-1, &status, 0);

        if (pid < 0)
            break;
        if (pid == vmm)
            vmm_status = status;
    }
    ASSERT_EQ(errno, ECHILD);
    ASSERT_FALSE(file_exists(socket_path));
    if (WIFEXITED(vmm_status) && WEXITSTATUS(vmm_status) == 77)
        test_skip("no userfaultfd here");
    return vmm_status;
}

static long long stat_of(const char *key)
{
    json_t *json = json_load_file(stats_path, 0, NULL);
    long long value;

    ASSERT_TRUE(json_is_integer(json_object_get(json, key)));
    value = json_integer_value(json_object_get(json, key));
    json_decref(json);
    return value;
}

static void log_says(const char *what)
{
    _cleanup_free_ char *text = NULL;

    ASSERT_OK(file_read(log_path, 1 << 20, &text, NULL, NULL));
    if (!strstr(text, what))
        test_fail(__FILE__, __LINE__, "the log says '%s', not '%s'", text, what);
}

/* ---- behaviour ---- */

static int watch_stats(void)
{
    int fd = inotify_init1(IN_CLOEXEC);

    ASSERT_TRUE(fd >= 0);
    ASSERT_OK(inotify_add_watch(fd, test_tmpdir(), IN_MOVED_TO));
    return fd;
}

/* Until its counters say that a fault was served. */
static void wait_for_service(int watch)
{
    while (!file_exists(stats_path) || stat_of("faults") == 0) {
        struct pollfd waited = {.fd = watch, .events = POLLIN};
        char events[4096];

        ASSERT_EQ(poll(&waited, 1, 20000), 1);
        ASSERT_TRUE(read(watch, events, sizeof(events)) > 0);
    }
}

static void *check_quarter(void *userdata)
{
    struct vmm *v = ((void **)userdata)[0];
    uintptr_t start = (uintptr_t)((void **)userdata)[1];

    for (uint64_t i = 0; i < FIXTURE_PAGES; i++) {
        uint64_t page = (i * 389 + start * 97) % FIXTURE_PAGES;

        ASSERT_MEMEQ(vmm_page(v, page), v->f->memory + page * PAGE, PAGE);
    }
    return NULL;
}

/* Every page, in an order of its own for each thread. */
static void vmm_reads_all(struct vmm *v)
{
    pthread_t threads[THREADS];
    void *arguments[THREADS][2];

    vmm_hand_over(v);
    for (uintptr_t i = 0; i < THREADS; i++) {
        arguments[i][0] = v;
        arguments[i][1] = (void *)i;
        ASSERT_EQ(pthread_create(&threads[i], NULL, check_quarter, arguments[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        ASSERT_EQ(pthread_join(threads[i], NULL), 0);
}

TEST(plain_compressed_and_chained_memory_is_served)
{
    char ids[3][MANIFEST_ID_SIZE];

    setup("serve");
    make_chain(ids);
    use(ids[2]);
    must_start();
    ASSERT_EQ(wait_all(start_vmm(vmm_reads_all, &(struct vmm){0})), 0);
    ASSERT_EQ(stat_of("pages"), FIXTURE_PAGES);
    ASSERT_TRUE(stat_of("zeros") > 0);
    ASSERT_OK(snapshot_flatten(fixture.store, ids[2], NULL, NULL, NULL));
    ASSERT_OK(snapshot_compress(fixture.store, ids[2], NULL, NULL, NULL));
    must_start();
    ASSERT_EQ(wait_all(start_vmm(vmm_reads_all, &(struct vmm){0})), 0);
    fixture_done(&fixture);
}

static void vmm_touches(struct vmm *v)
{
    vmm_hand_over(v);
    for (size_t i = 0; i < v->n_pages; i++)
        ASSERT_MEMEQ(vmm_page(v, v->pages[i]), v->f->memory + v->pages[i] * PAGE, PAGE);
}

TEST(a_working_set_is_recorded_once_and_then_installed_in_batches)
{
    char ids[3][MANIFEST_ID_SIZE], path[400];
    unsigned pages[900];
    struct vmm like = {.pages = pages, .n_pages = ARRAY_SIZE(pages)};
    long long before, after;

    setup("record");
    make_chain(ids);
    use(ids[2]);
    for (unsigned i = 0; i < ARRAY_SIZE(pages); i++)
        pages[i] = i * 607 % FIXTURE_PAGES;
    must_start();
    ASSERT_EQ(wait_all(start_vmm(vmm_touches, &like)), 0);
    before = stat_of("faults");
    ASSERT_EQ(before, ARRAY_SIZE(pages));
    ASSERT_EQ(stat_of("recorded"), ARRAY_SIZE(pages));
    ASSERT_EQ(stat_of("prefetched"), 0);
    (void)snprintf(path, sizeof(path), "%s/working-set", snapshot_path);
    ASSERT_TRUE(file_exists(path));
    ASSERT_OK(snapshot_verify(fixture.store, ids[2], NULL, NULL, NULL)); /* no harm to it */

    must_start();
    ASSERT_EQ(wait_all(start_vmm(vmm_touches, &like)), 0);
    after = stat_of("faults");
    ASSERT_EQ(stat_of("recorded"), 0);
    printf("  %lld demand faults, with the working set %lld\n", before, after);
    ASSERT_TRUE(after * 20 <= before);
    ASSERT_TRUE(stat_of("prefetched") > 0);

    /* A damaged one is as none. */
    ASSERT_OK(truncate(path, 100));
    must_start();
    ASSERT_EQ(wait_all(start_vmm(vmm_touches, &like)), 0);
    ASSERT_EQ(stat_of("recorded"), ARRAY_SIZE(pages));
    fixture_done(&fixture);
}

TEST(a_working_set_that_is_too_small_grows)
{
    char ids[3][MANIFEST_ID_SIZE];
    unsigned pages[400];
    struct vmm like = {.pages = pages, .n_pages = 20};
    long long first, second;

    setup("grow");
    make_chain(ids);
    use(ids[2]);
    for (unsigned i = 0; i < ARRAY_SIZE(pages); i++)
        pages[i] = i * 607 % FIXTURE_PAGES;
    must_start();
    ASSERT_EQ(wait_all(start_vmm(vmm_touches, &like)), 0); /* ends early */
    ASSERT_EQ(stat_of("recorded"), 20);
    like.n_pages = ARRAY_SIZE(pages);
    must_start();
    ASSERT_EQ(wait_all(start_vmm(vmm_touches, &like)), 0);
    first = stat_of("faults");
    ASSERT_TRUE(stat_of("recorded") > 20);
    for (int round = 0; round < 3; round++) {
        must_start();
        ASSERT_EQ(wait_all(start_vmm(vmm_touches, &like)), 0);
    }
    second = stat_of("faults");
    printf("  %lld faults, later %lld\n", first, second);
    ASSERT_TRUE(second * 4 < first);
    fixture_done(&fixture);
}

static int go[2];

static void vmm_reads_in_two_parts(struct vmm *v)
{
    char byte;

    vmm_hand_over(v);
    for (uint64_t page = 0; page < FIXTURE_PAGES; page++) {
        if (page == FIXTURE_PAGES / 4)
            ASSERT_EQ(read(go[0], &byte, 1), 1);
        ASSERT_MEMEQ(vmm_page(v, page), v->f->memory + page * PAGE, PAGE);
    }
}

TEST(a_snapshot_may_be_made_anew_and_removed_while_it_is_served)
{
    char ids[3][MANIFEST_ID_SIZE];
    _cleanup_close_ int watch = -EBADF;
    pid_t vmm;

    setup("anew");
    make_chain(ids);
    use(ids[2]);
    watch = watch_stats();
    ASSERT_OK(pipe2(go, O_CLOEXEC));
    must_start();
    vmm = start_vmm(vmm_reads_in_two_parts, &(struct vmm){0});
    wait_for_service(watch);
    ASSERT_OK(snapshot_flatten(fixture.store, ids[2], NULL, NULL, NULL));
    ASSERT_OK(snapshot_compress(fixture.store, ids[2], NULL, NULL, NULL));
    for (int i = 0; i < 3; i++)
        ASSERT_OK(snapshot_remove(fixture.store, ids[i], NULL));
    ASSERT_EQ(fixture_entries(&fixture), 0);
    ASSERT_EQ(write(go[1], "x", 1), 1);
    ASSERT_EQ(wait_all(vmm), 0);
    ASSERT_OK(close(go[0]));
    ASSERT_OK(close(go[1]));
    ASSERT_EQ(fixture_entries(&fixture), 0); /* no working set in a directory of its own */
    fixture_done(&fixture);
}

/* What a page must hold: the snapshot's, a mark that was written, or zero. */
struct model {
    struct vmm *v;
    unsigned first, count, seed;
    uint8_t marks[FIXTURE_PAGES]; /* 0: the snapshot's; 255: zero; else written */
};

static void model_check(struct model *m, unsigned page)
{
    uint8_t *at = vmm_page(m->v, page), mark = m->marks[page];

    if (mark == 0) {
        ASSERT_MEMEQ(at, m->v->f->memory + page * PAGE, PAGE);
    } else {
        ASSERT_EQ(at[0], mark == 255 ? 0 : mark);
        ASSERT_EQ(at[PAGE - 1], mark == 255 ? 0 : mark);
    }
}

static void *torture(void *userdata)
{
    struct model *m = userdata;
    unsigned state = m->seed;

    for (unsigned n = 0; n < 6000; n++) {
        unsigned page, what;

        state = state * 1103515245 + 12345;
        page = m->first + (state >> 8) % m->count;
        what = (state >> 4) % 16;
        if (what < 8) {
            model_check(m, page);
        } else if (what < 12) {
            m->marks[page] = (uint8_t)(1 + n % 200);
            memset(vmm_page(m->v, page), m->marks[page], PAGE);
        } else {
            unsigned count = 1 + (state >> 20) % 8;

            if (page + count > m->first + m->count)
                count = m->first + m->count - page;
            if (page < SPLIT && page + count > SPLIT)
                count = (unsigned)SPLIT - page;
            ASSERT_OK(madvise(vmm_page(m->v, page), count * PAGE, MADV_DONTNEED));
            memset(m->marks + page, 255, count);
        }
    }
    for (unsigned page = m->first; page < m->first + m->count; page++)
        model_check(m, page);
    return NULL;
}

static void vmm_gives_back(struct vmm *v)
{
    static struct model models[THREADS];
    pthread_t threads[THREADS];

    vmm_hand_over(v);
    for (unsigned i = 0; i < THREADS; i++) {
        models[i] = (struct model){.v = v,
                                   .first = i * FIXTURE_PAGES / THREADS,
                                   .count = FIXTURE_PAGES / THREADS,
                                   .seed = i + 1};
        ASSERT_EQ(pthread_create(&threads[i], NULL, torture, &models[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        ASSERT_EQ(pthread_join(threads[i], NULL), 0);
}

TEST(what_is_given_back_is_zero_ever_after)
{
    char ids[3][MANIFEST_ID_SIZE];

    setup("remove");
    make_chain(ids);
    use(ids[2]);
    for (int round = 0; round < 3; round++) { /* recording, then with a working set */
        must_start();
        ASSERT_EQ(wait_all(start_vmm(vmm_gives_back, &(struct vmm){0})), 0);
        printf("  %lld faults, %lld pages given back, %lld retries, %lld prefetched\n",
               stat_of("faults"), stat_of("removed"), stat_of("retries"), stat_of("prefetched"));
        ASSERT_TRUE(stat_of("removed") > 1000);
    }
    fixture_done(&fixture);
}

static void damage(const char *id, const char *name, off_t at)
{
    char path[400];
    _cleanup_close_ int fd = -EBADF;
    uint8_t byte;

    (void)snprintf(path, sizeof(path), "%s/%s/%s", fixture.root, id, name);
    fd = open(path, O_RDWR | O_CLOEXEC);
    ASSERT_TRUE(fd >= 0);
    ASSERT_EQ(pread(fd, &byte, 1, at), 1);
    byte ^= 16;
    ASSERT_EQ(pwrite(fd, &byte, 1, at), 1);
}

static void vmm_must_not_get_past(struct vmm *v)
{
    vmm_hand_over(v);
    for (uint64_t page = 0; page < FIXTURE_PAGES; page++)
        ASSERT_MEMEQ(vmm_page(v, page), v->f->memory + page * PAGE, PAGE);
    _exit(1);
}

TEST(wrong_bytes_are_never_served)
{
    char ids[3][MANIFEST_ID_SIZE];
    int status;

    setup("damage");
    make_chain(ids);
    use(ids[2]);
    damage(ids[1], "memory.zst", 300);
    must_start();
    status = wait_all(start_vmm(vmm_must_not_get_past, &(struct vmm){0}));
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    log_says("is damaged");
    fixture_done(&fixture);
}

static void vmm_waits_for_its_end(struct vmm *v)
{
    vmm_hand_over(v);
    ASSERT_MEMEQ(vmm_page(v, 0), v->f->memory, PAGE);
    for (;;)
        (void)pause();
}

/* The one child of a process; 0: none yet. */
static pid_t child_of(pid_t parent)
{
    char path[64];
    _cleanup_free_ char *text = NULL;

    (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)parent, (int)parent);
    if (file_read(path, 4096, &text, NULL, NULL) < 0)
        return 0;
    return (pid_t)strtol(text, NULL, 10);
}

static pid_t find_supervisor(pid_t not_this)
{
    char path[64], *rest;
    _cleanup_free_ char *text = NULL;

    (void)snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    ASSERT_OK(file_read(path, 4096, &text, NULL, NULL));
    for (rest = text; *rest;) {
        pid_t pid = (pid_t)strtol(rest, &rest, 10);

        if (pid > 0 && pid != not_this)
            return pid;
        while (*rest == ' ')
            rest++;
    }
    return 0;
}

TEST(a_dead_page_server_leaves_no_frozen_guest)
{
    char ids[3][MANIFEST_ID_SIZE];
    _cleanup_close_ int watch = -EBADF;
    pid_t vmm, supervisor, server;
    int status;

    setup("server");
    make_chain(ids);
    use(ids[2]);
    watch = watch_stats();
    must_start();
    vmm = start_vmm(vmm_waits_for_its_end, &(struct vmm){0});
    supervisor = find_supervisor(vmm);
    ASSERT_TRUE(supervisor > 0);
    wait_for_service(watch);
    server = child_of(supervisor);
    ASSERT_TRUE(server > 0);
    ASSERT_OK(kill(server, SIGKILL));
    status = wait_all(vmm);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    log_says("died of signal 9");
    fixture_done(&fixture);
}

TEST(a_pager_ends_with_its_vmm)
{
    char ids[3][MANIFEST_ID_SIZE];
    _cleanup_close_ int watch = -EBADF;
    pid_t vmm;

    setup("vmm");
    make_chain(ids);
    use(ids[2]);
    watch = watch_stats();
    must_start();
    vmm = start_vmm(vmm_waits_for_its_end, &(struct vmm){0});
    wait_for_service(watch);
    ASSERT_OK(kill(vmm, SIGKILL));
    (void)wait_all(vmm);
    fixture_done(&fixture);
}

static const char *bad_text;
static bool bad_fd;

static void vmm_hands_over_nonsense(struct vmm *v)
{
    vmm_map(v);
    vmm_connect(v);
    vmm_send(v, bad_text, bad_fd ? STDIN_FILENO : -1);
    for (;;)
        (void)pause();
}

TEST(a_hand_over_that_is_none_ends_at_once)
{
    static const struct {
        const char *text;
        bool fd;
        const char *says;
    } cases[] = {
        {"[]", true, "expected 1 to 64 regions"},
        {"{\"a\": 1}\n", true, "expected 1 to 64 regions"},
        {"nonsense]", true, "not JSON"},
        {"[{\"base_host_virt_addr\":4096,\"size\":4096,\"offset\":0}]", true, "no userfaultfd"},
        {"[{\"base_host_virt_addr\":4096,\"size\":4096,\"offset\":0}]", false, "no userfaultfd"},
        {"[{\"base_host_virt_addr\":4096,\"size\":4096000000000,\"offset\":0}]", true,
         "not within the memory"},
        {"[{\"base_host_virt_addr\":4096,\"size\":2097152,\"offset\":0,\"page_size\":2097152}]",
         true, "are not served"},
    };
    char ids[3][MANIFEST_ID_SIZE];

    setup("nonsense");
    make_chain(ids);
    use(ids[2]);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        int status;

        (void)unlink(log_path);
        bad_text = cases[i].text;
        bad_fd = cases[i].fd;
        must_start();
        status = wait_all(start_vmm(vmm_hands_over_nonsense, &(struct vmm){0}));
        ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        log_says(cases[i].says);
    }
    fixture_done(&fixture);
}

TEST(nobody_comes_and_nothing_stays)
{
    char ids[3][MANIFEST_ID_SIZE];
    struct error err = {0};

    setup("nobody");
    make_chain(ids);
    use(ids[2]);
    ASSERT_OK(start_pager(200 * 1000, &err));
    (void)wait_all(0);
    log_says("no VMM connected");
    damage(ids[2], "memory.map", 20);
    ASSERT_TRUE(start_pager(0, &err) < 0);
    if (!strstr(err.text, "digest"))
        test_fail(__FILE__, __LINE__, "it says: %s", err.text);
    (void)wait_all(0);
    fixture_done(&fixture);
}

TEST(a_working_set_file_is_strict)
{
    struct working_set w = {0}, back = {0};
    char seal[65];
    uint8_t *data;
    size_t size;

    ASSERT_OK(sodium_init());
    memset(seal, 'a', 64);
    seal[64] = '\0';
    for (uint32_t i = 0; i < 3000; i++)
        ASSERT_OK(working_set_add(&w, i * 7 % 5000));
    ASSERT_OK(working_set_encode(&w, seal, &data, &size));
    ASSERT_OK(working_set_decode(data, size, seal, 5000, &back));
    ASSERT_EQ(back.count, 3000);
    ASSERT_MEMEQ(back.pages, w.pages, 3000 * 4);
    working_set_done(&back);
    ASSERT_ERR(working_set_decode(data, size, seal, 4999, &back), EBADMSG);
    ASSERT_ERR(working_set_decode(data, size - 1, seal, 5000, &back), EBADMSG);
    data[100] ^= 1;
    ASSERT_ERR(working_set_decode(data, size, seal, 5000, &back), EBADMSG);
    data[100] ^= 1;
    seal[3] = 'b';
    ASSERT_ERR(working_set_decode(data, size, seal, 5000, &back), EBADMSG);
    free(data);
    working_set_done(&w);
}
