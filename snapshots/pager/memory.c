#include "pager/memory.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"

/*
 * Chunks of layers are verified as a whole, so those that were read stay a while: neighbours are
 * often asked for next.
 */
#define CACHE_CHUNKS 32u
#define CHUNK_PAGES (MAP_CHUNK_BYTES / MAP_PAGE_BYTES)
#define OWNER_BASE 0u
#define OWNER_BASE_HOLE 254u /* even: zero, as OWNER_IS_ZERO() has it */

struct cached {
    uint8_t *image; /* owned */
    uint64_t start; /* offset of its first byte */
    uint32_t chunk;
    uint8_t layer;
    bool used;
    uint64_t last_use;
};

struct memory {
    const struct snapshot *snap; /* ref */
    int base_fd;                 /* owned */
    uint8_t *owners;             /* owned */
    uint64_t n_pages;
    struct cached cache[CACHE_CHUNKS];
    uint64_t clock;
    uint8_t *packed; /* owned, STORED_READ_MAX */
    uint8_t *base;   /* owned, a chunk of the base */
};

struct memory *memory_free(struct memory *m)
{
    if (!m)
        return NULL;
    m->base_fd = fd_close(m->base_fd);
    for (size_t i = 0; i < CACHE_CHUNKS; i++)
        free(m->cache[i].image);
    free(m->owners);
    free(m->packed);
    free(m->base);
    free(m);
    return NULL;
}

/* Pages that the base does not have either are zero. */
static int find_base_holes(struct memory *m)
{
    uint64_t size = m->n_pages * MAP_PAGE_BYTES, at = 0;

    while (at < size) {
        off_t data = lseek(m->base_fd, (off_t)at, SEEK_DATA), hole;
        uint64_t end = data < 0 ? size : (uint64_t)data;

        if (data < 0 && errno != ENXIO)
            return -errno;
        for (uint64_t p = (at + MAP_PAGE_BYTES - 1) / MAP_PAGE_BYTES; p < end / MAP_PAGE_BYTES; p++)
            if (m->owners[p] == OWNER_BASE)
                m->owners[p] = OWNER_BASE_HOLE;
        if (data < 0)
            return 0;
        hole = lseek(m->base_fd, data, SEEK_HOLE);
        if (hole < 0)
            return -errno;
        at = (uint64_t)hole;
    }
    return 0;
}

int memory_new(const struct snapshot *snap, struct memory **ret, struct error *err)
{
    struct memory *m = calloc(1, sizeof(*m));
    int r = -ENOMEM;

    if (m) {
        m->snap = snap;
        m->base_fd = open(snap->base.memory, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        r = m->base_fd < 0 ? -errno : snapshot_owners(snap, &m->owners, &m->n_pages);
    }
    if (r >= 0) {
        m->packed = malloc(STORED_READ_MAX);
        m->base = malloc(MAP_CHUNK_BYTES);
        r = m->packed && m->base ? find_base_holes(m) : -ENOMEM;
    }
    if (r < 0) {
        (void)memory_free(m);
        return error_set(err, -r, "memory of a snapshot: '%s': %s", snap->base.memory,
                         errno_text(-r));
    }
    *ret = m;
    return 0;
}

uint64_t memory_pages(const struct memory *m)
{
    return m->n_pages;
}

static int read_full(int fd, uint8_t *data, size_t size, uint64_t offset)
{
    while (size > 0) {
        ssize_t n = pread(fd, data, size, (off_t)offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -ENODATA;
        data += n;
        size -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

static struct cached *oldest(struct memory *m)
{
    struct cached *found = &m->cache[0];

    for (size_t i = 0; i < CACHE_CHUNKS; i++) {
        if (!m->cache[i].used)
            return &m->cache[i];
        if (m->cache[i].last_use < found->last_use)
            found = &m->cache[i];
    }
    return found;
}

/* A chunk of a layer, verified. */
static int load_chunk(struct memory *m, uint8_t layer, uint32_t index, struct cached **ret,
                      struct error *err)
{
    const struct stored *s = &m->snap->layers[layer].memory;
    const struct map_chunk *chunk = map_find_chunk(&s->map, (uint64_t)index * MAP_CHUNK_BYTES);
    struct feed_item item;
    struct cached *c;
    const uint8_t *image;
    int r;

    for (size_t i = 0; i < CACHE_CHUNKS; i++) {
        c = &m->cache[i];
        if (c->used && c->layer == layer && c->chunk == index) {
            c->last_use = ++m->clock;
            *ret = c;
            return 0;
        }
    }
    c = oldest(m);
    c->used = false;
    if (!c->image)
        c->image = malloc(MAP_CHUNK_BYTES);
    if (!c->image)
        return error_set(err, ENOMEM, "memory of a snapshot: out of memory");
    stored_plan(s, chunk, &item);
    r = read_full(item.fd, m->packed, item.size, item.offset);
    if (r < 0)
        return error_set(err, -r, "read '%s': %s", s->path, errno_text(-r));
    r = stored_unpack(s, chunk, m->packed, c->image, &image, &c->start, err);
    if (r < 0)
        return r;
    if (image != c->image)
        memcpy(c->image, image, item.size);
    c->layer = layer;
    c->chunk = index;
    c->used = true;
    c->last_use = ++m->clock;
    *ret = c;
    return 0;
}

/* How many pages from `page` on have the same source, up to `max` and the end of its chunk. */
static size_t run_length(const struct memory *m, uint64_t page, size_t max)
{
    const uint8_t owner = m->owners[page];
    size_t n = 1;

    while (n < max && page + n < m->n_pages && (page + n) % CHUNK_PAGES != 0 &&
           (m->owners[page + n] == owner ||
            (OWNER_IS_ZERO(owner) && OWNER_IS_ZERO(m->owners[page + n]))))
        n++;
    return n;
}

int memory_read(struct memory *m, uint64_t page, size_t max, const void **ret_data,
                size_t *ret_pages, struct error *err)
{
    size_t n;
    int r;

    if (page >= m->n_pages || max == 0)
        return error_set(err, EINVAL, "memory of a snapshot: no page %llu",
                         (unsigned long long)page);
    n = run_length(m, page, max);
    if (OWNER_IS_ZERO(m->owners[page])) {
        *ret_data = NULL;
    } else if (m->owners[page] == OWNER_BASE) {
        r = read_full(m->base_fd, m->base, n * MAP_PAGE_BYTES, page * MAP_PAGE_BYTES);
        if (r < 0)
            return error_set(err, -r, "read '%s': %s", m->snap->base.memory, errno_text(-r));
        *ret_data = m->base;
    } else {
        struct cached *c;

        r = load_chunk(m, (uint8_t)OWNER_LAYER(m->owners[page]), (uint32_t)(page / CHUNK_PAGES), &c,
                       err);
        if (r < 0)
            return r;
        *ret_data = c->image + (page * MAP_PAGE_BYTES - c->start);
    }
    *ret_pages = n;
    return 0;
}

/* ---- batches ---- */

/* One read: a part of the base or a chunk of a layer, and the pages wanted of it. */
struct part {
    uint32_t chunk;
    uint32_t next; /* another part of the same chunk; UINT32_MAX: none */
    uint8_t owner; /* OWNER_BASE, OWNER_BASE_HOLE for all zeros, or a layer's */
    uint8_t wanted[CHUNK_PAGES / 8];
};

struct memory_batch {
    struct memory *memory; /* ref */
    struct part *parts;    /* owned, in the order of the first touch */
    size_t n_parts, room;
    struct feed *feed; /* owned */
    size_t planned;    /* parts given to the feed */
    size_t now;        /* part whose pages are handed out; n_parts at the end */
    bool loaded;       /* its bytes are there */
    const uint8_t *image;
    uint64_t start;   /* offset of image */
    unsigned page;    /* next of its pages */
    uint8_t *scratch; /* owned */
};

static bool is_wanted(const struct part *p, unsigned page)
{
    return p->wanted[page / 8] >> (page % 8) & 1;
}

/* `heads`: the first part of each chunk. */
static int want(struct memory_batch *b, uint32_t *heads, uint32_t page)
{
    const struct memory *m = b->memory;
    uint32_t chunk = page / CHUNK_PAGES;
    uint8_t owner = OWNER_IS_ZERO(m->owners[page]) ? OWNER_BASE_HOLE : m->owners[page];
    struct part *p = NULL;

    for (uint32_t i = heads[chunk]; i != UINT32_MAX && !p; i = b->parts[i].next)
        if (b->parts[i].owner == owner)
            p = &b->parts[i];
    if (!p) {
        if (b->n_parts == b->room) {
            size_t room = b->room ? b->room * 2 : 64;
            struct part *larger = reallocarray(b->parts, room, sizeof(*larger));

            if (!larger)
                return -ENOMEM;
            b->parts = larger;
            b->room = room;
        }
        p = &b->parts[b->n_parts];
        *p = (struct part){.chunk = chunk, .owner = owner, .next = heads[chunk]};
        heads[chunk] = (uint32_t)b->n_parts++;
    }
    p->wanted[page % CHUNK_PAGES / 8] |= (uint8_t)(1u << (page % 8));
    return 0;
}

/* From the first wanted page to the last. */
static void base_span(const struct part *p, uint64_t *ret_start, uint32_t *ret_size)
{
    unsigned first = 0, last = CHUNK_PAGES - 1;

    while (!is_wanted(p, first))
        first++;
    while (!is_wanted(p, last))
        last--;
    *ret_start = (uint64_t)p->chunk * MAP_CHUNK_BYTES + first * (uint64_t)MAP_PAGE_BYTES;
    *ret_size = (last - first + 1) * MAP_PAGE_BYTES;
}

static bool plan_part(void *userdata, struct feed_item *ret)
{
    struct memory_batch *b = userdata;
    const struct part *p;

    while (b->planned < b->n_parts && b->parts[b->planned].owner == OWNER_BASE_HOLE)
        b->planned++;
    if (b->planned == b->n_parts)
        return false;
    p = &b->parts[b->planned];
    ret->tag = b->planned++;
    if (p->owner == OWNER_BASE) {
        ret->fd = b->memory->base_fd;
        base_span(p, &ret->offset, &ret->size);
    } else {
        const struct stored *s = &b->memory->snap->layers[OWNER_LAYER(p->owner)].memory;

        stored_plan(s, map_find_chunk(&s->map, (uint64_t)p->chunk * MAP_CHUNK_BYTES), ret);
    }
    return true;
}

int memory_batch_new(struct memory *m, const struct working_set *set, struct memory_batch **ret,
                     struct error *err)
{
    struct memory_batch *b = calloc(1, sizeof(*b));
    uint64_t n_chunks = (m->n_pages + CHUNK_PAGES - 1) / CHUNK_PAGES;
    _cleanup_free_ uint32_t *heads = malloc(n_chunks * sizeof(*heads));
    int r = b && heads ? 0 : -ENOMEM;

    if (r >= 0) {
        memset(heads, 0xff, n_chunks * sizeof(*heads));
        b->memory = m;
        b->scratch = malloc(MAP_CHUNK_BYTES);
        if (!b->scratch)
            r = -ENOMEM;
    }
    for (size_t i = 0; r >= 0 && i < set->count; i++)
        r = set->pages[i] < m->n_pages ? want(b, heads, set->pages[i]) : -EINVAL;
    if (r >= 0)
        r = feed_new(STORED_READ_MAX, plan_part, b, &b->feed);
    if (r < 0) {
        (void)memory_batch_free(b);
        return error_set(err, -r, "working set: %s", errno_text(-r));
    }
    *ret = b;
    return 0;
}

struct memory_batch *memory_batch_free(struct memory_batch *b)
{
    if (!b)
        return NULL;
    b->feed = feed_free(b->feed);
    free(b->parts);
    free(b->scratch);
    free(b);
    return NULL;
}

static int load_part(struct memory_batch *b, struct error *err)
{
    const struct part *p = &b->parts[b->now];
    const struct stored *s;
    struct feed_item item;
    uint8_t *data;
    int r;

    b->loaded = true;
    b->page = 0;
    b->image = NULL;
    if (p->owner == OWNER_BASE_HOLE)
        return 0;
    r = feed_next(b->feed, &item, &data);
    if (r <= 0)
        return error_set(err, r < 0 ? -r : EIO, "read the working set: %s",
                         errno_text(r < 0 ? -r : EIO));
    if (p->owner == OWNER_BASE) {
        b->image = data;
        b->start = item.offset;
        return 0;
    }
    s = &b->memory->snap->layers[OWNER_LAYER(p->owner)].memory;
    return stored_unpack(s, map_find_chunk(&s->map, (uint64_t)p->chunk * MAP_CHUNK_BYTES), data,
                         b->scratch, &b->image, &b->start, err);
}

int memory_batch_next(struct memory_batch *b, uint64_t *ret_page, const void **ret_data,
                      size_t *ret_pages, struct error *err)
{
    while (b->now < b->n_parts) {
        const struct part *p = &b->parts[b->now];
        unsigned first;

        if (!b->loaded) {
            int r = load_part(b, err);

            if (r < 0)
                return r;
        }
        while (b->page < CHUNK_PAGES && !is_wanted(p, b->page))
            b->page++;
        if (b->page == CHUNK_PAGES) {
            b->now++;
            b->loaded = false;
            continue;
        }
        first = b->page;
        while (b->page < CHUNK_PAGES && is_wanted(p, b->page))
            b->page++;
        *ret_page = (uint64_t)p->chunk * CHUNK_PAGES + first;
        *ret_pages = b->page - first;
        *ret_data = b->image ? b->image + (*ret_page * MAP_PAGE_BYTES - b->start) : NULL;
        return 1;
    }
    return 0;
}
