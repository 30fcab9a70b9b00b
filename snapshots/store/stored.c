#include "store/stored.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"
#include "store/parallel.h"
#include "store/scan.h"

void stored_done(struct stored *s)
{
    s->fd = fd_close(s->fd);
    free(s->path);
    s->path = NULL;
    map_done(&s->map);
}

int stored_open_file(const char *path, uint64_t size, int *ret_fd, struct error *err)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;

    if (fd < 0 && (errno == ENOENT || errno == ELOOP))
        return error_set_code(err, ERR_SNAPSHOT_INVALID, "'%s' is missing", path);
    if (fd < 0 || fstat(fd, &st) < 0)
        return error_set(err, errno, "open '%s': %s", path, errno_text(errno));
    if (!S_ISREG(st.st_mode))
        return error_set_code(err, ERR_SNAPSHOT_INVALID, "'%s' is not a regular file", path);
    if ((uint64_t)st.st_size != size)
        return error_set_code(err, ERR_SNAPSHOT_INVALID,
                              "'%s' is %s: it has %llu bytes, its manifest says %llu", path,
                              (uint64_t)st.st_size < size ? "truncated" : "too long",
                              (unsigned long long)st.st_size, (unsigned long long)size);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

static int read_map(const char *dir, const struct manifest_file *file, struct map *ret,
                    struct error *err)
{
    _cleanup_free_ char *path = string_printf("%s/%s", dir, file->name);
    _cleanup_free_ uint8_t *data = NULL;
    _cleanup_close_ int fd = -EBADF;
    char digest[DIGEST_TEXT_SIZE];
    ssize_t n;
    int r;

    if (!path)
        return error_set(err, ENOMEM, "out of memory");
    if (file->size_bytes > MAP_FILE_BYTES_MAX)
        return error_set_code(err, ERR_SNAPSHOT_INVALID, "'%s' is larger than %u bytes", path,
                              MAP_FILE_BYTES_MAX);
    r = stored_open_file(path, file->size_bytes, &fd, err);
    if (r < 0)
        return r;
    data = malloc(file->size_bytes + 1);
    if (!data)
        return error_set(err, ENOMEM, "out of memory");
    n = fd_read_full(fd, data, file->size_bytes);
    if (n < 0)
        return error_set(err, (int)-n, "read '%s': %s", path, errno_text((int)-n));
    blake_text(data, (size_t)n, digest);
    if (strcmp(digest, file->digest) != 0)
        return error_set_code(err, ERR_SNAPSHOT_INVALID,
                              "'%s' does not have the digest of its manifest", path);
    r = map_decode(data, (size_t)n, ret, err);
    if (r < 0)
        error_wrap(err, "'%s'", path);
    return r;
}

int stored_open(const char *dir, const struct manifest_file *file, const struct manifest_file *map,
                struct stored *ret, struct error *err)
{
    _cleanup_(stored_done) struct stored s = {.fd = -EBADF};
    uint64_t stored = 0;
    int r;

    s.path = string_printf("%s/%s", dir, file->name);
    if (!s.path)
        return error_set(err, ENOMEM, "out of memory");
    r = stored_open_file(s.path, file->size_bytes, &s.fd, err);
    if (r >= 0)
        r = read_map(dir, map, &s.map, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < s.map.n_chunks; i++)
        stored += s.map.chunks[i].stored_size;
    if (file->size_bytes != (s.map.compressed ? stored : s.map.size_bytes))
        return error_set_code(err, ERR_SNAPSHOT_INVALID, "'%s' does not fit its map", s.path);
    if (!s.map.compressed) {
        r = scan_holes(s.fd, s.path, &s.map, err);
        if (r < 0)
            return r;
    }
    *ret = s;
    s = (struct stored){.fd = -EBADF};
    return 0;
}

void stored_plan(const struct stored *s, const struct map_chunk *chunk, struct feed_item *ret)
{
    uint64_t start = 0, end = 0;

    ret->fd = s->fd;
    if (s->map.compressed) {
        ret->offset = chunk->stored_offset;
        ret->size = chunk->stored_size;
        return;
    }
    (void)map_chunk_span(&s->map, chunk->index, &start, &end);
    ret->offset = start;
    ret->size = (uint32_t)(end - start);
}

int stored_unpack(const struct stored *s, const struct map_chunk *chunk, const uint8_t *data,
                  uint8_t *scratch, const uint8_t **ret_image, uint64_t *ret_start,
                  struct error *err)
{
    uint8_t digest[DIGEST_BYTES];
    uint64_t start = 0, end = 0;
    const uint8_t *image = data;

    (void)map_chunk_span(&s->map, chunk->index, &start, &end);
    if (s->map.compressed)
        blake_bytes(data, chunk->stored_size, digest);
    else
        map_chunk_digest(&s->map, chunk->index, data, start, digest);
    if (memcmp(digest, chunk->digest, sizeof(digest)) != 0)
        return error_set_code(err, ERR_SNAPSHOT_INVALID,
                              "'%s' is damaged: the chunk at %llu does not have its digest",
                              s->path, (unsigned long long)chunk->index * MAP_CHUNK_BYTES);
    if (s->map.compressed) {
        size_t n = ZSTD_decompress(scratch, end - start, data, chunk->stored_size);

        if (ZSTD_isError(n) || n != end - start)
            return error_set_code(err, ERR_SNAPSHOT_INVALID,
                                  "'%s': the chunk at %llu does not unpack", s->path,
                                  (unsigned long long)chunk->index * MAP_CHUNK_BYTES);
        image = scratch;
    }
    *ret_image = image;
    *ret_start = start;
    return 0;
}

/* Some of its chunks, for a thread of its own. */
struct walk {
    const struct stored *stored;
    size_t next, end;
    stored_chunk_fn fn;
    void *userdata;
    struct error err;
    int result;
};

static bool plan_walk(void *userdata, struct feed_item *ret)
{
    struct walk *w = userdata;

    if (w->next == w->end)
        return false;
    ret->tag = w->next;
    stored_plan(w->stored, &w->stored->map.chunks[w->next++], ret);
    return true;
}

static int walk(struct walk *w)
{
    const struct stored *s = w->stored;
    struct error *err = &w->err;
    _cleanup_(feed_cleanup) struct feed *feed = NULL;
    _cleanup_free_ uint8_t *scratch = malloc(MAP_CHUNK_BYTES);
    int r = scratch ? feed_new(STORED_READ_MAX, plan_walk, w, &feed) : -ENOMEM;

    if (r < 0)
        return error_set(err, -r, "read '%s': %s", s->path, errno_text(-r));
    for (;;) {
        const struct map_chunk *chunk;
        struct feed_item item;
        const uint8_t *image;
        uint8_t *data;
        uint64_t start;

        r = feed_next(feed, &item, &data);
        if (r == 0)
            return 0;
        if (r == -ENODATA)
            return error_set_code(err, ERR_SNAPSHOT_INVALID, "'%s' is truncated", s->path);
        if (r < 0)
            return error_set(err, -r, "read '%s': %s", s->path, errno_text(-r));
        chunk = &s->map.chunks[item.tag];
        r = stored_unpack(s, chunk, data, scratch, &image, &start, err);
        if (r >= 0 && w->fn)
            r = w->fn(s, chunk, image, start, w->userdata, err);
        if (r < 0)
            return r;
    }
}

static void *walk_job(void *userdata)
{
    struct walk *w = userdata;

    w->result = walk(w);
    return NULL;
}

int stored_walk(const struct stored *s, stored_chunk_fn fn, void *userdata, struct error *err)
{
    struct walk w = {.stored = s, .end = s->map.n_chunks, .fn = fn, .userdata = userdata};
    int r = walk(&w);

    if (r < 0)
        error_copy(err, &w.err);
    return r;
}

int stored_verify(const struct stored *s, stored_chunk_fn fn, void *userdata, struct error *err)
{
    unsigned n = parallel_parts(s->map.n_chunks * (uint64_t)MAP_CHUNK_BYTES);
    struct walk parts[PARALLEL_MAX] = {0};
    struct parallel_job jobs[PARALLEL_MAX];
    int r = 0;

    for (unsigned i = 0; i < n; i++) {
        parts[i].stored = s;
        parts[i].fn = fn;
        parts[i].userdata = userdata;
        parts[i].next = s->map.n_chunks * i / n;
        parts[i].end = s->map.n_chunks * (i + 1) / n;
        jobs[i] = (struct parallel_job){.fn = walk_job, .userdata = &parts[i]};
    }
    parallel_run(jobs, n);
    for (unsigned i = 0; i < n && r >= 0; i++) {
        r = parts[i].result;
        if (r < 0)
            error_copy(err, &parts[i].err);
    }
    return r;
}
