#include "store/output.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#include "base/macros.h"
#include "store/io.h"
#include "store/step.h"

#define DEPTH 4u
#define LEVEL 3
#define AHEAD_BYTES (16u * 1024u * 1024u) /* room taken at once for a compressed file */

struct output {
    int fd;           /* weak */
    const char *path; /* weak */
    struct map map;
    struct io *io;           /* owned */
    uint8_t *buffers[DEPTH]; /* owned, MAP_STORED_MAX each */
    bool busy[DEPTH];
    ZSTD_CCtx *zstd;           /* owned; NULL when plain */
    uint8_t *image;            /* owned: the chunk that is being put together */
    uint64_t chunk;            /* its index */
    uint64_t start, end;       /* of its data; equal when it has none */
    uint64_t stored, reserved; /* compressed: end of the file, and of the room taken for it */
};

int output_new(int fd, const char *path, uint64_t size_bytes, bool compressed, struct output **ret,
               struct error *err)
{
    struct output *o = calloc(1, sizeof(*o));
    int r = o ? io_new(DEPTH, &o->io) : -ENOMEM;

    if (r >= 0) {
        o->fd = fd;
        o->path = path;
        o->map.size_bytes = size_bytes;
        o->map.compressed = compressed;
        o->image = malloc(MAP_CHUNK_BYTES);
        o->zstd = compressed ? ZSTD_createCCtx() : NULL;
        if (!o->image || (compressed && !o->zstd))
            r = -ENOMEM;
        /* The frame's own checksum finds what a broken packer or unpacker would do. */
        if (o->zstd &&
            (ZSTD_isError(ZSTD_CCtx_setParameter(o->zstd, ZSTD_c_compressionLevel, LEVEL)) ||
             ZSTD_isError(ZSTD_CCtx_setParameter(o->zstd, ZSTD_c_checksumFlag, 1))))
            r = -ENOMEM;
    }
    for (unsigned i = 0; r >= 0 && i < DEPTH; i++) {
        o->buffers[i] = malloc(MAP_STORED_MAX);
        if (!o->buffers[i])
            r = -ENOMEM;
    }
    if (r < 0) {
        (void)output_free(o);
        return error_set(err, -r, "write '%s': %s", path, errno_text(-r));
    }
    *ret = o;
    return 0;
}

struct output *output_free(struct output *o)
{
    if (!o)
        return NULL;
    o->io = io_free(o->io); /* buffers are the kernel's until then */
    for (unsigned i = 0; i < DEPTH; i++)
        free(o->buffers[i]);
    (void)ZSTD_freeCCtx(o->zstd);
    free(o->image);
    map_done(&o->map);
    free(o);
    return NULL;
}

static int wait_one(struct output *o)
{
    uint64_t tag;
    int result, r = io_wait(o->io, &tag, &result);

    if (r < 0)
        return r;
    o->busy[tag] = false;
    return result < 0 ? result : 0;
}

static int take_buffer(struct output *o, unsigned *ret)
{
    for (;;) {
        int r;

        for (unsigned i = 0; i < DEPTH; i++)
            if (!o->busy[i]) {
                *ret = i;
                return 0;
            }
        r = wait_one(o);
        if (r < 0)
            return r;
    }
}

static int start_write(struct output *o, unsigned buffer, uint32_t size, uint64_t offset)
{
    int r = store_step("write");

    if (r >= 0)
        r = io_write(o->io, o->fd, o->buffers[buffer], size, offset, buffer);
    if (r >= 0)
        o->busy[buffer] = true;
    return r;
}

/* Its data runs, each where it belongs. */
static int write_plain(struct output *o)
{
    uint64_t from = o->chunk * MAP_CHUNK_BYTES;

    for (size_t i = map_find_run(&o->map, from); i < o->map.n_runs; i++) {
        uint64_t at = MAX(o->map.runs[i].offset, from),
                 end = MIN(o->map.runs[i].offset + o->map.runs[i].size, from + MAP_CHUNK_BYTES);
        unsigned buffer;
        int r;

        if (o->map.runs[i].kind != MAP_DATA || at >= end)
            continue;
        r = take_buffer(o, &buffer);
        if (r < 0)
            return r;
        memcpy(o->buffers[buffer], o->image + (at - from), end - at);
        r = start_write(o, buffer, (uint32_t)(end - at), at);
        if (r < 0)
            return r;
    }
    return 0;
}

/* A frame of its data, from the first to the last, at the end of the file. */
static int write_frame(struct output *o, struct map_chunk *chunk)
{
    size_t n;
    unsigned buffer;
    int r = take_buffer(o, &buffer);

    if (r < 0)
        return r;
    n = ZSTD_compress2(o->zstd, o->buffers[buffer], MAP_STORED_MAX,
                       o->image + (o->start - o->chunk * MAP_CHUNK_BYTES), o->end - o->start);
    if (ZSTD_isError(n))
        return -EIO;
    blake_bytes(o->buffers[buffer], n, chunk->digest);
    if (o->stored + n > o->reserved) {
        /* One long extent instead of many, and a full disk is found before it is half written. */
        r = store_step("allocate");
        if (r >= 0 && fallocate(o->fd, FALLOC_FL_KEEP_SIZE, (off_t)o->stored, AHEAD_BYTES) < 0 &&
            errno != EOPNOTSUPP)
            r = -errno;
        if (r < 0)
            return r;
        o->reserved = o->stored + AHEAD_BYTES;
    }
    chunk->stored_offset = o->stored;
    chunk->stored_size = (uint32_t)n;
    o->stored += n;
    return start_write(o, buffer, (uint32_t)n, chunk->stored_offset);
}

static int flush(struct output *o)
{
    struct map_chunk chunk = {.index = (uint32_t)o->chunk};
    int r;

    if (o->start == o->end)
        return 0;
    if (!o->map.compressed)
        map_chunk_digest(&o->map, chunk.index, o->image, o->chunk * MAP_CHUNK_BYTES, chunk.digest);
    r = o->map.compressed ? write_frame(o, &chunk) : write_plain(o);
    o->start = o->end = 0;
    return r < 0 ? r : map_add_chunk(&o->map, &chunk);
}

static int add_data(struct output *o, uint64_t offset, const void *data, uint64_t size)
{
    uint64_t chunk = offset / MAP_CHUNK_BYTES, from = chunk * MAP_CHUNK_BYTES;
    int r;

    if (chunk != o->chunk) {
        r = flush(o);
        if (r < 0)
            return r;
        o->chunk = chunk;
    }
    r = map_add_run(&o->map, offset, size, MAP_DATA);
    if (r < 0)
        return r;
    if (o->start == o->end)
        o->start = offset;
    else /* what lies between packs as zeros */
        memset(o->image + (o->end - from), 0, offset - o->end);
    o->end = offset + size;
    memcpy(o->image + (offset - from), data, size);
    return 0;
}

int output_run(struct output *o, uint64_t offset, const void *data, uint64_t size,
               struct error *err)
{
    int r = data ? add_data(o, offset, data, size) : map_add_run(&o->map, offset, size, MAP_ZERO);

    return r < 0 ? error_set(err, -r, "write '%s': %s", o->path, errno_text(-r)) : 0;
}

int output_finish(struct output *o, struct map *ret_map, uint64_t *ret_size, struct error *err)
{
    uint64_t size;
    int r = flush(o);

    while (r >= 0 && io_in_flight(o->io) > 0)
        r = wait_one(o);
    size = o->map.compressed ? o->stored : o->map.size_bytes;
    if (r >= 0)
        r = store_step("truncate");
    if (r >= 0 && ftruncate(o->fd, (off_t)size) < 0) /* also gives back room taken ahead */
        r = -errno;
    if (r >= 0)
        r = store_step("sync");
    if (r >= 0 && fsync(o->fd) < 0)
        r = -errno;
    if (r < 0)
        return error_set(err, -r, "write '%s': %s", o->path, errno_text(-r));
    *ret_map = o->map;
    *ret_size = size;
    o->map = (struct map){0};
    return 0;
}
