#include "store/feed.h"

#include <errno.h>
#include <stdlib.h>

#include "store/io.h"
#include "store/step.h"

struct slot {
    struct feed_item item;
    uint8_t *data; /* owned */
    bool finished;
    int result;
};

/* A ring of slots: `head` is handed out next, reads are started at `tail`. */
struct feed {
    feed_plan_fn plan;
    void *userdata;
    struct io *io; /* owned */
    struct slot slots[FEED_DEPTH];
    uint32_t max;
    unsigned head, tail, used;
    bool ended, given; /* given: the slot at head is with the caller */
};

int feed_new(uint32_t max, feed_plan_fn plan, void *userdata, struct feed **ret)
{
    struct feed *f = calloc(1, sizeof(*f));
    int r;

    if (!f)
        return -ENOMEM;
    f->plan = plan;
    f->userdata = userdata;
    f->max = max;
    r = io_new(FEED_DEPTH, &f->io);
    for (unsigned i = 0; r >= 0 && i < FEED_DEPTH; i++) {
        f->slots[i].data = malloc(max);
        if (!f->slots[i].data)
            r = -ENOMEM;
    }
    if (r < 0) {
        (void)feed_free(f);
        return r;
    }
    *ret = f;
    return 0;
}

struct feed *feed_free(struct feed *f)
{
    if (!f)
        return NULL;
    f->io = io_free(f->io);
    for (unsigned i = 0; i < FEED_DEPTH; i++)
        free(f->slots[i].data);
    free(f);
    return NULL;
}

static int start_more(struct feed *f)
{
    while (!f->ended && f->used < FEED_DEPTH) {
        struct slot *slot = &f->slots[f->tail];
        int r;

        if (!f->plan(f->userdata, &slot->item)) {
            f->ended = true;
            break;
        }
        if (slot->item.size == 0 || slot->item.size > f->max)
            return -EINVAL;
        r = store_step("read");
        if (r >= 0)
            r = io_read(f->io, slot->item.fd, slot->data, slot->item.size, slot->item.offset,
                        f->tail);
        if (r < 0)
            return r;
        slot->finished = false;
        f->tail = (f->tail + 1) % FEED_DEPTH;
        f->used++;
    }
    return 0;
}

int feed_next(struct feed *f, struct feed_item *ret, uint8_t **ret_data)
{
    struct slot *slot;
    int r;

    if (f->given) {
        f->head = (f->head + 1) % FEED_DEPTH;
        f->used--;
        f->given = false;
    }
    r = start_more(f);
    if (r < 0)
        return r;
    if (f->used == 0)
        return 0;
    slot = &f->slots[f->head];
    while (!slot->finished) {
        uint64_t tag;
        int result;

        r = io_wait(f->io, &tag, &result);
        if (r < 0)
            return r;
        f->slots[tag].finished = true;
        f->slots[tag].result = result;
    }
    if (slot->result < 0)
        return slot->result;
    if ((uint32_t)slot->result != slot->item.size)
        return -ENODATA;
    f->given = true;
    *ret = slot->item;
    *ret_data = slot->data;
    return 1;
}
