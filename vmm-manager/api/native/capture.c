#include "api/native/capture.h"

#include "api/native/native.h"
#include "model/text.h"

void capture_init(struct capture *c, size_t max)
{
    *c = (struct capture){.max = max};
    buf_init(&c->data[1], max + CAPTURE_NOTE_MAX);
    buf_init(&c->data[2], max + CAPTURE_NOTE_MAX);
}

void capture_done(struct capture *c)
{
    buf_done(&c->data[1]);
    buf_done(&c->data[2]);
}

void capture_add(struct capture *c, int stream, const void *data, size_t size)
{
    if (stream != 1 && stream != 2)
        return;
    size_t fits = MIN(size, c->max - MIN(c->max, c->data[stream].size));
    if (fits > 0 && buf_append(&c->data[stream], data, fits) < 0)
        fits = 0;
    if (fits < size)
        c->truncated[stream] = true;
}

/*
 * Cutting at a byte count may split the last character of a text; it goes rather than making the
 * whole answer base64.
 */
static size_t text_size(const struct buf *b, bool truncated)
{
    if (!truncated || utf8_is_valid(buf_data(b), b->size))
        return b->size;
    for (size_t cut = 1; cut <= MIN(b->size, (size_t)3); cut++) {
        if (utf8_is_valid(buf_data(b), b->size - cut))
            return b->size - cut;
    }
    return b->size;
}

void capture_note(struct capture *c, int stream, const char *line)
{
    struct buf *b = &c->data[stream];

    if (c->truncated[stream])
        b->size = text_size(b, true);
    if (b->size > 0 && buf_string(b)[b->size - 1] != '\n')
        (void)buf_append(b, "\n", 1);
    (void)buf_printf(b, "%s\n", line);
}

void capture_truncated_to_json(const struct capture *c, json_t *object)
{
    (void)json_object_set_new(
        object, "truncated",
        json_pack("{s:b, s:b}", "stdout", c->truncated[1], "stderr", c->truncated[2]));
}

void capture_to_json(const struct capture *c, json_t *object)
{
    static const char *const keys[] = {NULL, "stdout", "stderr"};

    for (int i = 1; i <= 2; i++) {
        const struct buf *b = &c->data[i];
        (void)json_object_set_bytes(object, keys[i], buf_string(b), text_size(b, c->truncated[i]));
    }
    capture_truncated_to_json(c, object);
}
