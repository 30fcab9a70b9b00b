#include "host/console.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/clock.h"
#include "host/call.h"
#include "host/console-internal.h"

#define ENTROPY_SIZE 64u

/* protobuf-c has no const strings; packing only reads them. */
static char *text(const char *s)
{
    union {
        const char *in;
        char *out;
    } u = {.in = s};

    return u.out;
}

int console_thaw(struct console *c, const struct console_identity *identity, uint64_t deadline_usec,
                 console_done_fn done, void *userdata)
{
    Hearth__V1__Thaw thaw = HEARTH__V1__THAW__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;
    uint8_t entropy[ENTROPY_SIZE];
    struct timespec now;
    size_t length;
    int r;

    if (!identity || !identity->hostname || !identity->machine_id || !identity->boot_id)
        return -EINVAL;
    length = strlen(identity->hostname);
    if (length < 1 || length > 63 || strlen(identity->machine_id) != 32 ||
        strlen(identity->boot_id) != 36)
        return -EINVAL;
    if (getrandom(entropy, sizeof(entropy), 0) != (ssize_t)sizeof(entropy) ||
        clock_gettime(CLOCK_REALTIME, &now) < 0)
        return -EIO;
    thaw.entropy.data = entropy;
    thaw.entropy.len = sizeof(entropy);
    thaw.realtime_nsec = (uint64_t)now.tv_sec * NSEC_PER_SEC + (uint64_t)now.tv_nsec;
    thaw.hostname = text(identity->hostname);
    thaw.machine_id = text(identity->machine_id);
    thaw.boot_id = text(identity->boot_id);
    request.op_case = HEARTH__V1__REQUEST__OP_THAW;
    request.thaw = &thaw;
    r = still_end(c, &request, deadline_usec, done, userdata);
    explicit_bzero(entropy, sizeof(entropy));
    return r;
}

int console_freeze(struct console *c, uint64_t deadline_usec, console_done_fn done, void *userdata)
{
    Hearth__V1__Freeze freeze = HEARTH__V1__FREEZE__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;

    request.op_case = HEARTH__V1__REQUEST__OP_FREEZE;
    request.freeze = &freeze;
    return still_begin(c, &request, deadline_usec, done, userdata);
}

int console_new_layer(struct console *c, uint64_t deadline_usec, console_done_fn done,
                      void *userdata)
{
    Hearth__V1__Layer layer = HEARTH__V1__LAYER__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;

    request.op_case = HEARTH__V1__REQUEST__OP_LAYER;
    request.layer = &layer;
    return call_plain(c, "putting a layer over the guest's root", WIRE_SUBJECT_GUEST, &request,
                      deadline_usec, done, userdata);
}

static int power_off_reply(struct call *call, const Hearth__V1__Event *event, struct error *err)
{
    (void)call;
    if (event->event_case != HEARTH__V1__EVENT__EVENT_DONE)
        return channel_unexpected(event, "instead of Done", err);
    return 1;
}

/* A guest that is gone has been powered off. */
static void power_off_finish(struct call *call, const struct error *err)
{
    if (call->fn)
        call->fn(call->console, err && err->code == ERR_GUEST_GONE ? NULL : err, call->userdata);
}

int console_power_off(struct console *c, uint32_t grace_msec, uint64_t deadline_usec,
                      console_done_fn done, void *userdata)
{
    Hearth__V1__PowerOff power_off = HEARTH__V1__POWER_OFF__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;
    struct call *call = calloc(1, sizeof(*call));

    if (!call)
        return -ENOMEM;
    call->what = "powering the guest off";
    call->reply = power_off_reply;
    call->finish = power_off_finish;
    call->fn = done;
    call->userdata = userdata;
    power_off.grace_msec = grace_msec;
    request.op_case = HEARTH__V1__REQUEST__OP_POWER_OFF;
    request.power_off = &power_off;
    return call_start_consume(c, call, &request, deadline_usec);
}

static int ping_reply(struct call *call, const Hearth__V1__Event *event, struct error *err)
{
    if (event->event_case != HEARTH__V1__EVENT__EVENT_PONG)
        return channel_unexpected(event, "instead of Pong", err);
    if (event->pong->payload.len != sizeof(call->tag) ||
        memcmp(event->pong->payload.data, &call->tag, sizeof(call->tag)) != 0)
        return error_set_code(err, ERR_GUEST_PROTOCOL, "guest answered a ping with other bytes");
    return 1;
}

static void ping_finish(struct call *call, const struct error *err)
{
    if (call->fn)
        call->fn(call->console, err, call->userdata);
}

int console_ping(struct console *c, uint64_t deadline_usec, console_done_fn done, void *userdata)
{
    Hearth__V1__Ping ping = HEARTH__V1__PING__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;
    struct call *call = calloc(1, sizeof(*call));

    if (!call)
        return -ENOMEM;
    call->what = "pinging the guest";
    call->reply = ping_reply;
    call->finish = ping_finish;
    call->fn = done;
    call->userdata = userdata;
    call->tag = clock_now_usec();
    ping.payload.data = (uint8_t *)&call->tag;
    ping.payload.len = sizeof(call->tag);
    request.op_case = HEARTH__V1__REQUEST__OP_PING;
    request.ping = &ping;
    return call_start_consume(c, call, &request, deadline_usec);
}

struct stats_call {
    struct call base;
    console_stats_fn fn;
    struct console_stats stats;
};

static int stats_reply(struct call *call, const Hearth__V1__Event *event, struct error *err)
{
    struct console_stats *to = &container_of(call, struct stats_call, base)->stats;
    const Hearth__V1__StatsReply *from;

    if (event->event_case != HEARTH__V1__EVENT__EVENT_STATS)
        return channel_unexpected(event, "instead of StatsReply", err);
    from = event->stats;
    to->memory_total = from->memory_total;
    to->memory_available = from->memory_available;
    to->disk_total = from->disk_total;
    to->disk_free = from->disk_free;
    to->cpu_usec = from->cpu_usec;
    to->uptime_usec = from->uptime_usec;
    to->cpus = from->cpus;
    to->processes = from->processes;
    return 1;
}

static void stats_finish(struct call *call, const struct error *err)
{
    struct stats_call *stats = container_of(call, struct stats_call, base);

    stats->fn(call->console, err ? NULL : &stats->stats, err, call->userdata);
}

int console_stats(struct console *c, uint64_t deadline_usec, console_stats_fn done, void *userdata)
{
    Hearth__V1__Stats stats = HEARTH__V1__STATS__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;
    struct stats_call *call = calloc(1, sizeof(*call));

    if (!call)
        return -ENOMEM;
    call->base.what = "asking the guest for its figures";
    call->base.reply = stats_reply;
    call->base.finish = stats_finish;
    call->base.userdata = userdata;
    call->fn = done;
    request.op_case = HEARTH__V1__REQUEST__OP_STATS;
    request.stats = &stats;
    return call_start_consume(c, &call->base, &request, deadline_usec);
}
