#include "store/scan.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "store/feed.h"
#include "store/parallel.h"
#include "store/step.h"

bool scan_is_zero(const void *data, size_t size)
{
    const uint8_t *bytes = data;

    return size == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, size - 1) == 0);
}

static uint64_t page_down(uint64_t offset)
{
    return offset - offset % MAP_PAGE_BYTES;
}

static uint64_t page_up(uint64_t offset, uint64_t end)
{
    uint64_t up = page_down(offset + MAP_PAGE_BYTES - 1);

    return up < end ? up : end;
}

/* The data extents as runs of whole pages. */
static int find_extents(int fd, uint64_t size, struct map *ret)
{
    uint64_t position = 0;

    ret->size_bytes = size;
    while (position < size) {
        off_t start = lseek(fd, (off_t)position, SEEK_DATA), end;
        uint64_t from, to;
        int r;

        if (start < 0)
            return errno == ENXIO ? 0 : -errno;
        end = lseek(fd, start, SEEK_HOLE);
        if (end < 0)
            return -errno;
        from = page_down((uint64_t)start);
        to = page_up((uint64_t)end, size);
        if (from < position)
            from = position; /* two extents in one page */
        if (to > from) {
            r = map_add_run(ret, from, to - from, MAP_DATA);
            if (r < 0)
                return r;
        }
        position = to > position ? to : (uint64_t)end;
    }
    return 0;
}

/* The parts of the extents by chunk: what is read at once. */
struct plan {
    int fd;
    const struct map *extents;
    uint64_t next, end; /* chunk indices */
};

static bool plan_chunk(void *userdata, struct feed_item *ret)
{
    struct plan *p = userdata;
    uint64_t start, end;

    for (;;) {
        size_t i = map_find_run(p->extents, p->next * MAP_CHUNK_BYTES);

        if (i == p->extents->n_runs)
            return false;
        if (p->extents->runs[i].offset / MAP_CHUNK_BYTES > p->next)
            p->next = p->extents->runs[i].offset / MAP_CHUNK_BYTES;
        if (p->next >= p->end)
            return false;
        if (map_chunk_span(p->extents, (uint32_t)p->next, &start, &end))
            break;
        p->next++;
    }
    *ret = (struct feed_item){
        .fd = p->fd, .size = (uint32_t)(end - start), .offset = start, .tag = p->next};
    p->next++;
    return true;
}

struct scan {
    int fd;
    bool keep_zeros;
    struct map *map;
    uint64_t punch_from, punch_to; /* zeros that are not yet a hole */
};

static int punch(struct scan *s)
{
    int r = 0;

    if (s->punch_to == s->punch_from)
        return 0;
    r = store_step("punch");
    if (r >= 0 && fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)s->punch_from,
                            (off_t)(s->punch_to - s->punch_from)) < 0)
        r = errno == EOPNOTSUPP ? 0 : -errno; /* then the zeros stay as data */
    s->punch_from = s->punch_to = 0;
    return r;
}

static int take_zeros(struct scan *s, uint64_t offset, uint64_t size)
{
    int r = 0;

    if (s->punch_to != offset) {
        r = punch(s);
        s->punch_from = offset;
    }
    s->punch_to = offset + size;
    if (r >= 0 && s->keep_zeros)
        r = map_add_run(s->map, offset, size, MAP_ZERO);
    return r;
}

int scan_punch(int fd)
{
    struct map none = {0};
    struct scan s = {.fd = fd, .map = &none};
    uint8_t page[MAP_PAGE_BYTES];
    int r = 0;

    for (uint64_t offset = 0; r >= 0; offset += sizeof(page)) {
        ssize_t n = pread(fd, page, sizeof(page), (off_t)offset);

        if (n < 0)
            return -errno;
        if ((size_t)n < sizeof(page))
            break; /* the last one may be a part, and stays */
        if (scan_is_zero(page, sizeof(page)))
            r = take_zeros(&s, offset, sizeof(page));
    }
    return r < 0 ? r : punch(&s);
}

/* The pages of an extent's part that lies in the chunk. */
static int take_pages(struct scan *s, const uint8_t *data, uint64_t offset, uint64_t size)
{
    while (size > 0) {
        uint64_t step = size < MAP_PAGE_BYTES ? size : MAP_PAGE_BYTES;
        int r;

        if (scan_is_zero(data, step))
            r = take_zeros(s, offset, step);
        else
            r = map_add_run(s->map, offset, step, MAP_DATA);
        if (r < 0)
            return r;
        data += step;
        offset += step;
        size -= step;
    }
    return 0;
}

static int take_chunk(struct scan *s, const struct map *extents, const struct feed_item *item,
                      const uint8_t *data)
{
    uint64_t end = item->offset + item->size;
    struct map_chunk chunk = {.index = (uint32_t)item->tag};
    uint64_t ignored;

    for (size_t i = map_find_run(extents, item->offset);
         i < extents->n_runs && extents->runs[i].offset < end; i++) {
        uint64_t from = extents->runs[i].offset, to = from + extents->runs[i].size;
        int r;

        if (from < item->offset)
            from = item->offset;
        if (to > end)
            to = end;
        r = take_pages(s, data + (from - item->offset), from, to - from);
        if (r < 0)
            return r;
    }
    if (!map_chunk_span(s->map, chunk.index, &ignored, &ignored))
        return 0;
    map_chunk_digest(s->map, chunk.index, data, item->offset, chunk.digest);
    return map_add_chunk(s->map, &chunk);
}

/* A part of the file, from a chunk on up to another, for a thread of its own. */
struct part {
    int fd;
    bool keep_zeros;
    const struct map *extents;
    uint64_t from, to; /* chunk indices */
    struct map map;
    int result;
};

static void *scan_part(void *userdata)
{
    struct part *p = userdata;
    struct scan scan = {.fd = p->fd, .keep_zeros = p->keep_zeros, .map = &p->map};
    struct plan plan = {.fd = p->fd, .extents = p->extents, .next = p->from, .end = p->to};
    _cleanup_(feed_cleanup) struct feed *feed = NULL;
    int r = feed_new(MAP_CHUNK_BYTES, plan_chunk, &plan, &feed);

    while (r >= 0) {
        struct feed_item item;
        uint8_t *data;

        r = feed_next(feed, &item, &data);
        if (r == 0)
            break;
        if (r > 0)
            r = take_chunk(&scan, p->extents, &item, data);
    }
    if (r >= 0)
        r = punch(&scan);
    p->result = r;
    return NULL;
}

static int append(struct map *to, const struct map *from)
{
    int r = 0;

    for (size_t i = 0; i < from->n_runs && r >= 0; i++)
        r = map_add_run(to, from->runs[i].offset, from->runs[i].size, from->runs[i].kind);
    for (size_t i = 0; i < from->n_chunks && r >= 0; i++)
        r = map_add_chunk(to, &from->chunks[i]);
    return r;
}

/* Digests cost more than reading does: parts of about the same amount of data, side by side. */
static int scan_parts(int fd, bool keep_zeros, const struct map *extents, struct map *ret)
{
    uint64_t share = map_bytes(extents, MAP_DATA), done = 0;
    unsigned n = parallel_parts(share), have = 1;
    struct part parts[PARALLEL_MAX] = {0};
    struct parallel_job jobs[PARALLEL_MAX];
    int r = 0;

    share = share / n + 1;
    for (size_t i = 0; i < extents->n_runs; i++) {
        done += extents->runs[i].size;
        while (have < n && done >= have * share) {
            parts[have].from = extents->runs[i].offset / MAP_CHUNK_BYTES +
                               (extents->runs[i].size - (done - have * share)) / MAP_CHUNK_BYTES;
            have++;
        }
    }
    for (unsigned i = 0; i < have; i++) {
        parts[i].fd = fd;
        parts[i].keep_zeros = keep_zeros;
        parts[i].extents = extents;
        parts[i].to = i + 1 < have ? parts[i + 1].from : UINT64_MAX;
        jobs[i] = (struct parallel_job){.fn = scan_part, .userdata = &parts[i]};
    }
    parallel_run(jobs, have);
    for (unsigned i = 0; i < have; i++) {
        if (r >= 0)
            r = parts[i].result;
        if (r >= 0)
            r = append(ret, &parts[i].map);
        map_done(&parts[i].map);
    }
    return r;
}

int scan_file(int fd, const char *path, bool keep_zeros, struct map *ret, struct error *err)
{
    _cleanup_(map_done) struct map extents = {0};
    _cleanup_(map_done) struct map map = {0};
    struct stat st;
    int r;

    if (fstat(fd, &st) < 0)
        return error_set(err, errno, "'%s': %s", path, errno_text(errno));
    if ((uint64_t)st.st_size > MAP_SIZE_MAX)
        return error_set(err, EFBIG, "'%s': larger than %llu bytes", path,
                         (unsigned long long)MAP_SIZE_MAX);
    map.size_bytes = (uint64_t)st.st_size;
    r = find_extents(fd, (uint64_t)st.st_size, &extents);
    if (r >= 0)
        r = scan_parts(fd, keep_zeros, &extents, &map);
    if (r < 0)
        return error_set(err, -r, "read '%s': %s", path, errno_text(-r));
    *ret = map;
    map = (struct map){0};
    return 0;
}

static int range_is_zero(int fd, uint64_t offset, uint64_t size)
{
    uint8_t block[16 * 1024];

    while (size > 0) {
        size_t step = size < sizeof(block) ? (size_t)size : sizeof(block);
        ssize_t n = pread(fd, block, step, (off_t)offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return 1;
        if (!scan_is_zero(block, (size_t)n))
            return 0;
        offset += (uint64_t)n;
        size -= (uint64_t)n;
    }
    return 1;
}

int scan_holes(int fd, const char *path, const struct map *m, struct error *err)
{
    _cleanup_(map_done) struct map extents = {0};
    size_t i = 0;
    int r = find_extents(fd, m->size_bytes, &extents);

    if (r < 0)
        return error_set(err, -r, "'%s': %s", path, errno_text(-r));
    for (size_t e = 0; e < extents.n_runs; e++) {
        uint64_t at = extents.runs[e].offset, end = at + extents.runs[e].size;

        while (at < end) {
            uint64_t gap_end = end, next = end;

            while (i < m->n_runs &&
                   (m->runs[i].kind != MAP_DATA || m->runs[i].offset + m->runs[i].size <= at))
                i++;
            if (i < m->n_runs && m->runs[i].offset < end) {
                gap_end = m->runs[i].offset > at ? m->runs[i].offset : at;
                next = m->runs[i].offset + m->runs[i].size;
            }
            r = gap_end > at ? range_is_zero(fd, at, gap_end - at) : 1;
            if (r < 0)
                return error_set(err, -r, "read '%s': %s", path, errno_text(-r));
            if (r == 0)
                return error_set_code(err, ERR_SNAPSHOT_INVALID,
                                      "'%s' has data at %llu that was not stored there", path,
                                      (unsigned long long)at);
            at = next;
        }
    }
    return 0;
}

int scan_probe(const char *dir, struct error *err)
{
    const off_t at = 17 * MAP_PAGE_BYTES;
    char page[MAP_PAGE_BYTES];
    _cleanup_close_ int fd = file_open_unnamed(dir);

    if (fd < 0)
        return error_set(err, -fd, "write in '%s': %s", dir, errno_text(-fd));
    memset(page, 1, sizeof(page));
    if (ftruncate(fd, 2 * (off_t)MAP_CHUNK_BYTES) < 0 ||
        pwrite(fd, page, sizeof(page), at) != (ssize_t)sizeof(page))
        return error_set(err, errno, "write in '%s': %s", dir, errno_text(errno));
    if (lseek(fd, 0, SEEK_DATA) != at || lseek(fd, at, SEEK_HOLE) != at + (off_t)sizeof(page))
        return error_set_code(err, ERR_UNSUPPORTED,
                              "the file system of '%s' does not keep holes of %u bytes in files",
                              dir, MAP_PAGE_BYTES);
    return 0;
}
