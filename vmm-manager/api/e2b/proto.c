#include "api/e2b/proto.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base64.h"
#include "base/strv.h"
#include "model/text.h"

enum wire {
    WIRE_VARINT = 0,
    WIRE_64 = 1,
    WIRE_BYTES = 2,
    WIRE_32 = 5,
};

static enum wire field_wire(const struct proto_field *field)
{
    if (field->shape == PROTO_MAP)
        return WIRE_BYTES;
    switch (field->kind) {
    case PROTO_STRING:
    case PROTO_BYTES:
    case PROTO_MESSAGE:
    case PROTO_TIME:
        return WIRE_BYTES;
    case PROTO_BOOL:
    case PROTO_UINT32:
    case PROTO_SINT32:
    case PROTO_INT64:
    case PROTO_ENUM:
        break;
    }
    return WIRE_VARINT;
}

/* ---- reading ---- */

struct reader {
    const uint8_t *at, *end;
};

struct decode {
    unsigned values;
    struct error *err;
};

static int read_varint(struct reader *r, uint64_t *ret)
{
    uint64_t value = 0;

    for (unsigned shift = 0; shift < 70 && r->at < r->end; shift += 7) {
        uint8_t byte = *r->at++;

        if (shift == 63 && byte > 1)
            return -EINVAL;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *ret = value;
            return 0;
        }
    }
    return -EINVAL;
}

static int read_bytes(struct reader *r, struct reader *ret)
{
    uint64_t size;

    if (read_varint(r, &size) < 0 || size > (uint64_t)(r->end - r->at))
        return -EINVAL;
    *ret = (struct reader){r->at, r->at + size};
    r->at += size;
    return 0;
}

struct value {
    uint32_t number;
    enum wire wire;
    uint64_t varint;
    struct reader bytes;
};

/* The next field, known or not. */
static int read_value(struct reader *r, struct value *ret)
{
    uint64_t tag;

    if (read_varint(r, &tag) < 0 || tag > UINT32_MAX || tag >> 3 == 0)
        return -EINVAL;
    ret->number = (uint32_t)tag >> 3;
    ret->wire = (enum wire)(tag & 7);
    switch (ret->wire) {
    case WIRE_VARINT:
        return read_varint(r, &ret->varint);
    case WIRE_BYTES:
        return read_bytes(r, &ret->bytes);
    case WIRE_32:
    case WIRE_64: {
        ptrdiff_t size = ret->wire == WIRE_32 ? 4 : 8;

        if (r->end - r->at < size)
            return -EINVAL;
        r->at += size;
        return 0;
    }
    default: /* groups: nobody has written them for ages */
        return -EINVAL;
    }
}

static int refuse(struct decode *d, const char *name, const char *why)
{
    return error_set(d->err, EINVAL, "'%s': %s", name, why);
}

static json_t *text_of(const struct reader *r)
{
    size_t size = (size_t)(r->end - r->at);

    return utf8_is_valid(r->at, size) ? json_stringn((const char *)r->at, size) : NULL;
}

static json_t *base64_of(const struct reader *r)
{
    _cleanup_free_ char *text = base64_encode(r->at, (size_t)(r->end - r->at));

    return text ? json_string(text) : NULL;
}

static json_t *int64_of(uint64_t value)
{
    _cleanup_free_ char *text = string_printf("%lld", (long long)value);

    return text ? json_string(text) : NULL;
}

/* NULL: not a value of its kind, or out of memory. */
static json_t *scalar_of(const struct proto_field *field, const struct value *v)
{
    uint32_t low = (uint32_t)v->varint;

    switch (field->kind) {
    case PROTO_STRING:
        return text_of(&v->bytes);
    case PROTO_BYTES:
        return base64_of(&v->bytes);
    case PROTO_BOOL:
        return json_boolean(v->varint != 0);
    case PROTO_UINT32:
        return json_integer(low);
    case PROTO_SINT32:
        return json_integer((int32_t)((low >> 1) ^ (0u - (low & 1))));
    case PROTO_INT64:
        return int64_of(v->varint);
    case PROTO_ENUM:
        return json_integer((int32_t)low);
    case PROTO_MESSAGE:
    case PROTO_TIME:
        break;
    }
    return NULL;
}

static int decode_entry(struct decode *d, const struct proto_field *field, struct reader r,
                        json_t *map)
{
    struct reader key = {0}, text = {0};
    struct value v;
    json_t *value;

    while (r.at < r.end) {
        if (read_value(&r, &v) < 0)
            return refuse(d, field->name, "an entry is cut or not protobuf");
        if (v.number > 2)
            continue;
        if (v.wire != WIRE_BYTES)
            return refuse(d, field->name, "an entry is not a text by a text");
        *(v.number == 1 ? &key : &text) = v.bytes;
    }
    size_t size = (size_t)(key.end - key.at);
    if (size > 0 && (memchr(key.at, 0, size) || !utf8_is_valid(key.at, size)))
        return refuse(d, field->name, "a key is not a text without NUL");
    value = text_of(&text);
    if (!value)
        return refuse(d, field->name, "a text is not UTF-8");
    _cleanup_free_ char *name = strndup(size > 0 ? (const char *)key.at : "", size);
    if (!name || json_object_set_new(map, name, value) < 0)
        return error_set(d->err, ENOMEM, "out of memory");
    return 0;
}

/* NOLINTBEGIN(misc-no-recursion): the tables bound it */
static int decode_into(struct decode *d, const struct proto_message *message, struct reader r,
                       json_t *object);

/* The member that a field's values go to: made when it is not there. Borrowed. */
static json_t *member(json_t *object, const struct proto_field *field)
{
    json_t *there = json_object_get(object, field->name);

    if (there)
        return there;
    there = field->shape == PROTO_LIST ? json_array() : json_object();
    return json_object_set_new(object, field->name, there) < 0 ? NULL : there;
}

static int decode_value(struct decode *d, const struct proto_message *message,
                        const struct proto_field *field, const struct value *v, json_t *object)
{
    json_t *value, *into = NULL;

    if (field_wire(field) != v->wire || field->kind == PROTO_TIME)
        return refuse(d, field->name, "is not of its kind");
    if (++d->values > PROTO_VALUES_MAX)
        return refuse(d, field->name, "the message has too many values");
    for (size_t i = 0; field->oneof && i < message->n_fields; i++) {
        if (message->fields[i].oneof && &message->fields[i] != field)
            (void)json_object_del(object, message->fields[i].name);
    }
    if (field->shape != PROTO_ONE || field->kind == PROTO_MESSAGE) {
        into = member(object, field);
        if (!into)
            return error_set(d->err, ENOMEM, "out of memory");
    }
    if (field->shape == PROTO_MAP)
        return decode_entry(d, field, v->bytes, into);
    if (field->kind == PROTO_MESSAGE && field->shape == PROTO_ONE)
        return decode_into(d, field->message, v->bytes, into);
    if (field->kind == PROTO_MESSAGE) {
        value = json_object();
        if (json_array_append_new(into, value) < 0)
            return error_set(d->err, ENOMEM, "out of memory");
        return decode_into(d, field->message, v->bytes, value);
    }
    value = scalar_of(field, v);
    if (!value)
        return refuse(d, field->name, "is not UTF-8");
    if ((into ? json_array_append_new(into, value)
              : json_object_set_new(object, field->name, value)) < 0)
        return error_set(d->err, ENOMEM, "out of memory");
    return 0;
}

static int decode_into(struct decode *d, const struct proto_message *message, struct reader r,
                       json_t *object)
{
    while (r.at < r.end) {
        const struct proto_field *field = NULL;
        struct value v = {0};
        int e;

        if (read_value(&r, &v) < 0)
            return error_set(d->err, EINVAL, "the message is cut or not protobuf");
        for (size_t i = 0; i < message->n_fields && !field; i++) {
            if (message->fields[i].number == v.number)
                field = &message->fields[i];
        }
        if (!field)
            continue;
        e = decode_value(d, message, field, &v, object);
        if (e < 0)
            return e;
    }
    return 0;
}
/* NOLINTEND(misc-no-recursion) */

int proto_decode(const struct proto_message *message, const void *data, size_t size, json_t **ret,
                 struct error *err)
{
    const uint8_t *bytes = size > 0 ? data : (const uint8_t *)"";
    struct decode d = {.err = err};
    json_t *object = json_object();
    int r;

    if (!object)
        return error_set(err, ENOMEM, "out of memory");
    r = decode_into(&d, message, (struct reader){bytes, bytes + size}, object);
    if (r < 0) {
        json_decref(object);
        return r;
    }
    *ret = object;
    return 0;
}

/* ---- writing ---- */

static int write_varint(struct buf *out, uint64_t value)
{
    uint8_t bytes[10];
    size_t n = 0;

    do {
        bytes[n] = (uint8_t)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        n++;
        value >>= 7;
    } while (value > 0);
    return buf_append(out, bytes, n);
}

static int write_tag(struct buf *out, uint32_t number, enum wire wire)
{
    return write_varint(out, (uint64_t)number << 3 | wire);
}

static int write_bytes(struct buf *out, uint32_t number, const void *data, size_t size)
{
    int r = write_tag(out, number, WIRE_BYTES);

    if (r >= 0)
        r = write_varint(out, size);
    return r >= 0 && size > 0 ? buf_append(out, data, size) : r;
}

static int write_number(struct buf *out, uint32_t number, uint64_t value)
{
    int r = write_tag(out, number, WIRE_VARINT);

    return r >= 0 ? write_varint(out, value) : r;
}

static int number_of(const struct proto_field *field, const json_t *json, uint64_t *ret)
{
    const char *text = json_string_value(json);

    if (json_is_boolean(json) && field->kind == PROTO_BOOL) {
        *ret = json_is_true(json);
        return 0;
    }
    if (field->kind == PROTO_ENUM && text) {
        for (size_t i = 0; i < field->names->n_names; i++) {
            if (field->names->names[i] && strcmp(field->names->names[i], text) == 0) {
                *ret = i;
                return 0;
            }
        }
        return -EINVAL;
    }
    if (field->kind == PROTO_INT64 && text) {
        char *end;

        errno = 0;
        *ret = (uint64_t)strtoll(text, &end, 10);
        return errno == 0 && end != text && *end == '\0' ? 0 : -EINVAL;
    }
    if (!json_is_integer(json) || field->kind == PROTO_BOOL)
        return -EINVAL;
    json_int_t value = json_integer_value(json);
    if (field->kind == PROTO_UINT32 && (value < 0 || value > UINT32_MAX))
        return -ERANGE;
    if (field->kind == PROTO_SINT32 && (value < INT32_MIN || value > INT32_MAX))
        return -ERANGE;
    *ret = field->kind == PROTO_SINT32
               ? ((uint64_t)value << 1 ^ (uint64_t)(value >> 63)) & UINT32_MAX
               : (uint64_t)value;
    return 0;
}

/* RFC 3339, in UTC, with any number of digits behind the second. */
static int write_time(struct buf *out, uint32_t number, const char *text)
{
    struct tm tm = {0};
    const char *rest = text ? strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) : NULL;
    uint8_t digits[9] = {0};
    uint32_t nsec = 0;
    struct buf inner;
    int r;

    if (!rest)
        return -EINVAL;
    if (*rest == '.') {
        rest++;
        for (size_t i = 0; *rest >= '0' && *rest <= '9'; i++, rest++) {
            if (i < sizeof(digits))
                digits[i] = (uint8_t)(*rest - '0');
        }
    }
    if (strcmp(rest, "Z") != 0)
        return -EINVAL;
    for (size_t i = 0; i < sizeof(digits); i++)
        nsec = nsec * 10 + digits[i];
    buf_init(&inner, 32);
    r = write_number(&inner, 1, (uint64_t)timegm(&tm));
    if (r >= 0)
        r = write_number(&inner, 2, nsec);
    if (r >= 0)
        r = write_bytes(out, number, buf_data(&inner), inner.size);
    buf_done(&inner);
    return r;
}

static int write_base64(struct buf *out, uint32_t number, const json_t *json)
{
    _cleanup_free_ char *data = NULL;
    size_t size;

    if (!json_is_string(json) ||
        base64_decode(json_string_value(json), json_string_length(json), &data, &size) < 0)
        return -EINVAL;
    return write_bytes(out, number, data, size);
}

/* NOLINTBEGIN(misc-no-recursion): the tables bound it */
static int encode_value(const struct proto_field *field, const json_t *json, struct buf *out,
                        struct error *err)
{
    struct buf inner;
    uint64_t number;
    int r;

    switch (field->kind) {
    case PROTO_STRING:
        return json_is_string(json) ? write_bytes(out, field->number, json_string_value(json),
                                                  json_string_length(json))
                                    : -EINVAL;
    case PROTO_BYTES:
        return write_base64(out, field->number, json);
    case PROTO_TIME:
        return write_time(out, field->number, json_string_value(json));
    case PROTO_MESSAGE:
        buf_init(&inner, PROTO_ENCODED_MAX);
        r = json_is_object(json) ? proto_encode(field->message, json, &inner, err) : -EINVAL;
        if (r >= 0)
            r = write_bytes(out, field->number, buf_data(&inner), inner.size);
        buf_done(&inner);
        return r;
    case PROTO_BOOL:
    case PROTO_UINT32:
    case PROTO_SINT32:
    case PROTO_INT64:
    case PROTO_ENUM:
        break;
    }
    r = number_of(field, json, &number);
    return r < 0 ? r : write_number(out, field->number, number);
}

static int encode_map(const struct proto_field *field, json_t *map, struct buf *out)
{
    const char *key;
    json_t *value;
    int r = json_is_object(map) ? 0 : -EINVAL;

    json_object_foreach(map, key, value)
    {
        struct buf entry;

        buf_init(&entry, PROTO_ENCODED_MAX);
        r = json_is_string(value) ? write_bytes(&entry, 1, key, strlen(key)) : -EINVAL;
        if (r >= 0)
            r = write_bytes(&entry, 2, json_string_value(value), json_string_length(value));
        if (r >= 0)
            r = write_bytes(out, field->number, buf_data(&entry), entry.size);
        buf_done(&entry);
        if (r < 0)
            break;
    }
    return r;
}

static int encode_field(const struct proto_field *field, json_t *json, struct buf *out,
                        struct error *err)
{
    json_t *item;
    size_t i;
    int r = 0;

    if (json_is_null(json))
        return 0;
    if (field->shape == PROTO_MAP)
        return encode_map(field, json, out);
    if (field->shape == PROTO_ONE)
        return encode_value(field, json, out, err);
    if (!json_is_array(json))
        return -EINVAL;
    json_array_foreach(json, i, item)
    {
        r = encode_value(field, item, out, err);
        if (r < 0)
            break;
    }
    return r;
}

int proto_encode(const struct proto_message *message, const json_t *object, struct buf *out,
                 struct error *err)
{
    size_t known = 0;

    for (size_t i = 0; i < message->n_fields; i++) {
        const struct proto_field *field = &message->fields[i];
        json_t *json = json_object_get(object, field->name);
        int r;

        if (!json)
            continue;
        known++;
        r = encode_field(field, json, out, err);
        if (r < 0)
            return error_set(err, -r, "'%s': does not fit its message", field->name);
    }
    if (known != json_object_size(object))
        return error_set(err, EINVAL, "the message has no field for one of %zu values",
                         json_object_size(object));
    return 0;
}
/* NOLINTEND(misc-no-recursion) */
