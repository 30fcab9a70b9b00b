#include "api/native/ticket.h"

#include <stdlib.h>

struct ticket {
    struct request *req;         /* weak; NULL once the request is over */
    struct sandbox_watch *watch; /* owned, may be NULL */
};

static void ticket_free(struct ticket *t)
{
    t->watch = sandbox_watch_free(t->watch);
    free(t);
}

static void on_over(void *state, enum request_end why)
{
    struct ticket *t = state;

    (void)why;
    t->req = NULL;
}

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    struct ticket *t = userdata;
    struct request *req = t->req;

    (void)sb;
    if (req) {
        request_own(req, NULL, NULL);
        request_answer_error(req, reason);
    }
    ticket_free(t);
}

struct ticket *ticket_new(struct request *req, struct sandbox *sb)
{
    struct ticket *t = calloc(1, sizeof(*t));
    int r = t ? 0 : -ENOMEM;

    if (t && sb)
        r = sandbox_watch_new(sb, on_gone, t, &t->watch);
    if (r < 0) {
        struct error err = {0};
        error_fill(&err, r, "wait for the sandbox");
        request_answer_error(req, &err);
        free(t);
        return NULL;
    }
    t->req = req;
    request_own(req, t, on_over);
    return t;
}

struct request *ticket_take(struct ticket *t)
{
    struct request *req = t->req;

    if (req)
        request_own(req, NULL, NULL);
    ticket_free(t);
    return req;
}

struct request *ticket_peek(const struct ticket *t)
{
    return t->req;
}

void ticket_answer_done(struct ticket *t, const struct error *err)
{
    struct request *req = ticket_take(t);

    if (!req)
        return;
    if (err)
        request_answer_error(req, err);
    else
        request_answer_empty(req, 204);
}
