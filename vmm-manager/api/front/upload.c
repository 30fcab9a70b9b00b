#include "api/front/upload.h"

#include <stdlib.h>
#include <string.h>

#include "base/strv.h"

struct upload {
    const struct upload_ops *ops; /* weak */
    void *owner;                  /* weak */
    struct console *c;            /* weak */
    struct transfer *transfer;    /* owned */
    struct file_call *call;       /* owned: the change of owner */
    char *user, *path;            /* owned */
    uint32_t uid, gid;
    bool ready, as_root, finished;
};

struct upload *upload_free(struct upload *u)
{
    if (!u)
        return NULL;
    u->transfer = transfer_free(u->transfer);
    u->call = file_call_free(u->call);
    free(u->user);
    free(u->path);
    free(u);
    return NULL;
}

static int upload_open(struct upload *u, struct error *err);

static void on_ready(struct transfer *t, uint64_t size, void *userdata)
{
    struct upload *u = userdata;

    (void)t;
    (void)size;
    u->ready = true;
    if (u->finished)
        (void)transfer_finish(u->transfer);
    else
        u->ops->writable(u->owner);
}

static void on_writable(struct transfer *t, void *userdata)
{
    struct upload *u = userdata;

    (void)t;
    u->ops->writable(u->owner);
}

static void on_owned(const struct error *err, void *userdata)
{
    struct upload *u = userdata;

    u->call = file_call_free(u->call);
    u->ops->done(u->owner, err);
}

static void on_done(struct transfer *t, const struct error *err, void *userdata)
{
    const struct upload *const_u = userdata;
    struct upload *u = userdata;
    const struct file_attr attr = {.set_owner = true, .uid = const_u->uid, .gid = const_u->gid};
    struct error failed = {0};
    int r;

    (void)t;
    if (err && err->code == ERR_PERMISSION_DENIED && !u->ready && !u->as_root) {
        u->transfer = transfer_free(u->transfer);
        u->as_root = true;
        if (upload_open(u, &failed) < 0)
            u->ops->done(u->owner, &failed);
        return;
    }
    if (err || !u->as_root) {
        u->ops->done(u->owner, err);
        return;
    }
    u->transfer = transfer_free(u->transfer);
    r = file_set_attr(u->c, NULL, u->path, &attr, on_owned, u, &u->call, &failed);
    if (r < 0)
        u->ops->done(u->owner, &failed);
}

static int upload_open(struct upload *u, struct error *err)
{
    static const struct transfer_callbacks callbacks = {
        .on_ready = on_ready,
        .on_writable = on_writable,
        .on_done = on_done,
    };
    const struct file_write_options options = {.mode = 0644, .parents = true};

    return file_write_start(u->c, u->as_root ? NULL : u->user, u->path, &options, &callbacks, u,
                            &u->transfer, err);
}

int upload_start(const struct upload_target *target, const struct upload_ops *ops, void *owner,
                 struct upload **ret, struct error *err)
{
    struct upload *u = calloc(1, sizeof(*u));
    int r;

    if (!u)
        return error_set(err, ENOMEM, "out of memory");
    u->ops = ops;
    u->owner = owner;
    u->c = target->c;
    u->uid = target->uid;
    u->gid = target->gid;
    if (string_set(&u->user, target->user) < 0 || string_set(&u->path, target->path) < 0)
        r = error_set(err, ENOMEM, "out of memory");
    else
        r = upload_open(u, err);
    if (r < 0) {
        (void)upload_free(u);
        return r;
    }
    *ret = u;
    return 0;
}

size_t upload_write(struct upload *u, const uint8_t *data, size_t size)
{
    size_t n = u->ready && u->transfer ? MIN(transfer_writable(u->transfer), size) : 0;

    if (n == 0 || transfer_write(u->transfer, data, n) < 0)
        return 0;
    return n;
}

void upload_finish(struct upload *u)
{
    u->finished = true;
    if (u->ready && u->transfer)
        (void)transfer_finish(u->transfer);
}
