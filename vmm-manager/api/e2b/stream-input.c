#include "api/e2b/stream-input.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/e2b/handlers.h"
#include "api/e2b/process-pick.h"
#include "api/front/touch.h"
#include "base/base64.h"
#include "base/clock.h"

/*
 * StreamInput. Theory of operation: the body is frames, the first names the process, others hold
 * input or nothing (keepalive). A frame is taken when what came before it is done, so a process
 * that does not read holds back the client and nobody else. A failure is told when the body ends,
 * since most clients listen only then; one that goes on sending is cut.
 */
#define FRAME_MAX (4u * 1024u * 1024u)
#define SKIPPED_MAX (256u * 1024u)
#define SKIPPED_USEC USEC_PER_SEC

struct stream_input {
    struct api_e2b *e2b;               /* weak */
    struct request *req;               /* weak */
    const struct proto_message *proto; /* weak; NULL: JSON */
    char sandbox_id[65];
    uint64_t process_id; /* of the process; see `started` */
    uint32_t pid;
    uint8_t head[CONNECT_FRAME_HEAD];
    size_t n_head, length;
    struct buf body;           /* of the frame */
    struct process_pick *pick; /* owned: being looked for */
    struct e2b_input *input;   /* owned: being written */
    bool started, ended;
    bool failed;
    enum connect_code code;
    char reason[512]; /* as long as an error is */
    uint64_t failed_usec;
    size_t skipped;
};

int process_input_message(struct e2b_process *p, struct console *c, struct sandbox *sb,
                          const json_t *input, process_input_fn done, void *userdata,
                          struct e2b_input **ret, struct error *err)
{
    const char *key = p->tty ? "pty" : "stdin";
    const char *text = pb_string(input, key, key);
    char *data = NULL;
    size_t size;
    int r;

    if (!text || base64_decode(text, strlen(text), &data, &size) < 0)
        return error_set(err, EINVAL, "'input.%s': not base64", key);
    if (p->exited) {
        free(data);
        return error_set_code(err, ERR_NOT_FOUND, "the process was not found");
    }
    if (!p->has_stdin && !p->tty) {
        free(data);
        return error_set_code(err, ERR_INTERNAL, "the process was started without stdin");
    }
    r = e2b_process_attach(p, c, sb, err);
    if (r < 0) {
        free(data);
        return r;
    }
    r = e2b_process_input(p, data, size, done, userdata, ret);
    if (r == -ENOMEM)
        return error_set(err, ENOMEM, "out of memory");
    return r < 0 ? error_set_code(err, ERR_INTERNAL, "the process's stdin is closed") : r;
}

/* ---- frames ---- */

static void stream_free(void *state, enum request_end why)
{
    struct stream_input *s = state;

    (void)why;
    s->pick = process_pick_free(s->pick);
    s->input = e2b_input_free(s->input);
    buf_done(&s->body);
    free(s);
}

static void stream_fail(struct stream_input *s, enum connect_code code, const char *reason)
{
    if (s->failed)
        return;
    s->failed = true;
    s->code = code;
    s->failed_usec = clock_now_usec();
    (void)snprintf(s->reason, sizeof(s->reason), "%s", reason);
}

static void stream_fail_error(struct stream_input *s, const struct error *err)
{
    stream_fail(s, connect_code_of(err), err->text);
}

static void stream_answer(struct stream_input *s)
{
    if (!s->failed && s->n_head > 0)
        stream_fail(s, CONNECT_INVALID_ARGUMENT, "the body ends inside a frame");
    if (!s->failed && !s->started)
        stream_fail(s, CONNECT_INVALID_ARGUMENT, "the stream has no start");
    if (s->failed)
        connect_answer_code(s->req, s->code, s->reason);
    else
        connect_answer(s->req, json_object());
}

/* What the frame waited for is done. */
static void stream_go_on(struct stream_input *s)
{
    if (s->ended)
        stream_answer(s);
    else
        request_body_more(s->req);
}

static void stream_take_process(struct stream_input *s, const struct e2b_process *p)
{
    s->started = true;
    s->pid = p->pid;
    s->process_id = p->process_id;
}

static void on_picked(struct e2b_process *p, struct console *c, const struct error *err,
                      void *userdata)
{
    struct stream_input *s = userdata;

    (void)c;
    s->pick = NULL;
    if (p)
        stream_take_process(s, p);
    else
        stream_fail_error(s, err);
    stream_go_on(s);
}

static void on_written(enum connect_code code, const char *message, void *userdata)
{
    struct stream_input *s = userdata;

    s->input = e2b_input_free(s->input);
    if (message)
        stream_fail(s, code, message);
    stream_go_on(s);
}

static void take_start(struct stream_input *s, struct sandbox *sb, struct console *c,
                       const json_t *start)
{
    struct e2b_process *p;
    struct error err = {0};
    int r = process_pick(s->e2b, sb, c, start, on_picked, s, &p, &s->pick, &err);

    if (r < 0)
        stream_fail_error(s, &err);
    else if (r > 0)
        stream_take_process(s, p);
}

static void take_data(struct stream_input *s, struct sandbox *sb, struct console *c,
                      const json_t *data)
{
    struct e2b_process *p = e2b_process_find(s->e2b, s->sandbox_id, s->pid, NULL);
    struct error err = {0};

    if (!p || p->process_id != s->process_id) {
        stream_fail(s, CONNECT_NOT_FOUND, "the process was not found");
        return;
    }
    if (process_input_message(p, c, sb, pb_get(data, "input", "input"), on_written, s, &s->input,
                              &err) < 0)
        stream_fail_error(s, &err);
}

static void take_message(struct stream_input *s, const json_t *message)
{
    const json_t *start = pb_get(message, "start", "start"),
                 *data = pb_get(message, "data", "data");
    struct sandbox *sb = sandbox_find(s->e2b->core, s->sandbox_id, NULL);
    struct error err = {0};
    struct console *c;

    if (!start == !s->started) {
        stream_fail(s, CONNECT_INVALID_ARGUMENT,
                    start ? "the stream has two starts" : "the first message is not a start");
        return;
    }
    if (!start && !data) {
        if (!pb_get(message, "keepalive", "keepalive"))
            stream_fail(s, CONNECT_INVALID_ARGUMENT, "a message without an event");
        return;
    }
    c = sb ? sandbox_console(sb, &err) : NULL;
    if (!c)
        stream_fail(s, CONNECT_UNAVAILABLE, sb ? err.text : "the sandbox was not found");
    else if (start)
        take_start(s, sb, c, start);
    else
        take_data(s, sb, c, data);
}

static void take_frame(struct stream_input *s)
{
    struct error err = {0};
    json_t *message = NULL;

    if (connect_decode(s->proto, buf_data(&s->body), s->body.size, &message, &err) < 0)
        stream_fail_error(s, &err);
    else
        take_message(s, message);
    json_decref(message);
    buf_clear(&s->body);
    s->n_head = 0;
}

/* Some of a frame; returns how much. */
static size_t take_bytes(struct stream_input *s, const uint8_t *data, size_t size)
{
    struct error err = {0};
    size_t n;

    if (s->n_head < sizeof(s->head)) {
        n = MIN(size, sizeof(s->head) - s->n_head);
        memcpy(s->head + s->n_head, data, n);
        s->n_head += n;
        s->length = 0;
        if (s->n_head == sizeof(s->head) &&
            connect_frame_length(s->head, FRAME_MAX, &s->length, &err) < 0) {
            stream_fail_error(s, &err);
            return n;
        }
    } else {
        n = MIN(size, s->length - s->body.size);
        if (buf_append(&s->body, data, n) < 0) {
            stream_fail(s, CONNECT_INTERNAL, "out of memory");
            return n;
        }
    }
    if (s->n_head == sizeof(s->head) && s->body.size == s->length)
        take_frame(s);
    return n;
}

/* ---- the body ---- */

static size_t on_data(void *state, const uint8_t *data, size_t size)
{
    struct stream_input *s = state;
    size_t used = 0;

    while (used < size && !s->pick && !s->input && !s->failed)
        used += take_bytes(s, data + used, size - used);
    if (!s->failed)
        return used;
    s->skipped += size - used;
    if (s->skipped > SKIPPED_MAX || clock_now_usec() - s->failed_usec > SKIPPED_USEC)
        stream_answer(s);
    return size;
}

static void on_end(void *state)
{
    struct stream_input *s = state;

    s->ended = true;
    if (!s->pick && !s->input)
        stream_answer(s);
}

static void stream_begin(struct request *req, struct sandbox *sb, bool waited)
{
    static const struct request_body_ops ops = {on_data, on_end};
    const struct proto_message *proto;
    struct stream_input *s;

    (void)waited;
    if (!connect_codec(req, /* stream= */ true, &proto))
        return;
    s = calloc(1, sizeof(*s));
    if (!s) {
        connect_answer_code(req, CONNECT_INTERNAL, "out of memory");
        return;
    }
    s->e2b = e2b_of(req);
    s->req = req;
    s->proto = proto;
    (void)snprintf(s->sandbox_id, sizeof(s->sandbox_id), "%s", sandbox_id(sb));
    buf_init(&s->body, FRAME_MAX);
    request_own(req, s, stream_free);
    request_body_begin(req, &ops);
}

void handle_process_stream_input(struct request *req)
{
    static const struct touch_ops ops = {.ready = stream_begin, .failed = envd_answer_not_usable};
    struct sandbox *sb = envd_sandbox(req, /* signed_url= */ false);

    if (sb)
        touch_wait(req, sb, &ops);
}
