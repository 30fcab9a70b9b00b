#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/macros.h"

/*
 * Reads that are planned one after the other, done several at a time and handed out in the order of
 * the plan. For one thread.
 */
struct feed;

struct feed_item {
    int fd; /* weak */
    uint32_t size;
    uint64_t offset;
    uint64_t tag; /* of the planner */
};

/* Fills in the next read; false: there are no more. Not asked again after that. */
typedef bool (*feed_plan_fn)(void *userdata, struct feed_item *ret);

#define FEED_DEPTH 6u

/* No item is larger than `max`. */
int feed_new(uint32_t max, feed_plan_fn plan, void *userdata, struct feed **ret);
struct feed *feed_free(struct feed *f); /* always NULL */
static inline void feed_cleanup(struct feed **f)
{
    *f = feed_free(*f);
}
/*
 * 1 and the bytes of the next item, valid (and the caller's to change) until the next call; 0 after
 * the last; -ENODATA when the file ends too early; another negative errno.
 */
int feed_next(struct feed *f, struct feed_item *ret, uint8_t **ret_data);
