#include "api/native/ports.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/native/handlers.h"
#include "api/native/native.h"
#include "base/buf.h"
#include "host/files.h"

#define TEXT_MAX (1024u * 1024u)
#define TCP_LISTEN_STATE 0x0au

/* ---- the text ---- */

/* Words of 32 bits in the guest's byte order, as hex; ours is the same, little endian. */
static bool address_text(const char *hex, size_t length, char *text, size_t size)
{
    uint32_t words[4] = {0};
    size_t count = length / 8;

    for (size_t i = 0; i < count; i++) {
        char digits[9] = {0};
        memcpy(digits, hex + 8 * i, 8);
        words[i] = (uint32_t)strtoul(digits, NULL, 16);
    }
    return inet_ntop(count == 1 ? AF_INET : AF_INET6, words, text, (socklen_t)size) != NULL;
}

static int add_line(const char *line, json_t *ports)
{
    char local[33], address[INET6_ADDRSTRLEN];
    unsigned slot, port, state;
    size_t length;

    if (sscanf(line, " %u: %32[0-9A-Fa-f]:%4x %*32[0-9A-Fa-f]:%*4x %2x", &slot, local, &port,
               &state) != 4 ||
        state != TCP_LISTEN_STATE || port == 0 || port > 65535)
        return 0;
    length = strlen(local);
    if ((length != 8 && length != 32) || !address_text(local, length, address, sizeof(address)))
        return 0;
    return json_array_append_new(ports,
                                 json_pack("{s:i, s:s, s:s}", "port", (int)port, "address", address,
                                           "family", length == 8 ? "ipv4" : "ipv6")) < 0
               ? -ENOMEM
               : 0;
}

int ports_parse(const char *text, json_t *ports)
{
    int r = 0;

    while (*text && r >= 0 && json_array_size(ports) < PORTS_MAX) {
        r = add_line(text, ports);
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
    return r;
}

/* ---- asking the guest ---- */

static const char *const files[] = {"/proc/net/tcp", "/proc/net/tcp6"};

struct ports_job {
    struct request *req;         /* weak */
    struct sandbox *sb;          /* weak, while the watch is there */
    struct sandbox_watch *watch; /* owned */
    struct transfer *transfer;   /* owned */
    struct buf text;
    json_t *ports; /* owned */
    size_t file;   /* of files[] */
};

static void on_over(void *state, enum request_end why)
{
    struct ports_job *job = state;

    (void)why;
    job->transfer = transfer_free(job->transfer);
    job->watch = sandbox_watch_free(job->watch);
    buf_done(&job->text);
    json_decref(job->ports);
    free(job);
}

static void job_fail(struct ports_job *job, const struct error *err)
{
    job->transfer = transfer_free(job->transfer);
    request_answer_error(job->req, err);
}

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    struct ports_job *job = userdata;

    (void)sb;
    job->watch = sandbox_watch_free(job->watch);
    if (job->transfer)
        job_fail(job, reason);
}

static void on_data(struct transfer *t, const uint8_t *data, size_t size, void *userdata)
{
    struct ports_job *job = userdata;

    (void)buf_append(&job->text, data, MIN(size, buf_room(&job->text)));
    transfer_consumed(t, size);
}

static void read_next(struct ports_job *job);

static void on_done(struct transfer *t, const struct error *err, void *userdata)
{
    struct ports_job *job = userdata;

    (void)t;
    job->transfer = transfer_free(job->transfer);
    /* A guest without IPv6 has no tcp6. */
    if (err && !(job->file > 0 && err->errnum == ENOENT)) {
        request_answer_error(job->req, err);
        return;
    }
    if (!err && ports_parse(buf_string(&job->text), job->ports) < 0) {
        struct error memory = {0};
        error_set(&memory, ENOMEM, "ports: out of memory");
        request_answer_error(job->req, &memory);
        return;
    }
    job->file++;
    read_next(job);
}

static void read_next(struct ports_job *job)
{
    static const struct transfer_callbacks callbacks = {.on_data = on_data, .on_done = on_done};
    struct error err = {0};
    struct console *c;

    if (job->file == ARRAY_SIZE(files)) {
        request_answer(job->req, 200, json_pack("{s:O}", "ports", job->ports));
        return;
    }
    buf_clear(&job->text);
    c = sandbox_console(job->sb, &err);
    if (!c || file_read_start(c, NULL, files[job->file], 0, UINT64_MAX, &callbacks, job,
                              &job->transfer, &err) < 0)
        job_fail(job, &err);
}

void handle_ports(struct request *req)
{
    struct sandbox *sb;
    struct ports_job *job;
    struct error err = {0};
    int r;

    if (!native_console(req, &sb))
        return;
    job = calloc(1, sizeof(*job));
    r = job ? sandbox_watch_new(sb, on_gone, job, &job->watch) : -ENOMEM;
    if (r < 0) {
        error_fill(&err, r, "ports of sandbox '%s'", sandbox_id(sb));
        request_answer_error(req, &err);
        free(job);
        return;
    }
    job->req = req;
    job->sb = sb;
    job->ports = json_array();
    buf_init(&job->text, TEXT_MAX);
    request_own(req, job, on_over);
    read_next(job);
}
