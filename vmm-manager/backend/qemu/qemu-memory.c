#include "backend/qemu/qemu-memory.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/macros.h"

#define BATCH_BYTES (1u << 20) /* stays in the processor's cache between two copies */
#define BATCH_RUNS 1024u       /* UIO_MAXIOV: the most that one call takes */
#define MAP_ENTRIES 8192u
/* A run of the source that is at least this long goes from where it is, without a copy. */
#define DIRECT_BYTES (256u << 10)

/* Entries of /proc/PID/pagemap, Documentation/admin-guide/mm/pagemap.rst. */
#define PAGE_PRESENT (UINT64_C(1) << 63)
#define PAGE_SWAPPED (UINT64_C(1) << 62)
#define PAGE_OF_FILE (UINT64_C(1) << 61) /* or of shared memory */

/* Runs of the guest's memory beside one buffer that holds them one after the other. */
struct batch {
    const struct memory *m; /* weak */
    char *data;             /* owned; BATCH_BYTES */
    size_t size;
    struct iovec runs[BATCH_RUNS]; /* addresses in the other process */
    size_t n_runs;
};

static void batch_cleanup(struct batch **b)
{
    if (!*b)
        return;
    free((*b)->data);
    free(*b);
}
#define _cleanup_batch_ _cleanup_(batch_cleanup)

static int batch_new(const struct memory *m, struct batch **ret, struct error *err)
{
    _cleanup_batch_ struct batch *b = calloc(1, sizeof(*b));

    if (b)
        b->data = malloc(BATCH_BYTES);
    if (!b || !b->data)
        return error_set(err, ENOMEM, "out of memory");
    b->m = m;
    *ret = TAKE_PTR(b);
    return 0;
}

static void batch_clear(struct batch *b)
{
    b->size = 0;
    b->n_runs = 0;
}

/* Takes as much of the run as fits, at least one byte of it unless full; returns how much. */
static size_t batch_add(struct batch *b, uint64_t offset, size_t size)
{
    void *at = (void *)(uintptr_t)(b->m->address + offset); /* NOLINT(performance-no-int-to-ptr) */
    struct iovec *last = b->n_runs > 0 ? &b->runs[b->n_runs - 1] : NULL;
    size_t n = MIN(size, BATCH_BYTES - b->size);

    if (n == 0)
        return 0;
    if (last && (char *)last->iov_base + last->iov_len == at) {
        last->iov_len += n;
    } else {
        if (b->n_runs == BATCH_RUNS)
            return 0;
        b->runs[b->n_runs++] = (struct iovec){.iov_base = at, .iov_len = n};
    }
    b->size += n;
    return n;
}

static int refused(const struct memory *m, const char *verb, int errnum, struct error *err)
{
    if (errnum == EPERM || errnum == EACCES)
        return error_set(
            err, errnum,
            "%s the memory of QEMU (pid %d): not permitted; the daemon must be root or "
            "have CAP_SYS_PTRACE",
            verb, (int)m->pid);
    return error_set(err, errnum, "%s the memory of QEMU (pid %d): %s", verb, (int)m->pid,
                     errno_text(errnum));
}

/* The kernel moves whole runs; what it could not move is an error: the guest's memory is all there.
 */
static int batch_read(struct batch *b, struct error *err)
{
    struct iovec local = {.iov_base = b->data, .iov_len = b->size};
    ssize_t n = process_vm_readv(b->m->pid, &local, 1, b->runs, b->n_runs, 0);

    if (n == (ssize_t)b->size)
        return 0;
    return refused(b->m, "read", n < 0 ? errno : EFAULT, err);
}

static int batch_write(struct batch *b, struct error *err)
{
    struct iovec local = {.iov_base = b->data, .iov_len = b->size};
    ssize_t n = process_vm_writev(b->m->pid, &local, 1, b->runs, b->n_runs, 0);

    if (n == (ssize_t)b->size)
        return 0;
    return refused(b->m, "write", n < 0 ? errno : EFAULT, err);
}

/* ---- where it is ---- */

/* A line of /proc/PID/maps. */
struct mapping {
    uint64_t start, end, offset, inode;
    unsigned major, minor;
    char flags[5];
    const char *path; /* in the line; "" for none */
};

static bool parse_mapping(char *line, struct mapping *ret)
{
    int n = 0;

    line[strcspn(line, "\n")] = '\0';
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64 " %n", &ret->start,
               &ret->end, ret->flags, &ret->offset, &ret->major, &ret->minor, &ret->inode,
               &n) < 7 ||
        n == 0)
        return false;
    ret->path = line + n;
    return true;
}

/*
 * By device and inode, or by name: some file systems show other device numbers to stat(), and the
 * base may have lost its name meanwhile.
 */
static bool is_base(const struct mapping *map, const char *path, const struct stat *st)
{
    size_t n = strlen(path);

    if (map->inode == 0)
        return false;
    if (st->st_ino == map->inode && major(st->st_dev) == map->major &&
        minor(st->st_dev) == map->minor)
        return true;
    return strncmp(map->path, path, n) == 0 &&
           (map->path[n] == '\0' || strcmp(map->path + n, " (deleted)") == 0);
}

static bool fits(const struct mapping *map, const struct ram *ram, const struct stat *st)
{
    if (strncmp(map->flags, "rw", 2) != 0 || map->flags[3] != (ram->shared ? 's' : 'p'))
        return false;
    if (ram->path)
        return is_base(map, ram->path, st);
    return map->inode == 0 && *map->path == '\0' && map->end - map->start == ram->size;
}

int memory_find(pid_t pid, const struct ram *ram, struct memory *ret, struct error *err)
{
    struct memory m = {.pid = pid, .size = ram->size, .from_zeros = !ram->path || ram->shared};
    _cleanup_free_ char *line = NULL;
    struct stat st = {0};
    uint64_t found = 0;
    char path[64];
    size_t size = 0;
    FILE *f;

    m.tracked = !ram->shared;
    (void)snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    if (ram->path)
        (void)stat(ram->path, &st);
    f = fopen(path, "re");
    if (!f && errno != ENOENT)
        return refused(&m, "find", errno, err);
    if (!f)
        return error_set(err, ESRCH, "QEMU (pid %d) has ended", (int)pid);
    while (getline(&line, &size, f) > 0) {
        struct mapping map;

        if (!parse_mapping(line, &map) || !fits(&map, ram, &st))
            continue;
        /* The kernel may keep one mapping in several pieces. */
        if (found == 0)
            m.address = map.start;
        else if (!ram->path || map.start != m.address + found)
            found = UINT64_MAX;
        if (found == UINT64_MAX || (ram->path && map.offset != found))
            break;
        found += map.end - map.start;
    }
    (void)fclose(f);
    if (found != ram->size)
        return error_set(err, EOPNOTSUPP, "QEMU (pid %d): cannot tell where its guest's memory is",
                         (int)pid);
    *ret = m;
    return 0;
}

/* ---- out ---- */

struct saving {
    struct batch *batch;              /* weak */
    const struct memory_check *check; /* weak */
    int fd;                           /* of the caller */
    uint64_t bytes;
};

static int write_at(struct saving *s, const char *data, size_t size, uint64_t offset,
                    struct error *err)
{
    s->bytes += size;
    while (size > 0) {
        ssize_t n = pwrite(s->fd, data, size, (off_t)offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return error_set(err, n < 0 ? errno : EIO, "write the guest's memory: %s",
                             errno_text(n < 0 ? errno : EIO));
        data += n;
        size -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

static bool is_zero(const char *page)
{
    return page[0] == 0 && memcmp(page, page + 1, PAGE_BYTES - 1) == 0;
}

/* Without pages of zeros, which are what was there before. */
static int write_sparse(struct saving *s, const char *data, size_t size, uint64_t offset,
                        struct error *err)
{
    size_t from = 0, to;
    int r = 0;

    while (r >= 0 && from < size) {
        if (is_zero(data + from)) {
            from += PAGE_BYTES;
            continue;
        }
        for (to = from + PAGE_BYTES; to < size && !is_zero(data + to);)
            to += PAGE_BYTES;
        r = write_at(s, data + from, to - from, offset + from, err);
        from = to;
    }
    return r;
}

static int flush_out(struct saving *s, struct error *err)
{
    struct batch *b = s->batch;
    const struct memory *m = b->m;
    const char *data = b->data;
    int r;

    if (b->size == 0)
        return 0;
    r = s->check->fn(s->check->userdata, err);
    if (r >= 0)
        r = batch_read(b, err);
    for (size_t i = 0; r >= 0 && i < b->n_runs; i++) {
        uint64_t offset = (uint64_t)(uintptr_t)b->runs[i].iov_base - m->address;

        r = (m->from_zeros ? write_sparse : write_at)(s, data, b->runs[i].iov_len, offset, err);
        data += b->runs[i].iov_len;
    }
    batch_clear(b);
    return r;
}

static int add_out(struct saving *s, uint64_t offset, uint64_t size, struct error *err)
{
    while (size > 0) {
        size_t n = batch_add(s->batch, offset, size);
        int r = n == 0 ? flush_out(s, err) : 0;

        if (r < 0)
            return r;
        offset += n;
        size -= n;
    }
    return 0;
}

/* A page that is in the file only is no page of the process: not there, or there as the file's. */
static bool has_changed(uint64_t entry)
{
    return (entry & (PAGE_PRESENT | PAGE_SWAPPED)) != 0 && (entry & PAGE_OF_FILE) == 0;
}

static int add_changed(struct saving *s, int pagemap, struct error *err)
{
    const struct memory *m = s->batch->m;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), pages = m->size / page;
    _cleanup_free_ uint64_t *entries = malloc(MAP_ENTRIES * sizeof(*entries));
    int r = 0;

    if (!entries)
        return error_set(err, ENOMEM, "out of memory");
    for (uint64_t at = 0; at < pages && r >= 0;) {
        size_t want = MIN(pages - at, MAP_ENTRIES) * sizeof(*entries);
        ssize_t n =
            pread(pagemap, entries, want, (off_t)((m->address / page + at) * sizeof(*entries)));
        size_t count, i = 0;

        if (n <= 0 || n % (ssize_t)sizeof(*entries) != 0)
            return refused(m, "look at", n < 0 ? errno : ESRCH, err);
        count = (size_t)n / sizeof(*entries);
        while (r >= 0 && i < count) {
            size_t first = i;

            if (!has_changed(entries[i++]))
                continue;
            while (i < count && has_changed(entries[i]))
                i++;
            r = add_out(s, (at + first) * page, (i - first) * page, err);
        }
        at += count;
    }
    return r;
}

int memory_save_changed(const struct memory *m, int fd, const struct memory_check *check,
                        uint64_t *ret_bytes, struct error *err)
{
    _cleanup_batch_ struct batch *batch = NULL;
    _cleanup_close_ int pagemap = -EBADF;
    struct saving s = {.check = check, .fd = fd};
    char path[64];
    int r;

    r = batch_new(m, &batch, err);
    if (r < 0)
        return r;
    s.batch = batch;
    if (ftruncate(fd, (off_t)m->size) < 0)
        return error_set(err, errno, "write the guest's memory: %s", errno_text(errno));
    if (m->tracked) {
        (void)snprintf(path, sizeof(path), "/proc/%d/pagemap", (int)m->pid);
        pagemap = open(path, O_RDONLY | O_CLOEXEC);
        if (pagemap < 0)
            return refused(m, "look at", errno == ENOENT ? ESRCH : errno, err);
        r = add_changed(&s, pagemap, err);
    } else {
        r = add_out(&s, 0, m->size, err);
    }
    if (r >= 0)
        r = flush_out(&s, err);
    if (r >= 0 && ret_bytes)
        *ret_bytes = s.bytes;
    return r;
}

/* ---- in ---- */

static int flush_in(struct batch *b, const struct memory_check *check, struct error *err)
{
    int r = 0;

    if (b->size > 0) {
        r = check->fn(check->userdata, err);
        if (r >= 0)
            r = batch_write(b, err);
    }
    batch_clear(b);
    return r;
}

static int add_in(struct batch *b, const struct memory_check *check, uint64_t offset,
                  const char *data, size_t size, struct error *err)
{
    int r = 0;

    while (r >= 0 && size > 0) {
        char *to = b->data + b->size;
        size_t n = batch_add(b, offset, size);

        if (n == 0) {
            r = flush_in(b, check, err);
            continue;
        }
        if (data) {
            memcpy(to, data, n);
            data += n;
        } else {
            memset(to, 0, n);
        }
        offset += n;
        size -= n;
    }
    return r;
}

/* As it lies in the source. */
static int write_direct(const struct memory *m, uint64_t offset, const void *data, size_t size,
                        struct error *err)
{
    struct iovec local = {.iov_base = (void *)(uintptr_t)data, .iov_len = size};
    struct iovec remote = {
        .iov_base = (void *)(uintptr_t)(m->address + offset), /* NOLINT */
        .iov_len = size,
    };
    ssize_t n = process_vm_writev(m->pid, &local, 1, &remote, 1, 0);

    return n == (ssize_t)size ? 0 : refused(m, "write", n < 0 ? errno : EFAULT, err);
}

int memory_install(const struct memory *m, struct page_source *pages,
                   const struct memory_check *check, struct error *err)
{
    _cleanup_batch_ struct batch *b = NULL;
    uint64_t offset, done = 0;
    const void *data;
    size_t size;
    int r;

    r = batch_new(m, &b, err);
    if (r < 0)
        return r;
    while ((r = pages->ops->next(pages, &offset, &data, &size, err)) > 0) {
        if (offset < done || offset % PAGE_BYTES != 0 || size % PAGE_BYTES != 0 ||
            offset > m->size || size > m->size - offset)
            return error_set_code(err, ERR_SNAPSHOT_INVALID,
                                  "pages at %" PRIu64 " (%zu bytes) do not fit into a memory of "
                                  "%" PRIu64 " bytes",
                                  offset, size, m->size);
        done = offset + size;
        if (data && size >= DIRECT_BYTES)
            r = write_direct(m, offset, data, size, err);
        else
            r = add_in(b, check, offset, data, size, err);
        if (r < 0)
            return r;
    }
    return r < 0 ? r : flush_in(b, check, err);
}
