#include <stdlib.h>
#include <string.h>

#include "api/e2b/e2b-private.h"
#include "api/e2b/passwd.h"
#include "base/buf.h"
#include "base/strv.h"

/*
 * Theory of operation. A path below the home of a user needs the user's line of the guest's
 * /etc/passwd, which is read each time: the guest may have changed it. The image need not have the
 * user `user`, nor any passwd: hearth-init knows root and user by itself, and so do we.
 */
#define PASSWD_MAX (1024u * 1024u)

struct resolve {
    struct request *req;         /* weak */
    struct sandbox *sb;          /* weak, while watch is there */
    struct console *c;           /* weak, the same */
    struct sandbox_watch *watch; /* owned */
    struct transfer *transfer;   /* owned */
    struct buf passwd;
    char *user, *path; /* owned */
    envd_resolved_fn fn;
    void *state;
    void (*release)(void *state);
};

static void resolve_free(struct resolve *q)
{
    q->transfer = transfer_free(q->transfer);
    q->watch = sandbox_watch_free(q->watch);
    buf_done(&q->passwd);
    free(q->user);
    free(q->path);
    if (q->release)
        q->release(q->state);
    free(q);
}

static void on_over(void *state, enum request_end why)
{
    (void)why;
    resolve_free(state);
}

static void resolve_fail(struct resolve *q, const struct error *err)
{
    struct request *req = q->req;

    request_own(req, NULL, NULL);
    if (request_header(req, "Connect-Protocol-Version"))
        connect_answer_error(req, err);
    else
        e2b_answer_error(req, err);
    resolve_free(q);
}

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    (void)sb;
    resolve_fail(userdata, reason);
}

/* "~" and "~/x" are the home too, as everything that is not absolute. */
char *envd_join(const char *home, const char *path)
{
    if (path[0] == '/')
        return strdup(path);
    if (path[0] == '~' && (path[1] == '/' || path[1] == '\0'))
        path++;
    path += strspn(path, "/");
    if (path[0] == '\0')
        return strdup(home);
    return string_printf("%s/%s", strcmp(home, "/") == 0 ? "" : home, path);
}

static void resolve_finish(struct resolve *q)
{
    _cleanup_free_ char *home = NULL, *path = NULL;
    struct envd_account account = {0};
    struct error err = {0};

    if (passwd_find(buf_string(&q->passwd), q->passwd.size, q->user, &account.uid, &account.gid,
                    &home) < 0) {
        (void)error_set_code(&err, ERR_USER_NOT_FOUND, "user '%s' does not exist", q->user);
        resolve_fail(q, &err);
        return;
    }
    account.home = home;
    path = envd_join(home, q->path);
    if (!path) {
        (void)error_set(&err, ENOMEM, "out of memory");
        resolve_fail(q, &err);
        return;
    }
    request_own(q->req, NULL, NULL);
    q->fn(q->req, q->sb, q->c, path, &account, q->state);
    resolve_free(q);
}

static void on_data(struct transfer *t, const uint8_t *data, size_t size, void *userdata)
{
    struct resolve *q = userdata;

    (void)buf_append(&q->passwd, data, MIN(size, buf_room(&q->passwd)));
    transfer_consumed(t, size);
}

static void on_done(struct transfer *t, const struct error *err, void *userdata)
{
    struct resolve *q = userdata;

    (void)t;
    if (err && err->code != ERR_PATH_NOT_FOUND) {
        resolve_fail(q, err);
        return;
    }
    resolve_finish(q);
}

void envd_resolve(struct request *req, struct sandbox *sb, struct console *c, const char *user,
                  const char *path, envd_resolved_fn fn, void *state, void (*release)(void *state))
{
    static const struct transfer_callbacks callbacks = {.on_data = on_data, .on_done = on_done};
    struct resolve *q = calloc(1, sizeof(*q));
    struct error err = {0};
    int r;

    if (!q) {
        e2b_answer_status(req, 503, "out of memory");
        if (release)
            release(state);
        return;
    }
    *q = (struct resolve){
        .req = req, .sb = sb, .c = c, .fn = fn, .state = state, .release = release};
    buf_init(&q->passwd, PASSWD_MAX);
    q->user = strdup(user);
    q->path = strdup(path);
    r = q->user && q->path ? sandbox_watch_new(sb, on_gone, q, &q->watch) : -ENOMEM;
    if (r < 0)
        error_fill(&err, r, "sandbox '%s'", sandbox_id(sb));
    else
        r = file_read_start(c, NULL, "/etc/passwd", 0, PASSWD_MAX, &callbacks, q, &q->transfer,
                            &err);
    if (r < 0)
        resolve_fail(q, &err);
    else
        request_own(req, q, on_over);
}
