#include "api/e2b/process.h"

#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/strv.h"
#include "model/text.h"

/*
 * Theory of operation. A process holds at most one exec; its output goes to all clients as events.
 * Output is acknowledged to the guest as soon as every client has taken what it had before, so a
 * slow client holds back at most one window of each stream, and nothing is ever refused for want of
 * room. When the console goes (hibernation, failure) clients get the reason and the process stays
 * known, to be attached again by the next call that needs it.
 */
#define KEEPALIVE_DEFAULT_SEC 90u

struct e2b_client {
    struct e2b_process *process; /* weak; NULL: over */
    struct request *req;         /* weak */
    struct e2b_client *next;
    struct source *keepalive; /* owned */
    uint64_t silence_usec;
};

/* ---- the table ---- */

static struct e2b_process *process_new(struct api_e2b *e2b, struct sandbox *sb)
{
    struct e2b_process *p = e2b->n_processes < PROCESSES_MAX ? calloc(1, sizeof(*p)) : NULL;

    if (!p)
        return NULL;
    p->e2b = e2b;
    (void)snprintf(p->sandbox_id, sizeof(p->sandbox_id), "%s", sandbox_id(sb));
    p->next = e2b->processes;
    if (p->next)
        p->next->prev = p;
    e2b->processes = p;
    e2b->n_processes++;
    return p;
}

static void process_free(struct e2b_process *p)
{
    if (p->prev)
        p->prev->next = p->next;
    else
        p->e2b->processes = p->next;
    if (p->next)
        p->next->prev = p->prev;
    p->e2b->n_processes--;
    p->exec = exec_free(p->exec);
    p->watch = sandbox_watch_free(p->watch);
    free(p->tag);
    json_decref(p->config);
    free(p);
}

static int on_sweep(struct source *s, uint64_t now_usec, void *userdata)
{
    struct api_e2b *e2b = userdata;
    struct e2b_process *next;

    for (struct e2b_process *p = e2b->processes; p; p = next) {
        bool old = p->exited && now_usec - p->exited_usec >= PROCESS_KEPT_USEC;

        next = p->next;
        if (!p->clients && (old || !sandbox_find(e2b->core, p->sandbox_id, NULL)))
            process_free(p);
    }
    return source_set_time(s, now_usec + PROCESS_KEPT_USEC / 2);
}

struct e2b_process *e2b_process_find(struct api_e2b *e2b, const char *sandbox_id, uint32_t pid,
                                     const char *tag)
{
    for (struct e2b_process *p = e2b->processes; p; p = p->next) {
        if (strcmp(p->sandbox_id, sandbox_id) != 0 || !p->started)
            continue;
        if (pid != 0 ? p->pid == pid : tag && p->tag && strcmp(p->tag, tag) == 0)
            return p;
    }
    return NULL;
}

/* ---- events to clients ---- */

static int on_silence(struct source *s, uint64_t now_usec, void *userdata)
{
    struct e2b_client *client = userdata;

    (void)connect_stream_message(client->req, json_pack("{s:{s:{}}}", "event", "keepalive"));
    return source_set_time(s, now_usec + client->silence_usec);
}

static void client_send(struct e2b_client *client, json_t *event_consume)
{
    if (connect_stream_message(client->req, json_pack("{s:o}", "event", event_consume)) < 0)
        log_warning("e2b: an event of process %u was dropped: no memory", client->process->pid);
    (void)source_set_time(client->keepalive, clock_now_usec() + client->silence_usec);
}

/* Its stream is complete; the request ends by itself. */
static void client_end(struct e2b_client *client, const char *code, const char *message)
{
    struct e2b_process *p = client->process;

    for (struct e2b_client **at = &p->clients; *at; at = &(*at)->next) {
        if (*at == client) {
            *at = client->next;
            break;
        }
    }
    client->process = NULL;
    client->keepalive = source_free(client->keepalive);
    connect_stream_end(client->req, code, message);
}

static json_t *start_event(const struct e2b_process *p)
{
    return json_pack("{s:{s:I}}", "start", "pid", (json_int_t)p->pid);
}

static json_t *end_event(const struct exec_exit *exit)
{
    char status[80];
    json_t *end;

    if (exit->signal) {
        const char *name = sigdescr_np(exit->signal);

        (void)snprintf(status, sizeof(status), "signal: %s", name ? name : "unknown");
        for (char *c = status + strlen("signal: "); *c; c++)
            *c = (char)tolower((unsigned char)*c);
    } else {
        (void)snprintf(status, sizeof(status), "exit status %u", exit->status);
    }
    end = json_pack("{s:i, s:b, s:s}", "exitCode", exit->signal ? -1 : (int)exit->status, "exited",
                    exit->signal == 0, "status", status);
    if (end && (exit->signal || exit->status))
        (void)json_object_set_new(end, "error", json_string(status));
    return json_pack("{s:o}", "end", end);
}

/* Everybody has taken what there was: the guest may send on. */
static void process_acknowledge(struct e2b_process *p)
{
    for (struct e2b_client *client = p->clients; client; client = client->next) {
        if (request_stream_room(client->req) < PROCESS_STREAM_MAX / 2)
            return;
    }
    for (uint8_t i = 1; i <= 2; i++) {
        size_t size = p->unacked[i];

        p->unacked[i] = 0;
        if (size > 0 && p->exec)
            exec_consumed(p->exec, i, size);
    }
}

static void on_drained(void *state, size_t size)
{
    struct e2b_client *client = state;

    (void)size;
    if (client->process)
        process_acknowledge(client->process);
}

static void on_client_over(void *state, enum request_end why)
{
    struct e2b_client *client = state;
    struct e2b_process *p = client->process;

    (void)why;
    if (p) {
        for (struct e2b_client **at = &p->clients; *at; at = &(*at)->next) {
            if (*at == client) {
                *at = client->next;
                break;
            }
        }
        process_acknowledge(p);
    }
    client->keepalive = source_free(client->keepalive);
    free(client);
}

/* The request becomes a client: a stream that has begun. NULL: the answer is out. */
static struct e2b_client *client_new(struct e2b_process *p, struct request *req)
{
    const char *text = request_header(req, "Keepalive-Ping-Interval");
    struct e2b_client *client = calloc(1, sizeof(*client));
    uint64_t sec = KEEPALIVE_DEFAULT_SEC;

    if (text)
        (void)parse_u64(text, 1, 3600, &sec);
    if (client) {
        client->silence_usec = sec * USEC_PER_SEC;
        if (loop_add_timer(p->e2b->loop, "e2b-keepalive", clock_now_usec() + client->silence_usec,
                           on_silence, client, &client->keepalive) < 0) {
            free(client);
            client = NULL;
        }
    }
    if (!client) {
        connect_answer_code(req, CONNECT_INTERNAL, "out of memory");
        return NULL;
    }
    client->process = p;
    client->req = req;
    client->next = p->clients;
    p->clients = client;
    request_own(req, client, on_client_over);
    connect_stream_begin(req, PROCESS_STREAM_MAX, on_drained);
    return client;
}

/* All clients hear of the end. */
static void process_tell_end(struct e2b_process *p)
{
    while (p->clients) {
        client_send(p->clients, end_event(&p->exit));
        if (p->exit.timed_out)
            client_end(p->clients, "deadline_exceeded", "the process ran out of its time");
        else
            client_end(p->clients, NULL, NULL);
    }
}

/* ---- input ---- */

struct e2b_input {
    struct e2b_process *process; /* weak; NULL: over */
    process_input_fn done;
    void *userdata;
    char *data; /* owned */
    size_t size, sent;
    struct e2b_input *next;
};

static void input_unlink(struct e2b_input *input)
{
    for (struct e2b_input **at = &input->process->inputs; *at; at = &(*at)->next) {
        if (*at == input) {
            *at = input->next;
            break;
        }
    }
    input->process = NULL;
}

struct e2b_input *e2b_input_free(struct e2b_input *input)
{
    if (!input)
        return NULL;
    if (input->process)
        input_unlink(input);
    free(input->data);
    free(input);
    return NULL;
}

static void process_pump_input(struct e2b_process *p)
{
    while (p->inputs && p->exec) {
        struct e2b_input *input = p->inputs;
        size_t n = MIN(exec_writable(p->exec, 0), input->size - input->sent);
        int r = n > 0 ? exec_write(p->exec, 0, input->data + input->sent, n) : 0;

        input->sent += n;
        if (r >= 0 && input->sent < input->size)
            return;
        input_unlink(input);
        if (r < 0)
            input->done(CONNECT_INTERNAL, "the process's stdin is closed", input->userdata);
        else
            input->done(CONNECT_INTERNAL, NULL, input->userdata);
    }
}

static void process_fail_inputs(struct e2b_process *p, enum connect_code code, const char *message)
{
    while (p->inputs) {
        struct e2b_input *input = p->inputs;

        input_unlink(input);
        input->done(code, message, input->userdata);
    }
}

int e2b_process_input(struct e2b_process *p, char *data_consume, size_t size, process_input_fn done,
                      void *userdata, struct e2b_input **ret)
{
    struct e2b_input *input, **at = &p->inputs;
    size_t sent = 0;

    if (!p->inputs && p->exec) {
        int r;

        sent = MIN(exec_writable(p->exec, 0), size);
        r = sent > 0 ? exec_write(p->exec, 0, data_consume, sent) : 0;
        if (r < 0 || sent == size) {
            free(data_consume);
            return r < 0 ? r : 1;
        }
    }
    input = calloc(1, sizeof(*input));
    if (!input) {
        free(data_consume);
        return -ENOMEM;
    }
    input->process = p;
    input->done = done;
    input->userdata = userdata;
    input->data = data_consume;
    input->size = size;
    input->sent = sent;
    while (*at)
        at = &(*at)->next;
    *at = input;
    *ret = input;
    return 0;
}

static void process_broken(struct e2b_process *p, const struct error *reason)
{
    const char *code = connect_code_name(connect_code_of(reason));

    p->exec = exec_free(p->exec);
    process_fail_inputs(p, connect_code_of(reason), reason->text);
    memset(p->unacked, 0, sizeof(p->unacked));
    while (p->clients)
        client_end(p->clients, code, reason->text);
    if (!p->started)
        process_free(p);
}

/* ---- what the guest says ---- */

static void on_started(struct exec *e, uint64_t process_id, uint32_t pid,
                       const struct exec_range ranges[EXEC_STREAMS_MAX], void *userdata)
{
    struct e2b_process *p = userdata;

    (void)e;
    p->process_id = process_id;
    p->pid = pid;
    if (p->started) {
        for (unsigned i = 1; i <= 2; i++)
            p->skip[i] = ranges[i].end;
        process_pump_input(p);
        return;
    }
    p->started = true;
    for (struct e2b_client *client = p->clients; client; client = client->next)
        client_send(client, start_event(p));
}

static void on_output(struct exec *e, uint8_t stream, uint64_t offset, const uint8_t *data,
                      size_t size, void *userdata)
{
    struct e2b_process *p = userdata;
    const char *key = p->tty ? "pty" : stream == 2 ? "stderr" : "stdout";

    if (stream != 1 && stream != 2) {
        exec_consumed(e, stream, size);
        return;
    }
    p->unacked[stream] += size;
    if (offset < p->skip[stream]) {
        size_t old = (size_t)MIN(p->skip[stream] - offset, (uint64_t)size);

        data += old;
        size -= old;
    }
    while (size > 0 && p->clients) {
        size_t n = MIN(size, (size_t)PROCESS_CHUNK);
        _cleanup_free_ char *text = base64_encode(data, n);

        for (struct e2b_client *client = p->clients; client && text; client = client->next)
            client_send(client, json_pack("{s:{s:s}}", "data", key, text));
        data += n;
        size -= n;
    }
    process_acknowledge(p);
}

static void on_process_exit(struct exec *e, const struct exec_exit *exit, void *userdata)
{
    struct e2b_process *p = userdata;

    (void)e;
    p->exited = true;
    p->exit = *exit;
    p->exited_usec = clock_now_usec();
    p->exec = exec_free(p->exec);
    process_fail_inputs(p, CONNECT_NOT_FOUND, "the process has ended");
    process_tell_end(p);
}

static void on_closed(struct exec *e, const struct error *reason, void *userdata)
{
    struct e2b_process *p = userdata;

    (void)e;
    /* The console knows only that it was closed; the watch follows and tells why. */
    if (reason->code == ERR_GUEST_GONE && p->watch)
        return;
    process_broken(p, reason);
}

static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    struct e2b_process *p = userdata;

    (void)sb;
    p->watch = sandbox_watch_free(p->watch);
    p->sb = NULL;
    process_broken(p, reason);
}

static void on_writable(struct exec *e, uint8_t stream, void *userdata)
{
    (void)e;
    if (stream == 0)
        process_pump_input(userdata);
}

static const struct exec_callbacks exec_callbacks = {
    .on_started = on_started,
    .on_output = on_output,
    .on_writable = on_writable,
    .on_exit = on_process_exit,
    .on_closed = on_closed,
};

/* ---- beginning ---- */

static int process_watch(struct e2b_process *p, struct sandbox *sb, struct error *err)
{
    int r = p->watch ? 0 : sandbox_watch_new(sb, on_gone, p, &p->watch);

    if (r >= 0)
        p->sb = sb;
    else
        error_fill(err, r, "sandbox '%s': watch it", p->sandbox_id);
    return r;
}

void e2b_process_start(struct api_e2b *e2b, struct request *req, struct sandbox *sb,
                       struct console *c, const struct process_start *start)
{
    struct e2b_process *p = process_new(e2b, sb);
    struct error err = {0};
    int r;

    if (!p) {
        json_decref(start->config_consume);
        connect_answer_code(req, CONNECT_RESOURCE_EXHAUSTED, "too many processes");
        return;
    }
    p->config = start->config_consume;
    p->tty = start->spec->tty;
    p->has_stdin = start->has_stdin;
    r = string_set(&p->tag, start->tag);
    if (r < 0)
        error_set(&err, ENOMEM, "out of memory");
    if (r >= 0 && !e2b->sweep)
        r = loop_add_timer(e2b->loop, "e2b-sweep", clock_now_usec() + PROCESS_KEPT_USEC, on_sweep,
                           e2b, &e2b->sweep);
    if (r >= 0)
        r = process_watch(p, sb, &err);
    if (r >= 0)
        r = exec_start(c, start->spec, &exec_callbacks, p, &p->exec, &err);
    if (r < 0) {
        process_free(p);
        connect_answer_error(req, &err);
        return;
    }
    if (!client_new(p, req))
        process_free(p);
}

void e2b_process_connect(struct e2b_process *p, struct request *req)
{
    struct e2b_client *client = client_new(p, req);

    if (!client)
        return;
    client_send(client, start_event(p));
    if (p->exited)
        process_tell_end(p);
}

int e2b_process_attach(struct e2b_process *p, struct console *c, struct sandbox *sb,
                       struct error *err)
{
    int r;

    if (p->exec || p->exited)
        return 0;
    r = process_watch(p, sb, err);
    if (r < 0)
        return r;
    return exec_attach(c, p->process_id, NULL, &exec_callbacks, p, &p->exec, err);
}

struct e2b_process *e2b_process_known(struct api_e2b *e2b, struct sandbox *sb,
                                      const struct exec_info *info)
{
    struct e2b_process *p = process_new(e2b, sb);

    if (!p)
        return NULL;
    p->process_id = info->process_id;
    p->pid = info->pid;
    p->tty = info->tty;
    p->has_stdin = true;
    p->started = true;
    p->config = json_pack("{s:o, s:[], s:{}}", "cmd", json_text(info->command), "args", "envs");
    if (info->label[strlen(PROCESS_LABEL)] &&
        string_set(&p->tag, info->label + strlen(PROCESS_LABEL)) < 0) {
        process_free(p);
        return NULL;
    }
    if (!info->running) {
        p->exited = true;
        p->exit = info->exit;
        p->exited_usec = clock_now_usec();
    }
    return p;
}

void e2b_processes_free(struct api_e2b *e2b)
{
    e2b->sweep = source_free(e2b->sweep);
    while (e2b->processes) {
        struct e2b_process *p = e2b->processes;

        for (struct e2b_client *client = p->clients; client; client = client->next)
            client->process = NULL;
        for (struct e2b_input *input = p->inputs; input; input = input->next)
            input->process = NULL;
        process_free(p);
    }
}
