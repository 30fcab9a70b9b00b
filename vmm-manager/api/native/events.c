#include "api/native/events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/native/handlers.h"
#include "api/native/native.h"
#include "base/clock.h"
#include "base/strv.h"
#include "core/events.h"

#define CLIENT_BUFFER_MAX (64u * 1024u)
#define QUIET_USEC (15 * USEC_PER_SEC) /* then a comment shows that the connection lives */

struct event {
    uint64_t number;
    uint64_t wall_usec;
    const char *what; /* of a table, not freed */
    char id[32], name[64], tenant[TENANT_SIZE];
};

struct event_client {
    struct event_hub *hub; /* weak */
    struct request *req;   /* weak */
    char only[64];         /* id or name of one sandbox; "": all */
    struct event_client *prev, *next;
};

struct event_hub {
    struct loop *loop;              /* weak */
    struct core_listener *listener; /* owned */
    struct source *quiet;           /* owned */
    struct event *ring;             /* owned: EVENTS_KEPT */
    uint64_t first;                 /* number before the first: later than those of older daemons */
    uint64_t count;                 /* so many have happened */
    struct event_client *clients;   /* each owned by its request */
    size_t n_clients;
};

/* ---- to a client ---- */

static bool concerns(const struct event_client *c, const struct event *e)
{
    return access_sees(c->req, e->tenant) &&
           (!c->only[0] || strcmp(c->only, e->id) == 0 || strcmp(c->only, e->name) == 0);
}

/* A client that does not read is cut off: it can come back for the rest. */
static void client_send(struct event_client *c, const char *text)
{
    if (request_stream_write(c->req, text, strlen(text)) < 0)
        request_stream_end(c->req, /* complete= */ false);
}

static void client_event(struct event_client *c, const struct event *e)
{
    char time[32];
    _cleanup_free_ char *data = NULL, *text = NULL;
    json_t *json;

    clock_format_wall(e->wall_usec, time, sizeof(time));
    json = json_pack("{s:s, s:s, s:s, s:s}", "sandbox", e->id, "state", e->what, "tenant",
                     e->tenant, "time", time);
    if (json && e->name[0])
        (void)json_object_set_new(json, "name", json_string(e->name));
    data = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    if (data)
        text = string_printf("id: %llu\nevent: sandbox\ndata: %s\n\n",
                             (unsigned long long)e->number, data);
    if (text)
        client_send(c, text);
}

/* ---- what happens ---- */

static void on_change(const struct sandbox *sb, const char *what, void *userdata)
{
    struct event_hub *hub = userdata;
    const char *name = sandbox_get_spec(sb)->name;
    struct event *e = &hub->ring[hub->count % EVENTS_KEPT];

    *e = (struct event){
        .number = hub->first + ++hub->count,
        .wall_usec = clock_wall_usec(),
        .what = what,
    };
    (void)snprintf(e->id, sizeof(e->id), "%s", sandbox_id(sb));
    (void)snprintf(e->name, sizeof(e->name), "%s", name ? name : "");
    (void)snprintf(e->tenant, sizeof(e->tenant), "%s", sandbox_tenant(sb));
    for (struct event_client *c = hub->clients, *next; c; c = next) {
        next = c->next;
        if (concerns(c, e))
            client_event(c, e);
    }
}

static int on_quiet(struct source *s, uint64_t now_usec, void *userdata)
{
    struct event_hub *hub = userdata;

    for (struct event_client *c = hub->clients, *next; c; c = next) {
        next = c->next;
        client_send(c, ": quiet\n\n");
    }
    return source_set_time(s, now_usec + QUIET_USEC);
}

int event_hub_new(struct core *core, struct loop *loop, struct event_hub **ret)
{
    struct event_hub *hub = calloc(1, sizeof(*hub));
    int r = hub ? 0 : -ENOMEM;

    if (hub) {
        hub->loop = loop;
        hub->first = clock_wall_usec();
        hub->ring = calloc(EVENTS_KEPT, sizeof(*hub->ring));
        r = hub->ring ? core_listen(core, on_change, hub, &hub->listener) : -ENOMEM;
    }
    if (r >= 0)
        r = loop_add_timer(loop, "events-quiet", clock_now_usec() + QUIET_USEC, on_quiet, hub,
                           &hub->quiet);
    if (r < 0) {
        (void)event_hub_free(hub);
        return r;
    }
    *ret = hub;
    return 0;
}

struct event_hub *event_hub_free(struct event_hub *hub)
{
    if (!hub)
        return NULL;
    hub->listener = core_listener_free(hub->listener);
    hub->quiet = source_free(hub->quiet);
    free(hub->ring);
    free(hub);
    return NULL;
}

/* ---- clients ---- */

static void on_over(void *state, enum request_end why)
{
    struct event_client *c = state;

    (void)why;
    if (c->prev)
        c->prev->next = c->next;
    else
        c->hub->clients = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->hub->n_clients--;
    free(c);
}

/* What happened after the event of this number. */
static void replay(struct event_client *c, uint64_t seen)
{
    const struct event_hub *hub = c->hub;
    uint64_t kept = MIN(hub->count, (uint64_t)EVENTS_KEPT);
    uint64_t oldest = hub->count - kept; /* index of the oldest that is kept */

    if (seen < hub->first + oldest || seen > hub->first + hub->count)
        client_send(c, "event: reset\ndata: {}\n\n");
    for (uint64_t i = oldest; i < hub->count; i++) {
        const struct event *e = &hub->ring[i % EVENTS_KEPT];
        if (e->number > seen && concerns(c, e))
            client_event(c, e);
    }
}

void handle_events(struct request *req)
{
    struct event_hub *hub = native_of(req)->events;
    const char *only = NULL, *last = request_header(req, "Last-Event-ID");
    struct event_client *c;
    struct error err = {0};
    uint64_t seen = 0;

    if (!native_query_string(req, "sandbox", &only))
        return;
    if (last && parse_u64(last, 0, UINT64_MAX, &seen) < 0)
        error_set(&err, EINVAL, "Last-Event-ID: '%.32s' is no number", last);
    else if (only && strlen(only) >= sizeof(c->only))
        error_set(&err, EINVAL, "'sandbox': too long");
    else if (hub->n_clients >= EVENT_CLIENTS_MAX)
        error_set_code(&err, ERR_TOO_MANY, "%u clients listen already", EVENT_CLIENTS_MAX);
    c = err.errnum ? NULL : calloc(1, sizeof(*c));
    if (!c) {
        error_fill(&err, -ENOMEM, "events: out of memory");
        request_answer_error(req, &err);
        return;
    }
    c->hub = hub;
    c->req = req;
    (void)snprintf(c->only, sizeof(c->only), "%s", only ? only : "");
    c->next = hub->clients;
    if (c->next)
        c->next->prev = c;
    hub->clients = c;
    hub->n_clients++;
    request_own(req, c, on_over);
    (void)request_add_header(req, "Cache-Control", "no-store");
    request_stream_begin(req, "text/event-stream", CLIENT_BUFFER_MAX, NULL);
    client_send(c, ": hello\n\n");
    if (last)
        replay(c, seen);
}
