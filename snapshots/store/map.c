#include "store/map.h"

#include <endian.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "HEARTHM1"
#define HEADER_BYTES 32u
#define RUN_BYTES 16u
#define CHUNK_BYTES (16u + DIGEST_BYTES)
#define FLAG_COMPRESSED 1u
#define KIND_MASK 3u

void map_done(struct map *m)
{
    free(m->runs);
    free(m->chunks);
    memset(m, 0, sizeof(*m));
}

static int grow(void **array, size_t *room, size_t count, size_t item)
{
    size_t wanted = *room ? *room * 2 : 64;
    void *larger;

    if (count < *room)
        return 0;
    if (wanted > MAP_FILE_BYTES_MAX / item)
        wanted = MAP_FILE_BYTES_MAX / item;
    if (count >= wanted)
        return -EFBIG;
    larger = reallocarray(*array, wanted, item);
    if (!larger)
        return -ENOMEM;
    *array = larger;
    *room = wanted;
    return 0;
}

int map_add_run(struct map *m, uint64_t offset, uint64_t size, enum map_kind kind)
{
    struct map_run *last = m->n_runs > 0 ? &m->runs[m->n_runs - 1] : NULL;
    void *runs = m->runs;
    int r;

    if (last && last->kind == kind && last->offset + last->size == offset) {
        last->size += size;
        return 0;
    }
    r = grow(&runs, &m->runs_room, m->n_runs, sizeof(*m->runs));
    if (r < 0)
        return r;
    m->runs = runs;
    m->runs[m->n_runs++] = (struct map_run){.offset = offset, .size = size, .kind = kind};
    return 0;
}

int map_add_chunk(struct map *m, const struct map_chunk *chunk)
{
    void *chunks = m->chunks;
    int r = grow(&chunks, &m->chunks_room, m->n_chunks, sizeof(*m->chunks));

    if (r < 0)
        return r;
    m->chunks = chunks;
    m->chunks[m->n_chunks++] = *chunk;
    return 0;
}

uint64_t map_bytes(const struct map *m, enum map_kind kind)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < m->n_runs; i++)
        if (m->runs[i].kind == kind)
            bytes += m->runs[i].size;
    return bytes;
}

size_t map_find_run(const struct map *m, uint64_t offset)
{
    size_t low = 0, high = m->n_runs;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (m->runs[middle].offset + m->runs[middle].size <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct map_chunk *map_find_chunk(const struct map *m, uint64_t offset)
{
    uint64_t index = offset / MAP_CHUNK_BYTES;
    size_t low = 0, high = m->n_chunks;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (m->chunks[middle].index < index)
            low = middle + 1;
        else
            high = middle;
    }
    return low < m->n_chunks && m->chunks[low].index == index ? &m->chunks[low] : NULL;
}

bool map_chunk_span(const struct map *m, uint32_t index, uint64_t *ret_start, uint64_t *ret_end)
{
    uint64_t from = (uint64_t)index * MAP_CHUNK_BYTES, to = from + MAP_CHUNK_BYTES;
    bool found = false;

    for (size_t i = map_find_run(m, from); i < m->n_runs && m->runs[i].offset < to; i++) {
        uint64_t end = m->runs[i].offset + m->runs[i].size;

        if (m->runs[i].kind != MAP_DATA)
            continue;
        if (!found)
            *ret_start = m->runs[i].offset > from ? m->runs[i].offset : from;
        *ret_end = end < to ? end : to;
        found = true;
    }
    return found;
}

void map_chunk_digest(const struct map *m, uint32_t index, const uint8_t *image, uint64_t start,
                      uint8_t ret[DIGEST_BYTES])
{
    uint64_t from = (uint64_t)index * MAP_CHUNK_BYTES, to = from + MAP_CHUNK_BYTES;
    crypto_generichash_state state;

    (void)crypto_generichash_init(&state, NULL, 0, DIGEST_BYTES);
    for (size_t i = map_find_run(m, from); i < m->n_runs && m->runs[i].offset < to; i++) {
        uint64_t begin = m->runs[i].offset, end = begin + m->runs[i].size;

        if (m->runs[i].kind != MAP_DATA)
            continue;
        if (begin < from)
            begin = from;
        if (end > to)
            end = to;
        (void)crypto_generichash_update(&state, image + (begin - start), end - begin);
    }
    (void)crypto_generichash_final(&state, ret, DIGEST_BYTES);
}

/* ---- bytes ---- */

static uint8_t *put32(uint8_t *to, uint32_t value)
{
    value = htole32(value);
    memcpy(to, &value, sizeof(value));
    return to + sizeof(value);
}

static uint8_t *put64(uint8_t *to, uint64_t value)
{
    value = htole64(value);
    memcpy(to, &value, sizeof(value));
    return to + sizeof(value);
}

static uint32_t get32(const uint8_t *from)
{
    uint32_t value;

    memcpy(&value, from, sizeof(value));
    return le32toh(value);
}

static uint64_t get64(const uint8_t *from)
{
    uint64_t value;

    memcpy(&value, from, sizeof(value));
    return le64toh(value);
}

int map_encode(const struct map *m, uint8_t **ret, size_t *ret_size, struct error *err)
{
    size_t size = HEADER_BYTES + m->n_runs * RUN_BYTES + m->n_chunks * CHUNK_BYTES;
    uint8_t *data, *p;

    if (size > MAP_FILE_BYTES_MAX)
        return error_set(err, EFBIG, "the map would have %zu bytes, at most %u are possible", size,
                         MAP_FILE_BYTES_MAX);
    p = data = malloc(size);
    if (!data)
        return error_set(err, ENOMEM, "map: out of memory");
    memcpy(p, MAGIC, 8);
    p = put32(p + 8, m->compressed ? FLAG_COMPRESSED : 0);
    p = put32(p, MAP_CHUNK_BYTES);
    p = put64(p, m->size_bytes);
    p = put32(p, (uint32_t)m->n_runs);
    p = put32(p, (uint32_t)m->n_chunks);
    for (size_t i = 0; i < m->n_runs; i++) {
        p = put64(p, m->runs[i].offset | (uint64_t)m->runs[i].kind);
        p = put64(p, m->runs[i].size);
    }
    for (size_t i = 0; i < m->n_chunks; i++) {
        p = put32(p, m->chunks[i].index);
        p = put32(p, m->chunks[i].stored_size);
        p = put64(p, m->chunks[i].stored_offset);
        memcpy(p, m->chunks[i].digest, DIGEST_BYTES);
        p += DIGEST_BYTES;
    }
    *ret = data;
    *ret_size = size;
    return 0;
}

static int decode_runs(const uint8_t *p, size_t count, struct map *m, struct error *err)
{
    uint64_t end = 0;
    enum map_kind last = MAP_ZERO;

    for (size_t i = 0; i < count; i++, p += RUN_BYTES) {
        uint64_t word = get64(p), size = get64(p + 8), offset = word & ~(uint64_t)KIND_MASK;
        enum map_kind kind = (word & KIND_MASK) == MAP_DATA ? MAP_DATA : MAP_ZERO;

        if ((word & KIND_MASK) != MAP_DATA && (word & KIND_MASK) != MAP_ZERO)
            return error_set_code(err, ERR_SNAPSHOT_INVALID, "run %zu: unknown kind", i);
        if (offset % MAP_PAGE_BYTES != 0 || size == 0 || offset >= m->size_bytes ||
            size > m->size_bytes - offset ||
            (size % MAP_PAGE_BYTES != 0 && offset + size != m->size_bytes))
            return error_set_code(err, ERR_SNAPSHOT_INVALID, "run %zu: not within the file", i);
        if (offset < end || (i > 0 && offset == end && kind == last))
            return error_set_code(err, ERR_SNAPSHOT_INVALID, "run %zu: out of order", i);
        m->runs[i] = (struct map_run){.offset = offset, .size = size, .kind = kind};
        end = offset + size;
        last = kind;
    }
    m->n_runs = m->runs_room = count;
    return 0;
}

/* Chunks are exactly those that data runs touch, and frames follow each other. */
static int decode_chunks(const uint8_t *p, size_t count, struct map *m, struct error *err)
{
    uint64_t stored = 0, next = 0;
    size_t have = 0;

    for (size_t i = 0; i < m->n_runs; i++) {
        uint64_t first = m->runs[i].offset / MAP_CHUNK_BYTES,
                 last = (m->runs[i].offset + m->runs[i].size - 1) / MAP_CHUNK_BYTES;

        if (m->runs[i].kind != MAP_DATA)
            continue;
        for (uint64_t index = first < next ? next : first; index <= last; index++) {
            struct map_chunk *c = &m->chunks[have];

            if (have == count)
                return error_set_code(err, ERR_SNAPSHOT_INVALID, "a chunk has no digest");
            c->index = get32(p);
            c->stored_size = get32(p + 4);
            c->stored_offset = get64(p + 8);
            memcpy(c->digest, p + 16, DIGEST_BYTES);
            if (c->index != index)
                return error_set_code(err, ERR_SNAPSHOT_INVALID, "chunk %zu: out of order", have);
            if (c->stored_offset != stored || c->stored_size > MAP_STORED_MAX ||
                m->compressed != (c->stored_size > 0))
                return error_set_code(err, ERR_SNAPSHOT_INVALID, "chunk %zu: not within the file",
                                      have);
            stored += c->stored_size;
            p += CHUNK_BYTES;
            next = index + 1;
            have++;
        }
    }
    if (have != count)
        return error_set_code(err, ERR_SNAPSHOT_INVALID, "a chunk has no data");
    m->n_chunks = m->chunks_room = count;
    return 0;
}

int map_decode(const uint8_t *data, size_t size, struct map *ret, struct error *err)
{
    struct map m = {0};
    uint32_t flags;
    size_t n_runs, n_chunks;
    int r;

    if (size < HEADER_BYTES || size > MAP_FILE_BYTES_MAX || memcmp(data, MAGIC, 8) != 0)
        return error_set_code(err, ERR_SNAPSHOT_INVALID, "not a map of this version");
    flags = get32(data + 8);
    m.size_bytes = get64(data + 16);
    n_runs = get32(data + 24);
    n_chunks = get32(data + 28);
    if (flags > FLAG_COMPRESSED || get32(data + 12) != MAP_CHUNK_BYTES ||
        m.size_bytes > MAP_SIZE_MAX)
        return error_set_code(err, ERR_SNAPSHOT_INVALID, "header with unknown values");
    if (n_runs > size / RUN_BYTES || n_chunks > size / CHUNK_BYTES ||
        size != HEADER_BYTES + n_runs * RUN_BYTES + n_chunks * CHUNK_BYTES)
        return error_set_code(err, ERR_SNAPSHOT_INVALID, "truncated, or longer than it says");
    m.compressed = flags & FLAG_COMPRESSED;
    m.runs = calloc(n_runs + 1, sizeof(*m.runs));
    m.chunks = calloc(n_chunks + 1, sizeof(*m.chunks));
    if (!m.runs || !m.chunks)
        r = error_set(err, ENOMEM, "map: out of memory");
    else
        r = decode_runs(data + HEADER_BYTES, n_runs, &m, err);
    if (r >= 0)
        r = decode_chunks(data + HEADER_BYTES + n_runs * RUN_BYTES, n_chunks, &m, err);
    if (r < 0) {
        map_done(&m);
        return r;
    }
    *ret = m;
    return 0;
}
