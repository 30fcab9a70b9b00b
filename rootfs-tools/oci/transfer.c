#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"
#include "erofs/digest.h"
#include "oci/registry-private.h"

/*
 * Theory of operation. Each blob is a small state machine around one libcurl handle; one thread
 * drives all of them. A blob that breaks off goes on with a Range from the last byte that was
 * written, at the same endpoint after a pause, and at the next one when that does not help.
 */

#define PARALLEL_MAX 4u
#define POLL_MSEC 200
#define BUSY_USEC                                                                                  \
    (200 * USEC_PER_MSEC) /* until a blob that somebody else gets is looked at again */
#define WRONG_DIGESTS_MAX 2u
#define STATUS_BODY_MAX ((size_t)16 * 1024)

enum transfer_state {
    TRANSFER_WAITING, /* until not_before */
    TRANSFER_RUNNING,
    TRANSFER_DONE,
};

struct transfer {
    const struct registry_transfer *what; /* weak */
    struct registry *registry;            /* weak */
    size_t index;
    enum transfer_state state;
    uint64_t not_before;
    size_t endpoint;
    unsigned attempts; /* without a new byte */
    unsigned wrong;    /* digests */
    bool begun;        /* the caller said go */
    bool asked;        /* authenticated since the last success */
    bool answered;     /* bytes of this try have come */

    CURL *easy;              /* owned while running */
    struct curl_slist *list; /* owned while running */
    struct http_headers headers;
    struct buf body; /* of an answer that is an error */
    int fd;          /* owned: PATH.part */
    uint64_t have;
    struct digest digest;
    struct error err; /* what the last try failed with */
    int fatal;        /* of the write callback; not worth another try */
};

static void end_try(struct transfer *t, CURLM *multi)
{
    if (t->easy) {
        (void)curl_multi_remove_handle(multi, t->easy);
        curl_easy_cleanup(t->easy);
        curl_slist_free_all(t->list);
    }
    t->easy = NULL;
    t->list = NULL;
}

static void transfer_free(struct transfer *t, CURLM *multi)
{
    end_try(t, multi);
    digest_done(&t->digest);
    buf_done(&t->body);
    t->fd = fd_close(t->fd);
}

/* ---- the file ---- */

static int start_over(struct transfer *t)
{
    digest_done(&t->digest);
    digest_init(&t->digest);
    t->have = 0;
    return ftruncate(t->fd, 0) < 0 ? -errno : 0;
}

/* Opens PATH.part and hashes what an earlier try has left in it. */
static int open_part(struct transfer *t, struct error *err)
{
    _cleanup_free_ char *path = string_printf("%s.part", t->what->path);
    _cleanup_free_ uint8_t *block = malloc(1024 * 1024);

    if (!path || !block)
        return error_set(err, ENOMEM, "out of memory");
    t->fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (t->fd < 0)
        return error_set(err, errno, "create '%s': %s", path, errno_text(errno));
    digest_init(&t->digest);
    for (;;) {
        ssize_t n = fd_read_full(t->fd, block, 1024 * 1024);

        if (n < 0)
            return error_set(err, (int)-n, "read '%s': %s", path, errno_text((int)-n));
        if (n == 0)
            break;
        digest_update(&t->digest, block, (size_t)n);
        t->have += (uint64_t)n;
    }
    if (t->have > t->what->blob->size && start_over(t) < 0)
        return error_set(err, errno, "truncate '%s': %s", path, errno_text(errno));
    return 0;
}

static int finish_file(struct transfer *t, struct error *err)
{
    _cleanup_free_ char *part = string_printf("%s.part", t->what->path);

    t->fd = fd_close(t->fd);
    if (!part)
        return error_set(err, ENOMEM, "out of memory");
    if (rename(part, t->what->path) < 0)
        return error_set(err, errno, "rename '%s': %s", part, errno_text(errno));
    return 0;
}

static size_t on_data(char *data, size_t unit, size_t count, void *userdata)
{
    struct transfer *t = userdata;
    size_t size = unit * count, done = 0;
    long status = 0;

    (void)curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200 && status != 206) {
        (void)buf_append(&t->body, data, MIN(size, buf_room(&t->body)));
        return size;
    }
    if (!t->answered) {
        t->answered = true;
        if (status == 200 && t->have > 0)
            t->fatal = start_over(t); /* a server that knows no ranges begins again; so do we */
        else if (status == 206 && (!t->headers.has_range || t->headers.range_start != t->have))
            t->fatal = -EPROTO;
    }
    if (t->fatal == 0 && size > t->what->blob->size - t->have)
        t->fatal = -EMSGSIZE;
    while (t->fatal == 0 && done < size) {
        ssize_t n = pwrite(t->fd, data + done, size - done, (off_t)t->have);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            t->fatal = -errno;
            break;
        }
        digest_update(&t->digest, data + done, (size_t)n);
        done += (size_t)n;
        t->have += (uint64_t)n;
        t->attempts = 0;
    }
    return t->fatal ? 0 : size;
}

/* ---- tries ---- */

static int start_try(struct transfer *t, CURLM *multi, struct error *err)
{
    struct endpoint *e = &t->registry->endpoints[t->endpoint];
    _cleanup_free_ char *url = string_printf("%s/v2/%s/blobs/%s", e->base,
                                             t->registry->ref.repository, t->what->blob->digest);

    t->headers = (struct http_headers){0};
    buf_clear(&t->body);
    t->fatal = 0;
    t->answered = false;
    t->easy = url ? http_easy(url, e->plain, &t->headers) : NULL;
    t->list = t->easy ? http_header_list(e->token, NULL) : NULL;
    if (!t->list)
        return error_set(err, ENOMEM, "out of memory");
    (void)curl_easy_setopt(t->easy, CURLOPT_HTTPHEADER, t->list);
    (void)curl_easy_setopt(t->easy, CURLOPT_WRITEFUNCTION, on_data);
    (void)curl_easy_setopt(t->easy, CURLOPT_WRITEDATA, t);
    (void)curl_easy_setopt(t->easy, CURLOPT_PRIVATE, t);
    if (e->user_password) {
        (void)curl_easy_setopt(t->easy, CURLOPT_HTTPAUTH, CURLAUTH_BASIC);
        (void)curl_easy_setopt(t->easy, CURLOPT_USERPWD, e->user_password);
    }
    if (t->have > 0) {
        char range[32];

        (void)snprintf(range, sizeof(range), "%llu-", (unsigned long long)t->have);
        (void)curl_easy_setopt(t->easy, CURLOPT_RANGE, range);
    }
    if (curl_multi_add_handle(multi, t->easy) != CURLM_OK)
        return error_set(err, ENOMEM, "out of memory");
    t->state = TRANSFER_RUNNING;
    return 0;
}

/* After a failure: the same again later, then the next endpoint, then the end. */
static int try_again(struct transfer *t, bool transient, struct error *err)
{
    struct registry *r = t->registry;

    t->attempts++;
    if (transient && t->attempts < HTTP_ATTEMPTS_MAX) {
        t->not_before =
            clock_now_usec() + http_backoff_usec(t->attempts, t->headers.retry_after_usec);
    } else if (t->endpoint + 1 < r->n_endpoints) {
        t->endpoint++;
        t->attempts = 0;
        t->asked = false;
        t->not_before = 0;
    } else {
        error_copy(err, &t->err);
        return -err->errnum;
    }
    t->state = TRANSFER_WAITING;
    return 0;
}

static int wrong_digest(struct transfer *t, const char *sha256, struct error *err)
{
    (void)error_set_code(&t->err, ERR_REGISTRY_FAILED,
                         "blob %.20s… came with another content, sha256:%.13s…",
                         t->what->blob->digest, sha256);
    if (start_over(t) < 0)
        return error_set(err, errno, "truncate '%s.part': %s", t->what->path, errno_text(errno));
    return try_again(t, ++t->wrong < WRONG_DIGESTS_MAX, err);
}

/* 1 when the blob is there. */
static int check_complete(struct transfer *t, struct error *err)
{
    char sha256[65];
    int r;

    if (t->have < t->what->blob->size) {
        (void)error_set_code(&t->err, ERR_REGISTRY_FAILED,
                             "blob %.20s… ended after %llu of %llu bytes", t->what->blob->digest,
                             (unsigned long long)t->have, (unsigned long long)t->what->blob->size);
        return try_again(t, true, err);
    }
    digest_final(&t->digest, sha256);
    if (strcmp(t->what->blob->digest + 7, sha256) != 0)
        return wrong_digest(t, sha256, err);
    r = finish_file(t, err);
    if (r < 0)
        return r;
    t->state = TRANSFER_DONE;
    return 1;
}

/* A write that failed, or an answer that is not what was asked for. */
static int broken_answer(struct transfer *t, struct error *err)
{
    if (t->fatal == -EPROTO || t->fatal == -EMSGSIZE) {
        (void)error_set_code(&t->err, ERR_REGISTRY_FAILED, "blob %.20s…: %s", t->what->blob->digest,
                             t->fatal == -EPROTO ? "the registry sent another range"
                                                 : "the registry sent more bytes than it has");
        if (start_over(t) < 0)
            return error_set(err, errno, "truncate: %s", errno_text(errno));
        return try_again(t, ++t->wrong < WRONG_DIGESTS_MAX, err);
    }
    return error_set(err, -t->fatal, "write '%s.part': %s", t->what->path, errno_text(-t->fatal));
}

/* A handle has ended. 1 when the blob is there, 0 when it goes on. */
static int on_end(struct transfer *t, CURLcode code, CURLM *multi, struct error *err)
{
    struct endpoint *e = &t->registry->endpoints[t->endpoint];
    char url[64];
    long status = 0;
    int r;

    (void)curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    end_try(t, multi);
    if (t->fatal)
        return broken_answer(t, err);
    if (code == CURLE_OK && (status == 200 || status == 206)) {
        t->asked = false;
        return check_complete(t, err);
    }
    if (code == CURLE_OK && status == 401 && t->headers.authenticate[0]) {
        r = registry_authenticate(t->registry, e, t->headers.authenticate, t->asked, &t->err);
        if (r < 0)
            return try_again(t, false, err);
        t->asked = true;
        t->not_before = 0;
        t->state = TRANSFER_WAITING;
        return 0;
    }
    if (code == CURLE_OK && status == 416 && t->have > 0) {
        if (start_over(t) < 0)
            return error_set(err, errno, "truncate: %s", errno_text(errno));
        (void)registry_status_error(t->registry, e, "blob", status, &t->body, &t->err);
        return try_again(t, true, err);
    }
    (void)snprintf(url, sizeof(url), "blob %.20s…", t->what->blob->digest);
    if (code == CURLE_OK)
        (void)registry_status_error(t->registry, e, "blob", status, &t->body, &t->err);
    else
        (void)http_failed(url, code, &t->err);
    return try_again(t, http_is_transient(code, status), err);
}

/* ---- all of them ---- */

struct run {
    struct transfer *list;
    size_t count;
    CURLM *multi;
    const struct registry_callbacks *cb;
    void *userdata;
};

static uint64_t bytes_there(const struct run *run)
{
    uint64_t n = 0;

    for (size_t i = 0; i < run->count; i++)
        n +=
            run->list[i].state == TRANSFER_DONE ? run->list[i].what->blob->size : run->list[i].have;
    return n;
}

/* Moves a waiting blob on; 1 when it is complete. */
static int begin(struct run *run, struct transfer *t, struct error *err)
{
    int r;

    if (!t->begun) {
        r = run->cb->begin(t->index, run->userdata);
        if (r == -EAGAIN) {
            t->not_before = clock_now_usec() + BUSY_USEC;
            return 0;
        }
        if (r < 0)
            return error_fill(err, r, "begin a layer");
        t->begun = true;
        if (r == 1) {
            t->state = TRANSFER_DONE;
            return 0;
        }
        if (file_exists(t->what->path)) { /* an earlier pull got this far */
            t->state = TRANSFER_DONE;
            return 1;
        }
        r = open_part(t, err);
        if (r < 0)
            return r;
        if (t->have == t->what->blob->size)
            return check_complete(t, err);
    }
    return start_try(t, run->multi, err);
}

static int report(struct run *run, struct transfer *t, int r, struct error *err)
{
    if (r != 1)
        return r;
    r = run->cb->done(t->index, run->userdata);
    return r < 0 ? error_fill(err, r, "use a layer") : 0;
}

static int start_waiting(struct run *run, size_t *ret_left, struct error *err)
{
    uint64_t now = clock_now_usec();
    unsigned running = 0;

    *ret_left = 0;
    for (size_t i = 0; i < run->count; i++)
        running += run->list[i].state == TRANSFER_RUNNING;
    for (size_t i = 0; i < run->count; i++) {
        struct transfer *t = &run->list[i];
        int r;

        if (t->state == TRANSFER_WAITING && running < PARALLEL_MAX && now >= t->not_before) {
            r = report(run, t, begin(run, t, err), err);
            if (r < 0)
                return r;
            running += t->state == TRANSFER_RUNNING;
        }
        *ret_left += t->state != TRANSFER_DONE;
    }
    return 0;
}

static int reap(struct run *run, struct error *err)
{
    const CURLMsg *message;
    int queued, r = 0;

    while (r >= 0 && (message = curl_multi_info_read(run->multi, &queued))) {
        struct transfer *t = NULL;

        if (message->msg != CURLMSG_DONE)
            continue;
        (void)curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &t);
        r = report(run, t, on_end(t, message->data.result, run->multi, err), err);
    }
    return r;
}

static int run_all(struct run *run, const _Atomic bool *cancel, uint64_t total, struct error *err)
{
    for (;;) {
        size_t left;
        int r, running;

        if (cancel && atomic_load(cancel))
            return error_set(err, ECANCELED, "cancelled");
        r = start_waiting(run, &left, err);
        if (r < 0)
            return r;
        if (run->cb->progress)
            run->cb->progress(bytes_there(run), total, run->userdata);
        if (left == 0)
            return 0;
        if (curl_multi_perform(run->multi, &running) != CURLM_OK)
            return error_set(err, ENOMEM, "out of memory");
        r = reap(run, err);
        if (r < 0)
            return r;
        (void)curl_multi_poll(run->multi, NULL, 0, POLL_MSEC, NULL);
    }
}

int registry_transfers(struct registry *r, const struct registry_transfer *list, size_t count,
                       const struct registry_callbacks *cb, void *userdata, struct error *err)
{
    struct run run = {.count = count, .cb = cb, .userdata = userdata};
    uint64_t total = 0;
    int e;

    run.list = calloc(count + 1, sizeof(run.list[0]));
    run.multi = curl_multi_init();
    for (size_t i = 0; run.list && i < count; i++) {
        run.list[i] = (struct transfer){.what = &list[i],
                                        .registry = r,
                                        .index = i,
                                        .fd = -EBADF,
                                        .body = {.max = STATUS_BODY_MAX}};
        total += list[i].blob->size;
    }
    e = run.list && run.multi ? run_all(&run, r->cancel, total, err)
                              : error_set(err, ENOMEM, "out of memory");
    for (size_t i = 0; run.list && i < count; i++)
        transfer_free(&run.list[i], run.multi);
    free(run.list);
    (void)curl_multi_cleanup(run.multi);
    return e;
}
