#include "host/session-control.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint64_t get_le(const uint8_t *from, unsigned size)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < size; i++)
        value |= (uint64_t)from[i] << (8 * i);
    return value;
}

void session_control_init(struct session_control *c)
{
    *c = (struct session_control){0};
    buf_init(&c->message, SESSION_STATE_MAX);
}

void session_control_done(struct session_control *c)
{
    buf_done(&c->message);
}

static void begin_message(struct session_control *c)
{
    buf_clear(&c->message);
    c->message_begun = false;
    c->cut = false;
}

void session_control_reset(struct session_control *c, uint64_t offset)
{
    c->offset = offset;
    c->record_start = c->header_start = offset;
    c->header_have = 0;
    c->body_left = 0;
    c->state_next = false;
    begin_message(c);
}

uint64_t session_control_resume(const struct session_control *c)
{
    /* The two messages of a shell's end belong together. */
    if (c->message_begun || c->state_next)
        return c->record_start;
    if (c->header_have > 0 || c->body_left > 0)
        return c->header_start;
    return c->offset;
}

/* Decimal up to the next space or the end; NULL when there is none. */
static const char *take_number(const char *s, uint64_t *ret)
{
    char *end;

    if (*s < '0' || *s > '9')
        return NULL;
    errno = 0;
    *ret = strtoull(s, &end, 10);
    if (errno != 0 || (*end != ' ' && *end != '\0'))
        return NULL;
    return *end == ' ' ? end + 1 : end;
}

/* "NUMBER STATUS CWD" */
static bool take_end(const char *s, struct session_message *ret)
{
    uint64_t status;

    s = take_number(s, &ret->number);
    if (s)
        s = take_number(s, &status);
    if (!s || status > 255)
        return false;
    ret->status = (int)status;
    ret->text = s;
    ret->size = strlen(s);
    return true;
}

/* "STATUS BLOCKCWD"; a block's number is at its end, or where a line follows at its beginning. */
static bool take_block_end(const char *s, struct session_message *ret)
{
    const char *digits;
    uint64_t status;

    s = take_number(s, &status);
    if (!s || status > 255 || strlen(s) < SESSION_BLOCK)
        return false;
    digits = s[0] == ',' ? s + 1 : s + SESSION_BLOCK - SESSION_BLOCK_DIGITS;
    ret->number = 0;
    for (unsigned i = 0; i < SESSION_BLOCK_DIGITS; i++) {
        if (digits[i] < '0' || digits[i] > '9')
            return false;
        ret->number = ret->number * 10 + (uint64_t)(digits[i] - '0');
    }
    ret->status = (int)status;
    ret->blocks = true;
    ret->text = s + SESSION_BLOCK;
    ret->size = strlen(ret->text);
    return true;
}

static bool parse(struct session_control *c, struct session_message *ret)
{
    const char *s = buf_string(&c->message);
    size_t size = c->message.size;

    *ret = (struct session_message){.text = "", .cut = c->cut};
    memcpy(ret->offset, c->reached, sizeof(ret->offset));
    if (c->state_next) {
        c->state_next = false;
        ret->kind = SESSION_MESSAGE_STATE;
        ret->text = s;
        ret->size = size;
        return true;
    }
    if (!c->cut && size > 0 && s[0] == 'B') {
        ret->kind = SESSION_MESSAGE_END;
        return take_block_end(s + 1, ret);
    }
    if (c->cut || size < 2 || s[1] != ' ')
        return false;
    switch (s[0]) {
    case 'E':
        ret->kind = SESSION_MESSAGE_END;
        return take_end(s + 2, ret);
    case 'X':
        ret->kind = SESSION_MESSAGE_EXIT;
        c->state_next = take_end(s + 2, ret);
        return c->state_next;
    case 'T':
        ret->kind = SESSION_MESSAGE_TRAPS;
        ret->text = s + 2;
        ret->size = size - 2;
        return true;
    case 'P':
        ret->kind = SESSION_MESSAGE_ANSWER;
        return take_number(s + 2, &ret->number) != NULL;
    default:
        return false;
    }
}

static int take_header(struct session_control *c, const uint8_t *data, size_t size, size_t *ret,
                       struct error *err)
{
    size_t n = MIN(size, SESSION_RECORD_HEADER - c->header_have);
    uint64_t body;

    if (c->header_have == 0)
        c->header_start = c->offset;
    memcpy(c->header + c->header_have, data, n);
    c->header_have += n;
    *ret = n;
    if (c->header_have < SESSION_RECORD_HEADER)
        return 0;
    c->header_have = 0;
    body = get_le(c->header, 4);
    c->reached[1] = get_le(c->header + 8, 8);
    c->reached[2] = get_le(c->header + 16, 8);
    if (body == 0 || body > SESSION_RECORD_MAX || get_le(c->header + 4, 4) != 0 ||
        c->reached[1] > INT64_MAX || c->reached[2] > INT64_MAX)
        return error_set_code(err, ERR_GUEST_PROTOCOL,
                              "guest sent a broken record on the shell's control stream");
    c->body_left = (uint32_t)body;
    return 0;
}

/* Bytes up to and with the next NUL, or all; true when a message is complete. */
static bool take_body(struct session_control *c, const uint8_t *data, size_t size, size_t *ret)
{
    const uint8_t *end;
    size_t n;

    size = MIN(size, (size_t)c->body_left);
    end = memchr(data, '\0', size);
    n = end ? (size_t)(end - data) : size;
    if (!c->message_begun) {
        begin_message(c);
        c->message_begun = true;
        if (!c->state_next)
            c->record_start = c->header_start;
    }
    if (!c->cut && buf_append(&c->message, data, n) < 0) {
        buf_clear(&c->message);
        c->cut = true;
    }
    *ret = end ? n + 1 : n;
    c->body_left -= (uint32_t)*ret;
    return end != NULL;
}

int session_control_take(struct session_control *c, uint64_t offset, const uint8_t *data,
                         size_t size, size_t *ret_used, struct session_message *ret,
                         struct error *err)
{
    size_t used = 0;
    int r;

    if (offset != c->offset)
        session_control_reset(c, offset);
    while (used < size) {
        size_t n = 0;
        bool complete = false;

        if (c->body_left == 0) {
            r = take_header(c, data + used, size - used, &n, err);
            if (r < 0)
                return r;
        } else {
            complete = take_body(c, data + used, size - used, &n);
        }
        used += n;
        c->offset += n;
        if (!complete)
            continue;
        c->message_begun = false;
        if (parse(c, ret)) {
            *ret_used = used;
            return 1;
        }
    }
    *ret_used = used;
    return 0;
}
