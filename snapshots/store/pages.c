#include <string.h>

#include "store/snapshot-internal.h"

/*
 * Theory of operation. A table says for each page which layer of the chain holds it. Chunk by chunk
 * in ascending order, every layer that holds a page of the chunk is read (ahead, several at once)
 * and verified, and its pages are put together into one image, of which runs are handed out.
 */
struct pages {
    struct page_source source;
    const struct snapshot *snap; /* ref */
    uint8_t *owners;             /* owned */
    uint32_t *layers;            /* owned; per chunk, a bit for every layer with data of it */
    uint64_t n_pages, n_chunks;
    struct feed *feed; /* owned */
    uint64_t plan_chunk;
    uint32_t plan_left; /* layers of plan_chunk not yet planned */
    uint8_t *scratch;   /* owned */
    uint8_t *image;     /* owned: the chunk image_chunk */
    uint64_t image_chunk;
    uint64_t page; /* next to be handed out */
};

#define PAGES_PER_CHUNK (MAP_CHUNK_BYTES / MAP_PAGE_BYTES)

int snapshot_owners(const struct snapshot *snap, uint8_t **ret, uint64_t *ret_pages)
{
    uint64_t n = snap->layers[0].manifest.info.memory_bytes / MAP_PAGE_BYTES;
    uint8_t *owners = calloc(n, 1);

    if (!owners)
        return -ENOMEM;
    for (size_t i = snap->n_layers; i-- > 0;) {
        const struct map *m = &snap->layers[i].memory.map;

        for (size_t j = 0; j < m->n_runs; j++)
            memset(owners + m->runs[j].offset / MAP_PAGE_BYTES,
                   (int)(1 + 2 * i + (m->runs[j].kind == MAP_ZERO)),
                   m->runs[j].size / MAP_PAGE_BYTES);
    }
    *ret = owners;
    *ret_pages = n;
    return 0;
}

static bool plan_pages(void *userdata, struct feed_item *ret)
{
    struct pages *p = userdata;
    const struct stored *s;
    unsigned layer;

    while (p->plan_left == 0) {
        if (++p->plan_chunk >= p->n_chunks)
            return false;
        p->plan_left = p->layers[p->plan_chunk];
    }
    layer = (unsigned)__builtin_ctz(p->plan_left);
    p->plan_left &= p->plan_left - 1;
    s = &p->snap->layers[layer].memory;
    ret->tag = layer;
    stored_plan(s, map_find_chunk(&s->map, p->plan_chunk * MAP_CHUNK_BYTES), ret);
    return true;
}

/* Puts the chunk of p->page together. */
static int make_image(struct pages *p, struct error *err)
{
    uint64_t chunk = p->page / PAGES_PER_CHUNK, first = chunk * PAGES_PER_CHUNK;
    uint64_t last = MIN(first + PAGES_PER_CHUNK, p->n_pages);

    for (uint32_t left = p->layers[chunk]; left != 0; left &= left - 1) {
        unsigned layer = (unsigned)__builtin_ctz(left);
        const struct stored *s = &p->snap->layers[layer].memory;
        struct feed_item item;
        const uint8_t *image;
        uint8_t *data;
        uint64_t start;
        int r = feed_next(p->feed, &item, &data);

        if (r == 0 || r == -ENODATA)
            return error_set_code(err, ERR_SNAPSHOT_INVALID, "'%s' is truncated", s->path);
        if (r < 0)
            return error_set(err, -r, "read '%s': %s", s->path, errno_text(-r));
        r = stored_unpack(s, map_find_chunk(&s->map, chunk * MAP_CHUNK_BYTES), data, p->scratch,
                          &image, &start, err);
        if (r < 0)
            return r;
        for (uint64_t page = first; page < last; page++)
            if (p->owners[page] == 1 + 2 * layer)
                memcpy(p->image + (page - first) * MAP_PAGE_BYTES,
                       image + (page * MAP_PAGE_BYTES - start), MAP_PAGE_BYTES);
    }
    p->image_chunk = chunk;
    return 0;
}

static int pages_next(struct page_source *source, uint64_t *ret_offset, const void **ret_data,
                      size_t *ret_size, struct error *err)
{
    struct pages *p = (struct pages *)source;
    uint64_t first, end;

    while (p->page < p->n_pages && p->owners[p->page] == 0)
        p->page++;
    if (p->page == p->n_pages)
        return 0;
    first = p->page;
    end = first + 1;
    if (OWNER_IS_ZERO(p->owners[first])) {
        while (end < p->n_pages && OWNER_IS_ZERO(p->owners[end]))
            end++;
        *ret_data = NULL;
    } else {
        uint64_t chunk = first / PAGES_PER_CHUNK;

        if (p->image_chunk != chunk) {
            int r = make_image(p, err);

            if (r < 0)
                return r;
        }
        while (end < p->n_pages && end / PAGES_PER_CHUNK == chunk && OWNER_IS_DATA(p->owners[end]))
            end++;
        *ret_data = p->image + (first - chunk * PAGES_PER_CHUNK) * MAP_PAGE_BYTES;
    }
    p->page = end;
    *ret_offset = first * MAP_PAGE_BYTES;
    *ret_size = (size_t)(end - first) * MAP_PAGE_BYTES;
    return 1;
}

static struct page_source *pages_free(struct page_source *source)
{
    struct pages *p = (struct pages *)source;

    if (!p)
        return NULL;
    p->feed = feed_free(p->feed);
    free(p->owners);
    free(p->layers);
    free(p->scratch);
    free(p->image);
    free(p);
    return NULL;
}

static const struct page_source_ops pages_ops = {
    .next = pages_next,
    .free = pages_free,
};

int snapshot_pages(struct snapshot *snap, struct page_source **ret, struct error *err)
{
    struct pages *p = calloc(1, sizeof(*p));
    int r;

    if (!p)
        return error_set(err, ENOMEM, "pages of a snapshot: out of memory");
    p->source.ops = &pages_ops;
    p->snap = snap;
    p->image_chunk = UINT64_MAX;
    p->plan_chunk = UINT64_MAX; /* the first step goes to 0 */
    r = snapshot_owners(snap, &p->owners, &p->n_pages);
    if (r >= 0) {
        p->n_chunks = (p->n_pages + PAGES_PER_CHUNK - 1) / PAGES_PER_CHUNK;
        p->layers = calloc(p->n_chunks, sizeof(*p->layers));
        p->scratch = malloc(MAP_CHUNK_BYTES);
        p->image = malloc(MAP_CHUNK_BYTES);
        r = p->layers && p->scratch && p->image ? 0 : -ENOMEM;
    }
    if (r >= 0)
        r = feed_new(STORED_READ_MAX, plan_pages, p, &p->feed);
    if (r < 0) {
        (void)pages_free(&p->source);
        return error_set(err, -r, "pages of a snapshot: %s", errno_text(-r));
    }
    for (uint64_t page = 0; page < p->n_pages; page++)
        if (OWNER_IS_DATA(p->owners[page]))
            p->layers[page / PAGES_PER_CHUNK] |= UINT32_C(1) << OWNER_LAYER(p->owners[page]);
    *ret = &p->source;
    return 0;
}
