#include "pager/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/strv.h"

/*
 * Theory of operation. One thread, one poll. Whatever is read from the userfaultfd is taken first:
 * ranges that the VMM gives back before faults, because the kernel refuses every install with
 * EAGAIN while one of them is unread, and because a page given back must never be filled from the
 * snapshot again. Faults wait in a short list until they are served; one that met EAGAIN stays in
 * it, and while the list is not empty the poll has a time-out, so that no vCPU can hang on a
 * wake-up that never comes. When nothing is asked for, the next part of the working set is
 * installed.
 *
 * The first restore of a snapshot records: each fault brings one page, and when the guest has
 * become quiet the pages are written in the order of their first touch. Later restores install them
 * first, and a fault brings its neighbours along.
 */
#define EVENTS 64
#define WAITING_MAX 1024u
#define AROUND_PAGES 16u
#define RETRY_MSEC 1
#define QUIET_USEC (1 * USEC_PER_SEC)
#define RECORD_USEC (30 * USEC_PER_SEC)
#define STATS_USEC (100 * USEC_PER_MSEC)
#define WAKE_PAGES 512u
#define STALE_MAX 100000u
#define LEARN_SHARE 16u /* an addition of less than one part of so many is not worth it */

struct server {
    const struct serve *o;
    struct guest *guest;
    uint64_t waiting[WAITING_MAX]; /* pages with a fault that is not served */
    size_t n_waiting;
    struct memory_batch *batch; /* owned; NULL when there is nothing (more) to prefetch */
    uint64_t unwoken;           /* pages of the batch since who waits was let go */
    uint8_t *expected;          /* owned; a bit for each page that the batch will bring */
    uint64_t run_page;          /* of the batch: what could not be installed yet */
    const void *run_data;
    size_t run_pages;
    struct working_set record; /* first touches */
    size_t known;              /* of these, that the working set had already */
    bool recording;            /* they are noted; one page a fault when none is known */
    pthread_t writer;
    bool writing;
    uint64_t first_usec, last_usec; /* faults; 0: none yet */
    uint64_t prefetch_usec;         /* how long it took */
    uint64_t started_usec;
    uint64_t stats_usec; /* written last */
    bool stats_changed;
    uint64_t stale_page;
    unsigned stale; /* wakes in a row for that page, which is there */
};

/* ---- stats ---- */

static void write_stats(struct server *s)
{
    const struct guest_stats *g = &s->guest->stats;
    _cleanup_free_ char *beside = NULL, *text = NULL;
    _cleanup_close_ int fd = -EBADF;

    s->stats_changed = false;
    s->stats_usec = clock_now_usec();
    if (!s->o->stats_file)
        return;
    beside = string_printf("%s.tmp", s->o->stats_file);
    text = string_printf("{\"faults\": %" PRIu64 ", \"pages\": %" PRIu64 ", \"zeros\": %" PRIu64
                         ", \"installs\": %" PRIu64 ", \"removed\": %" PRIu64
                         ", \"retries\": %" PRIu64 ", \"prefetched\": %" PRIu64
                         ", \"prefetch_usec\": %" PRIu64 ", \"recorded\": %zu, \"busy\": %s}\n",
                         g->faults, g->pages, g->zeros, g->installs, g->removed, g->retries,
                         g->prefetched, s->prefetch_usec, s->record.count - s->known,
                         s->batch || s->recording ? "true" : "false");
    if (!beside || !text)
        return;
    /* Not synced: it is of no use after a crash, and the guest would wait for it. */
    fd = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd >= 0 && fd_write_full(fd, text, strlen(text)) >= 0)
        (void)rename(beside, s->o->stats_file);
}

/* ---- record ---- */

static void *write_record(void *userdata)
{
    struct server *s = userdata;
    struct error err = {0};

    /* The snapshot may be gone by now; then nobody misses it. */
    if (working_set_write(&s->record, s->o->working_set, s->o->seal, &err) < 0)
        log_info("Working set not kept: %s", err.text);
    return NULL;
}

static void end_record(struct server *s)
{
    if (!s->recording)
        return;
    s->recording = false;
    s->stats_changed = true;
    if (s->record.count - s->known <= s->known / LEARN_SHARE)
        return;
    /* Beside: a sync takes long, and faults go on. */
    s->writing = pthread_create(&s->writer, NULL, write_record, s) == 0;
    if (!s->writing)
        (void)write_record(s);
}

/* ---- faults ---- */

static int serve_page(struct server *s, uint64_t page, struct error *err)
{
    struct guest *g = s->guest;
    const void *data;
    size_t count;
    int r;

    switch ((enum page_state)g->states[page]) {
    case PAGE_THERE:
        /* Two vCPUs met at one page. Were it not there, waking would never end. */
        s->stale = page == s->stale_page ? s->stale + 1 : 0;
        s->stale_page = page;
        if (s->stale > STALE_MAX)
            return error_set(err, EIO, "page %" PRIu64 " is lost", page);
        guest_wake(g, page);
        return 0;
    case PAGE_REMOVED:
        r = guest_install_removed(g, page);
        return r < 0 && r != -EAGAIN ? error_set(err, -r, "install a zero page: %s", errno_text(-r))
                                     : r;
    case PAGE_ABSENT:
        break;
    }
    r = memory_read(s->o->memory, page, s->recording && s->known == 0 ? 1 : AROUND_PAGES, &data,
                    &count, err);
    if (r < 0)
        return r;
    r = guest_install(g, page, data, count, /* quietly= */ false);
    if (r < 0)
        return r == -EAGAIN ? r : error_set(err, -r, "install a page: %s", errno_text(-r));
    if (s->recording && working_set_add(&s->record, (uint32_t)page) < 0)
        end_record(s);
    return 0;
}

/*
 * It comes, or came, with the batch. Served on its own, or woken at once, the guest would race the
 * batch page by page; so who waits is let go when a good part more is there.
 */
static bool is_expected(const struct server *s, uint64_t page)
{
    uint8_t state = s->guest->states[page];

    return s->batch && s->expected[page / 8] >> (page % 8) & 1 &&
           (state == PAGE_ABSENT || (state == PAGE_THERE && s->unwoken < WAKE_PAGES));
}

static int serve_waiting(struct server *s, struct error *err)
{
    size_t kept = 0;

    for (size_t i = 0; i < s->n_waiting; i++) {
        int r = is_expected(s, s->waiting[i]) ? -EAGAIN : serve_page(s, s->waiting[i], err);

        if (r == -EAGAIN)
            s->waiting[kept++] = s->waiting[i];
        else if (r < 0)
            return r;
    }
    s->n_waiting = kept;
    if (s->unwoken >= WAKE_PAGES)
        s->unwoken = 0;
    return 0;
}

static int take_fault(struct server *s, uint64_t address, struct error *err)
{
    uint64_t page;

    if (guest_page(s->guest, address, &page) < 0)
        return error_set(err, EPROTO, "a fault at %#" PRIx64 ", where there is no memory", address);
    s->guest->stats.faults++;
    s->stats_changed = true;
    s->last_usec = clock_now_usec();
    if (s->first_usec == 0)
        s->first_usec = s->last_usec;
    for (size_t i = 0; i < s->n_waiting; i++)
        if (s->waiting[i] == page)
            return 0;
    s->waiting[s->n_waiting++] = page; /* there is room: it is looked at before reading */
    return 0;
}

/* 1 when there may be more, 0 when not. */
static int read_events(struct server *s, struct error *err)
{
    struct uffd_msg events[EVENTS];
    ssize_t n;
    size_t count;
    int r = 0;

    if (WAITING_MAX - s->n_waiting < EVENTS)
        return 0;
    n = read(s->guest->uffd, events, sizeof(events));
    if (n < 0)
        return errno == EAGAIN || errno == EINTR
                   ? 0
                   : error_set(err, errno, "read events: %s", errno_text(errno));
    count = (size_t)n / sizeof(events[0]);
    for (size_t i = 0; i < count; i++)
        switch (events[i].event) {
        case UFFD_EVENT_REMOVE:
        case UFFD_EVENT_UNMAP:
            guest_remove(s->guest, events[i].arg.remove.start, events[i].arg.remove.end);
            s->stats_changed = true;
            break;
        case UFFD_EVENT_PAGEFAULT:
            break;
        default:
            r = error_set(err, EPROTO, "an event of kind %#x", events[i].event);
        }
    for (size_t i = 0; i < count && r >= 0; i++)
        if (events[i].event == UFFD_EVENT_PAGEFAULT)
            r = take_fault(s, events[i].arg.pagefault.address, err);
    return r < 0 ? r : count == EVENTS;
}

/* ---- prefetch ---- */

/* One run of the working set. */
static int prefetch(struct server *s, struct error *err)
{
    struct guest *g = s->guest;
    uint64_t before = g->stats.pages;
    int r;

    if (s->run_pages == 0) {
        r = memory_batch_next(s->batch, &s->run_page, &s->run_data, &s->run_pages, err);
        if (r < 0)
            return r;
        if (r == 0) {
            s->batch = memory_batch_free(s->batch);
            s->prefetch_usec = clock_now_usec() - s->started_usec;
            s->stats_changed = true;
            return 0;
        }
    }
    r = guest_install(g, s->run_page, s->run_data, s->run_pages, /* quietly= */ true);
    g->stats.prefetched += g->stats.pages - before;
    s->unwoken += g->stats.pages - before;
    if (r == -EAGAIN)
        return 0; /* pages that are in are skipped the next time */
    s->run_pages = 0;
    return r < 0 ? error_set(err, -r, "install the working set: %s", errno_text(-r)) : 0;
}

static int start(struct server *s, struct error *err)
{
    struct working_set set = {0};
    int r = -ENOENT;

    s->started_usec = clock_now_usec();
    if (s->o->prefetch)
        r = working_set_read(s->o->working_set, s->o->seal, s->guest->n_pages, &set);
    if (r >= 0) {
        s->expected = calloc(s->guest->n_pages / 8 + 1, 1);
        for (size_t i = 0; s->expected && i < set.count; i++)
            s->expected[set.pages[i] / 8] |= (uint8_t)(1u << (set.pages[i] % 8));
        r = s->expected ? memory_batch_new(s->o->memory, &set, &s->batch, err)
                        : error_set(err, ENOMEM, "working set: out of memory");
        s->known = set.count;
        s->record = set;
        s->recording = s->known > 0 && s->known < s->guest->n_pages / 2;
        return r;
    }
    if (r != -ENOENT)
        log_info("Working set '%s' is of no use: %s", s->o->working_set, errno_text(-r));
    s->recording = s->o->prefetch;
    return 0;
}

/* ---- loop ---- */

static int timeout_msec(const struct server *s)
{
    if (s->batch)
        return s->run_pages > 0 ? RETRY_MSEC : 0;
    if (s->n_waiting > 0)
        return RETRY_MSEC;
    if ((s->recording && s->first_usec > 0) || s->stats_changed)
        return (int)(STATS_USEC / USEC_PER_MSEC);
    return -1;
}

static void tick(struct server *s)
{
    uint64_t now = clock_now_usec();

    if (s->recording && !s->batch && s->first_usec > 0 &&
        (now - s->last_usec > QUIET_USEC || now - s->first_usec > RECORD_USEC))
        end_record(s);
    if (s->stats_changed && now - s->stats_usec > STATS_USEC)
        write_stats(s);
}

static int run(struct server *s, struct error *err)
{
    int r = start(s, err);

    while (r >= 0) {
        struct pollfd waited[] = {{.fd = s->o->pidfd, .events = POLLIN},
                                  {.fd = s->guest->uffd, .events = POLLIN}};

        if (poll(waited, 2, timeout_msec(s)) < 0 && errno != EINTR)
            return error_set(err, errno, "poll: %s", errno_text(errno));
        if (waited[0].revents)
            return 0;
        do
            r = read_events(s, err);
        while (r > 0);
        if (r >= 0)
            r = serve_waiting(s, err);
        if (r >= 0 && s->batch)
            r = prefetch(s, err);
        if (r == -ESRCH)
            return 0; /* it is dying: its memory is gone already */
        tick(s);
    }
    return r;
}

int serve(const struct serve *options, struct error *err)
{
    struct server *s = calloc(1, sizeof(*s));
    int r;

    if (!s)
        return error_set(err, ENOMEM, "serve: out of memory");
    s->o = options;
    s->guest = options->guest;
    r = run(s, err);
    end_record(s);
    if (s->writing)
        (void)pthread_join(s->writer, NULL);
    write_stats(s);
    s->batch = memory_batch_free(s->batch);
    free(s->expected);
    working_set_done(&s->record);
    free(s);
    return r;
}
