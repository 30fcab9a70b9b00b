#include "exec-seen.h"

#include "harness/test.h"

void seen_init(struct seen *s)
{
    *s = (struct seen){0};
    for (size_t i = 0; i < EXEC_STREAMS_MAX; i++)
        buf_init(&s->out[i], SEEN_BYTES_MAX);
}

void seen_done(struct seen *s)
{
    s->e = exec_free(s->e);
    for (size_t i = 0; i < EXEC_STREAMS_MAX; i++)
        buf_done(&s->out[i]);
}

static void destroy(struct seen *s)
{
    if (s->free_exec)
        *s->free_exec = exec_free(*s->free_exec);
    if (s->free_console)
        *s->free_console = console_free(*s->free_console);
    s->free_exec = NULL;
    s->free_console = NULL;
}

static void on_started(struct exec *e, uint64_t process_id, uint32_t pid,
                       const struct exec_range ranges[EXEC_STREAMS_MAX], void *userdata)
{
    struct seen *s = userdata;

    ASSERT_EQ(exec_process_id(e), process_id);
    s->pid = pid;
    s->started++;
    memcpy(s->ranges, ranges, sizeof(s->ranges));
    destroy(s);
}

static void on_output(struct exec *e, uint8_t stream, uint64_t offset, const uint8_t *data,
                      size_t size, void *userdata)
{
    struct seen *s = userdata;

    if (!s->gaps)
        ASSERT_EQ(offset, s->next[stream]);
    s->next[stream] = offset + size;
    ASSERT_OK(buf_append(&s->out[stream], data, size));
    if (!s->hold)
        exec_consumed(e, stream, size);
    destroy(s);
}

static void on_stream_end(struct exec *e, uint8_t stream, uint64_t offset, void *userdata)
{
    struct seen *s = userdata;

    (void)e;
    ASSERT_EQ(offset, s->next[stream]);
    s->ends++;
    destroy(s);
}

static void on_writable(struct exec *e, uint8_t stream, void *userdata)
{
    struct seen *s = userdata;

    ASSERT_TRUE(exec_writable(e, stream) > 0);
    s->writable++;
    destroy(s);
}

static void on_exit_seen(struct exec *e, const struct exec_exit *exit, void *userdata)
{
    struct seen *s = userdata;

    (void)e;
    s->exited++;
    s->exit = *exit;
    destroy(s);
}

static void on_closed(struct exec *e, const struct error *reason, void *userdata)
{
    struct seen *s = userdata;

    (void)e;
    s->closed++;
    s->reason = *reason;
    destroy(s);
}

const struct exec_callbacks seen_callbacks = {
    .on_started = on_started,
    .on_output = on_output,
    .on_stream_end = on_stream_end,
    .on_writable = on_writable,
    .on_exit = on_exit_seen,
    .on_closed = on_closed,
};
