#include "pager/guest.h"

#include <errno.h>
#include <linux/userfaultfd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/fd.h"

int guest_init(struct guest *g, const struct handover *at, int uffd_consume, uint64_t n_pages)
{
    int r;

    *g = (struct guest){.uffd = uffd_consume, .at = *at, .n_pages = n_pages};
    g->states = calloc(n_pages, 1);
    r = g->states ? fd_set_nonblock(g->uffd, true) : -ENOMEM;
    if (r < 0)
        guest_done(g);
    return r;
}

void guest_done(struct guest *g)
{
    g->uffd = fd_close(g->uffd);
    free(g->states);
    g->states = NULL;
}

int guest_page(const struct guest *g, uint64_t address, uint64_t *ret_page)
{
    const struct region *region = handover_at_address(&g->at, address);

    if (!region)
        return -ENOENT;
    *ret_page = (region->offset + (address - region->address)) / HANDOVER_PAGE;
    return 0;
}

void guest_remove(struct guest *g, uint64_t start, uint64_t end)
{
    for (size_t i = 0; i < g->at.n_regions; i++) {
        const struct region *region = &g->at.regions[i];
        uint64_t from = start > region->address ? start : region->address,
                 to = end < region->address + region->size ? end : region->address + region->size;

        if (from >= to)
            continue;
        from = (region->offset + (from - region->address)) / HANDOVER_PAGE;
        to = (region->offset + (to - region->address)) / HANDOVER_PAGE;
        memset(g->states + from, PAGE_REMOVED, to - from);
        g->stats.removed += to - from;
    }
}

/* One call of the kernel. *ret_done bytes are in whatever it returns. */
static int put(struct guest *g, uint64_t address, const void *data, uint64_t size, bool quietly,
               uint64_t *ret_done)
{
    static const uint8_t zeros[HANDOVER_PAGE];
    struct uffdio_copy copy = {.dst = address,
                               .src = (uintptr_t)data,
                               .len = size,
                               .mode = quietly ? UFFDIO_COPY_MODE_DONTWAKE : 0};
    struct uffdio_zeropage zero = {.range = {.start = address, .len = size},
                                   .mode = quietly ? UFFDIO_ZEROPAGE_MODE_DONTWAKE : 0};
    int64_t done;
    int r;

    g->stats.installs++;
    if (!data) {
        r = ioctl(g->uffd, UFFDIO_ZEROPAGE, &zero) < 0 ? -errno : 0;
        done = zero.zeropage;
        if (r == -EINVAL) { /* memory that cannot share the zero page */
            copy.src = (uintptr_t)zeros;
            copy.len = HANDOVER_PAGE;
            r = ioctl(g->uffd, UFFDIO_COPY, &copy) < 0 ? -errno : 0;
            done = copy.copy;
        }
    } else {
        r = ioctl(g->uffd, UFFDIO_COPY, &copy) < 0 ? -errno : 0;
        done = copy.copy;
    }
    /* A count, or the error once more when there was none. */
    *ret_done = done > 0 ? (uint64_t)done : 0;
    if (*ret_done > 0 && r == -EAGAIN)
        r = 0; /* the rest is tried again and says so again */
    return r;
}

static void wake(struct guest *g, uint64_t address)
{
    struct uffdio_range range = {.start = address, .len = HANDOVER_PAGE};

    (void)ioctl(g->uffd, UFFDIO_WAKE, &range);
}

/* `count` pages in one region, all of them not there. */
static int put_all(struct guest *g, const struct region *region, uint64_t page, const uint8_t *data,
                   size_t count, bool quietly)
{
    while (count > 0) {
        uint64_t address = region->address + (page * HANDOVER_PAGE - region->offset), done;
        int r = put(g, address, data, count * (uint64_t)HANDOVER_PAGE, quietly, &done);

        done /= HANDOVER_PAGE;
        memset(g->states + page, PAGE_THERE, done);
        g->stats.pages += done;
        g->stats.zeros += data ? 0 : done;
        if (r == -EEXIST) {
            g->states[page + done] = PAGE_THERE;
            wake(g, address + done * HANDOVER_PAGE);
            done++;
        } else if (r == -ENOENT) {
            done++; /* no longer registered: nothing waits there */
        } else if (r < 0) {
            if (r == -EAGAIN)
                g->stats.retries++;
            return r;
        }
        page += done;
        count -= done;
        data = data ? data + done * HANDOVER_PAGE : NULL;
    }
    return 0;
}

static int install(struct guest *g, uint64_t page, const uint8_t *data, size_t count,
                   enum page_state from, bool quietly)
{
    uint64_t end = page + count;

    if (page >= g->n_pages || count > g->n_pages - page)
        return -EINVAL;
    while (page < end) {
        const struct region *region;
        uint64_t limit, n = 1;
        int r;

        if (g->states[page] != from) {
            data = data ? data + HANDOVER_PAGE : NULL;
            page++;
            continue;
        }
        region = handover_at_offset(&g->at, page * HANDOVER_PAGE);
        if (!region) { /* memory that this VM does not have */
            data = data ? data + HANDOVER_PAGE : NULL;
            page++;
            continue;
        }
        limit = (region->offset + region->size) / HANDOVER_PAGE;
        while (page + n < end && page + n < limit && g->states[page + n] == from)
            n++;
        r = put_all(g, region, page, data, n, quietly);
        if (r < 0)
            return r;
        data = data ? data + n * HANDOVER_PAGE : NULL;
        page += n;
    }
    return 0;
}

int guest_install(struct guest *g, uint64_t page, const void *data, size_t count, bool quietly)
{
    return install(g, page, data, count, PAGE_ABSENT, quietly);
}

int guest_install_removed(struct guest *g, uint64_t page)
{
    return install(g, page, NULL, 1, PAGE_REMOVED, false);
}

void guest_wake(struct guest *g, uint64_t page)
{
    const struct region *region = handover_at_offset(&g->at, page * HANDOVER_PAGE);

    if (region)
        wake(g, region->address + (page * HANDOVER_PAGE - region->offset));
}
