#include "core/guest-link.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/strv.h"

/*
 * Theory of operation. CONNECTING: a timer tries console_connect() with a growing pause. HELLO,
 * then THAWING, then READY; BROKEN ends it from anywhere. Where the VMM takes connections before
 * the guest does, an end of the connection leads from HELLO back to CONNECTING. From READY to
 * PARKED and on to CONNECTING for a guest that is frozen: then the console is the one of before. It
 * may be broken from inside its own callbacks, so it is freed by guest_link_free() only, which the
 * owner may call inside on_broken: console.h allows console_free() there.
 */
#define RETRY_FIRST_USEC (1 * USEC_PER_MSEC)
#define RETRY_MAX_USEC (50 * USEC_PER_MSEC)

enum link_state {
    LINK_CONNECTING,
    LINK_HELLO,
    LINK_THAWING,
    LINK_READY,
    LINK_PARKED,
    LINK_BROKEN,
};

struct guest_link {
    struct loop *loop;       /* ref */
    struct backend *backend; /* weak */
    char vm_id[64];
    uint64_t deadline_usec;
    uint64_t pause_usec;
    enum link_thaw thaw;
    struct link_identity identity;
    enum link_state state;
    bool continues;          /* with the console of before */
    struct console *console; /* owned */
    struct source *timer;    /* owned */
    struct guest_link_callbacks cb;
    void *userdata;
    uint64_t started_usec;
};

static void trace(const struct guest_link *link, const char *what)
{
    log_sandbox(LOG_LEVEL_DEBUG, link->vm_id, "Console %s after %llu us", what,
                (unsigned long long)(clock_now_usec() - link->started_usec));
}

void link_identity_name(struct link_identity *identity, const char *hostname)
{
    (void)snprintf(identity->hostname, sizeof(identity->hostname), "%s", hostname);
    for (char *c = identity->hostname; *c; c++) {
        if (*c == '_') /* fine in a name of ours, not in a host's */
            *c = '-';
    }
}

void link_identity_make(struct link_identity *ret, const char *hostname)
{
    unsigned char id[16], uuid[16];
    char hex[33];

    link_identity_name(ret, hostname);
    randombytes_buf(id, sizeof(id));
    hex_encode(id, sizeof(id), ret->machine_id);
    randombytes_buf(uuid, sizeof(uuid));
    uuid[6] = (unsigned char)((uuid[6] & 0x0f) | 0x40); /* version 4 */
    uuid[8] = (unsigned char)((uuid[8] & 0x3f) | 0x80);
    hex_encode(uuid, sizeof(uuid), hex);
    (void)snprintf(ret->boot_id, sizeof(ret->boot_id), "%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8,
                   hex + 12, hex + 16, hex + 20);
}

static void link_break(struct guest_link *link, const struct error *reason)
{
    if (link->state == LINK_BROKEN)
        return;
    link->state = LINK_BROKEN;
    link->timer = source_free(link->timer);
    link->cb.on_broken(link, reason, link->userdata);
}

static void on_console_broken(struct console *c, const struct error *reason, void *userdata)
{
    (void)c;
    link_break(userdata, reason);
}

static void link_ready(struct guest_link *link)
{
    link->state = LINK_READY;
    trace(link, "is ready");
    link->cb.on_ready(link, link->userdata);
}

static void on_thawed(struct console *c, const struct error *err, void *userdata)
{
    struct guest_link *link = userdata;

    (void)c;
    if (link->state != LINK_THAWING)
        return;
    if (err)
        link_break(link, err);
    else
        link_ready(link);
}

/* 0: the connection came too early, and the next try is set. */
static int link_try_again(struct guest_link *link, const struct error *err)
{
    uint64_t now = clock_now_usec(), pause = link->pause_usec;

    if (!link->backend->ops->console_closes_early || err->code != ERR_GUEST_GONE ||
        now >= link->deadline_usec)
        return -EAGAIN;
    if (!link->continues)
        link->console = console_free(link->console);
    link->state = LINK_CONNECTING;
    link->pause_usec = MIN(pause * 2, RETRY_MAX_USEC);
    return source_set_time(link->timer, MIN(now + pause, link->deadline_usec));
}

static void on_hello(struct console *c, const struct error *err, void *userdata)
{
    struct guest_link *link = userdata;
    struct error failed = {0};
    int r;

    if (link->state != LINK_HELLO)
        return;
    if (err) {
        if (link_try_again(link, err) >= 0)
            return;
        if (link->backend->ops->console_closes_early && err->code == ERR_GUEST_GONE)
            (void)error_set_code(&failed, ERR_GUEST_UNRESPONSIVE,
                                 "guest '%s' did not answer on its console in time", link->vm_id);
        link_break(link, failed.errnum ? &failed : err);
        return;
    }
    trace(link, "answered the hello");
    if (!link->continues && link->thaw == LINK_THAW_UNLESS_THAWED && console_get_info(c)->thawed) {
        link_ready(link);
        return;
    }
    link->state = LINK_THAWING;
    const struct console_identity identity = {
        .hostname = link->identity.hostname,
        .machine_id = link->identity.machine_id,
        .boot_id = link->identity.boot_id,
    };
    r = console_thaw(c, &identity, link->deadline_usec, on_thawed, link);
    if (r < 0) {
        (void)error_set(&failed, -r, "guest '%s': thaw: %s", link->vm_id, errno_text(-r));
        link_break(link, &failed);
    }
}

static int say_hello_consume(struct guest_link *link, int fd)
{
    int r;

    trace(link, "is connected");
    if (link->continues)
        return console_continue_consume(link->console, fd, link->deadline_usec, on_hello, link);
    r = console_new(link->loop, link->vm_id, on_console_broken, link, &link->console);
    if (r < 0) {
        (void)fd_close(fd);
        return r;
    }
    return console_open_consume(link->console, fd, link->deadline_usec, on_hello, link);
}

/* 0: connected and the hello is on its way; -EAGAIN: not yet. */
static int link_try(struct guest_link *link, struct error *err)
{
    int fd, r;

    fd = link->backend->ops->console_connect(link->backend, link->vm_id, err);
    if (fd == -ENOENT || fd == -ECONNREFUSED || fd == -EAGAIN || fd == -ESRCH)
        return -EAGAIN;
    if (fd < 0)
        return fd;
    link->state = LINK_HELLO;
    r = say_hello_consume(link, fd);
    if (r < 0 && link->backend->ops->console_closes_early) {
        if (!link->continues)
            link->console = console_free(link->console);
        link->state = LINK_CONNECTING;
        return -EAGAIN;
    }
    if (r < 0)
        return error_set(err, -r, "guest '%s': hello: %s", link->vm_id, errno_text(-r));
    return 0;
}

static int on_retry(struct source *s, uint64_t now_usec, void *userdata)
{
    struct guest_link *link = userdata;
    struct error err = {0};
    int r;

    if (link->state != LINK_CONNECTING)
        return 0;
    r = link_try(link, &err);
    if (r == 0)
        return 0;
    if (r == -EAGAIN && now_usec < link->deadline_usec) {
        uint64_t pause = link->pause_usec;

        link->pause_usec = MIN(pause * 2, RETRY_MAX_USEC);
        return source_set_time(s, MIN(now_usec + pause, link->deadline_usec));
    }
    if (r == -EAGAIN)
        (void)error_set_code(&err, ERR_GUEST_UNRESPONSIVE,
                             "guest '%s': nothing took a connection to its console in time",
                             link->vm_id);
    link_break(link, &err);
    return 0;
}

int guest_link_new(const struct guest_link_options *options, const struct guest_link_callbacks *cb,
                   void *userdata, struct guest_link **ret)
{
    struct guest_link *link;
    int r;

    if (strlen(options->vm_id) >= sizeof(link->vm_id))
        return -ENAMETOOLONG;
    link = calloc(1, sizeof(*link));
    if (!link)
        return -ENOMEM;
    link->loop = options->loop;
    link->backend = options->backend;
    (void)snprintf(link->vm_id, sizeof(link->vm_id), "%s", options->vm_id);
    link->deadline_usec = options->deadline_usec;
    link->pause_usec = RETRY_FIRST_USEC;
    link->thaw = options->thaw;
    link->identity = *options->identity;
    link->cb = *cb;
    link->userdata = userdata;
    link->started_usec = clock_now_usec();
    r = loop_add_timer(link->loop, "guest-link", clock_now_usec(), on_retry, link, &link->timer);
    if (r < 0) {
        free(link);
        return r;
    }
    *ret = link;
    return 0;
}

struct guest_link *guest_link_free(struct guest_link *link)
{
    if (!link)
        return NULL;
    (void)source_free(link->timer);
    (void)console_free(link->console);
    free(link);
    return NULL;
}

int guest_link_park(struct guest_link *link)
{
    int r = link->state == LINK_READY ? console_park(link->console) : -ENOTCONN;

    if (r >= 0)
        link->state = LINK_PARKED;
    return r;
}

int guest_link_continue(struct guest_link *link, uint64_t deadline_usec,
                        const struct guest_link_callbacks *cb, void *userdata)
{
    if (link->state != LINK_PARKED)
        return -EALREADY;
    link->state = LINK_CONNECTING;
    link->continues = true;
    link->cb = *cb;
    link->userdata = userdata;
    link->deadline_usec = deadline_usec;
    link->pause_usec = RETRY_FIRST_USEC;
    link->started_usec = clock_now_usec();
    return source_set_time(link->timer, link->started_usec);
}

bool guest_link_parked(const struct guest_link *link)
{
    return link && link->state == LINK_PARKED;
}

struct console *guest_link_console(struct guest_link *link)
{
    return link && link->state == LINK_READY ? link->console : NULL;
}

bool guest_link_connected(const struct guest_link *link)
{
    return link->console != NULL;
}
