#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"
#include "pager/pager-spawn.h"
#include "store/snapshot.h"

/*
 * bench-pager DIR MIB ROUNDS: a stand-in VMM that restores a snapshot of MIB of memory through
 * hearth-pager and touches its working set, with the page cache cold each time: without a recorded
 * working set (that round records it) and with it, in turns. One line of JSON: demand faults and
 * milliseconds (medians) of both.
 */
#define PAGE UINT64_C(4096)
#define ROUNDS_MAX 50

static struct {
    const char *dir;
    char *templates, *root, *snapshot, *base, *socket, *stats;
    uint64_t pages;
    uint32_t *touched; /* the working set, in order */
    size_t n_touched;
} bench;

static _Noreturn void die(const char *what, const char *why)
{
    (void)fprintf(stderr, "bench-pager: %s: %s\n", what, why);
    exit(1);
}

static void check(int r, const char *what, const struct error *err)
{
    if (r < 0)
        die(what, err && err->text[0] ? err->text : errno_text(-r));
}

/* Every fourth MiB of the memory has data in the template, and every eighth in the snapshot. */
static void fill(const char *path, uint64_t every, uint64_t first)
{
    _cleanup_free_ uint8_t *block = malloc(1 << 20);
    _cleanup_close_ int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (fd < 0 || !block || ftruncate(fd, (off_t)(bench.pages * PAGE)) < 0)
        die(path, errno_text(errno));
    randombytes_buf(block, 1 << 20);
    for (uint64_t mib = first; mib < bench.pages / 256; mib += every) {
        memcpy(block, &mib, sizeof(mib));
        if (pwrite(fd, block, 1 << 20, (off_t)(mib << 20)) != 1 << 20)
            die(path, errno_text(errno));
    }
}

static void make_snapshot(void)
{
    struct manifest m = {.origin = {.backend = "bench"}};
    struct snapshot_info info = {.sandbox = "bench"};
    struct snapshot_store *store;
    struct snapshot_writer *w;
    struct error err = {0};
    _cleanup_free_ char *dir = NULL, *memory = NULL, *state = NULL, *disk = NULL;

    origin_id(&m.origin, m.id);
    dir = string_printf("%s/%s", bench.templates, m.id);
    bench.base = string_printf("%s/memory", dir);
    check(dir_create(dir, 0700, &err), "template", &err);
    fill(bench.base, 4, 0);
    check(manifest_add_file(&m, dir, "memory", true, &err), "template", &err);
    check(manifest_write(&m, dir, &err), "template", &err);
    check(snapshot_store_open(bench.root, bench.templates, &store, &err), "store", &err);
    check(snapshot_writer_new(store, &w, &err), "writer", &err);
    memory = string_printf("%s/memory", snapshot_writer_dir(w));
    state = string_printf("%s/state", snapshot_writer_dir(w));
    disk = string_printf("%s/disk", snapshot_writer_dir(w));
    fill(memory, 8, 2);
    check(file_write_atomic(state, "x", 1, 0600, &err), "state", &err);
    check(file_write_atomic(disk, "x", 1, 0600, &err), "disk", &err);
    memcpy(info.parent.template_id, m.id, MANIFEST_ID_SIZE);
    check(snapshot_writer_seal(w, &info, &err), "seal", &err);
    bench.snapshot = string_printf("%s/%s", bench.root, info.id);
    (void)snapshot_writer_free(w);
    (void)snapshot_store_close(store);
}

/* Clusters of neighbours all over the memory, as a guest that wakes up touches them. */
static void make_working_set(void)
{
    uint64_t at = 0;

    bench.touched = calloc(bench.pages / 8, sizeof(*bench.touched));
    if (!bench.touched)
        die("working set", "out of memory");
    while (bench.n_touched + 32 < bench.pages / 8) {
        uint64_t length = 1 + at % 13;

        for (uint64_t i = 0; i < length; i++)
            bench.touched[bench.n_touched++] = (uint32_t)((at + i) % bench.pages);
        at = (at + 40 + at * 7 % 101) % bench.pages;
        if (at + 200 > bench.pages)
            break;
    }
}

static void drop_cache(const char *path)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fsync(fd) < 0)
        return;
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
}

static void hand_over(int uffd, const void *at)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {.head = {.cmsg_len = CMSG_LEN(sizeof(int)),
                          .cmsg_level = SOL_SOCKET,
                          .cmsg_type = SCM_RIGHTS}};
    _cleanup_free_ char *text =
        string_printf("[{\"base_host_virt_addr\":%" PRIu64 ",\"size\":%" PRIu64
                      ",\"offset\":0,\"page_size\":4096}]",
                      (uint64_t)(uintptr_t)at, bench.pages * PAGE);
    struct iovec io = {.iov_base = text, .iov_len = text ? strlen(text) : 0};
    struct msghdr message = {.msg_iov = &io,
                             .msg_iovlen = 1,
                             .msg_control = control.space,
                             .msg_controllen = sizeof(control.space)};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); /* stays open, as a VMM's does */

    memcpy(CMSG_DATA(&control.head), &uffd, sizeof(uffd));
    memcpy(address.sun_path, bench.socket, strlen(bench.socket) + 1);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 ||
        sendmsg(fd, &message, 0) < 0)
        die("hand-over", errno_text(errno));
}

/* The stand-in VMM: milliseconds from the hand-over to the last page touched. */
static void run_vmm(int report)
{
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_EVENT_REMOVE};
    int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    uint8_t *at =
        mmap(NULL, bench.pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register range = {.range = {.start = (uintptr_t)at, .len = bench.pages * PAGE},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
    unsigned sum = 0;
    uint64_t start;
    double msec;

    if (uffd < 0 || at == MAP_FAILED || madvise(at, bench.pages * PAGE, MADV_NOHUGEPAGE) < 0 ||
        ioctl(uffd, UFFDIO_API, &api) < 0 || ioctl(uffd, UFFDIO_REGISTER, &range) < 0)
        die("userfaultfd", errno_text(errno));
    start = clock_now_usec();
    hand_over(uffd, at);
    for (size_t i = 0; i < bench.n_touched; i++)
        sum += *(volatile uint8_t *)(at + bench.touched[i] * PAGE);
    msec = (double)(clock_now_usec() - start) / 1000;
    (void)sum;
    if (write(report, &msec, sizeof(msec)) != (ssize_t)sizeof(msec))
        die("report", errno_text(errno));
}

static double restore(double *ret_faults)
{
    struct pager_spawn options = {.program = HEARTH_PAGER,
                                  .socket = bench.socket,
                                  .snapshot_dir = bench.snapshot,
                                  .base_memory = bench.base,
                                  .stats_file = bench.stats,
                                  .uid = getuid(),
                                  .gid = getgid()};
    _cleanup_free_ char *memory = string_printf("%s/memory", bench.snapshot);
    struct error err = {0};
    double msec = 0;
    json_t *stats;
    int fds[2];
    pid_t pid;

    drop_cache(bench.base);
    drop_cache(memory);
    check(pager_spawn(&options, &err), "pager", &err);
    if (pipe2(fds, O_CLOEXEC) < 0)
        die("pipe", errno_text(errno));
    pid = fork();
    if (pid == 0) {
        run_vmm(fds[1]);
        _exit(0);
    }
    (void)close(fds[1]);
    if (pid < 0 || read(fds[0], &msec, sizeof(msec)) != (ssize_t)sizeof(msec))
        die("restore", "the stand-in VMM died");
    (void)close(fds[0]);
    while (waitpid(-1, NULL, 0) > 0) /* the pager too: it has come back to us */
        ;
    stats = json_load_file(bench.stats, 0, NULL);
    *ret_faults = (double)json_integer_value(json_object_get(stats, "faults"));
    json_decref(stats);
    return msec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values, unsigned n)
{
    qsort(values, n, sizeof(*values), compare);
    return values[n / 2];
}

int main(int argc, char **argv)
{
    double without[ROUNDS_MAX], with[ROUNDS_MAX], faults_without[ROUNDS_MAX],
        faults_with[ROUNDS_MAX], a, b;
    uint64_t mib, rounds;
    _cleanup_free_ char *set = NULL;

    if (argc != 4 || sodium_init() < 0 || parse_u64(argv[2], 8, 65536, &mib) < 0 ||
        parse_u64(argv[3], 1, ROUNDS_MAX, &rounds) < 0)
        die("usage", "bench-pager DIR MIB ROUNDS");
    bench.dir = argv[1];
    bench.pages = mib * 256;
    bench.templates = string_printf("%s/templates", bench.dir);
    bench.root = string_printf("%s/snapshots", bench.dir);
    bench.socket = string_printf("%s/uffd.sock", bench.dir);
    bench.stats = string_printf("%s/stats.json", bench.dir);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    make_snapshot();
    make_working_set();
    set = string_printf("%s/" SNAPSHOT_WORKING_SET, bench.snapshot);
    for (unsigned i = 0; i < rounds; i++) {
        (void)unlink(set);
        without[i] = restore(&faults_without[i]);
        with[i] = restore(&faults_with[i]);
    }
    a = median(faults_without, (unsigned)rounds);
    b = median(faults_with, (unsigned)rounds);
    printf("{\"mib\": %" PRIu64 ", \"rounds\": %" PRIu64 ", \"touched_pages\": %zu, "
           "\"faults_without\": %.0f, \"faults_with\": %.0f, \"faults_cut\": %.4f, "
           "\"msec_without\": %.2f, \"msec_with\": %.2f}\n",
           mib, rounds, bench.n_touched, a, b, a > 0 ? 1 - b / a : 0,
           median(without, (unsigned)rounds), median(with, (unsigned)rounds));
    return 0;
}
