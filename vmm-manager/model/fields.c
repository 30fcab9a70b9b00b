#include "model/fields.h"

#include <inttypes.h>
#include <string.h>

#include "base/strv.h"
#include "model/spec.h"
#include "model/text.h"

/* MAX_ARG_STRLEN of Linux less the NUL: longer strings cannot be given to a process. */
#define ARGUMENT_BYTES_MAX (128u * 1024u - 1u)

static const char *json_type_name(const json_t *json)
{
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        return "null";
    }
    return "nothing";
}

static int wrong_type(struct error *err, const char *key, const json_t *json, const char *expected)
{
    return error_set(err, EINVAL, "'%s': is %s, expected %s", key, json_type_name(json), expected);
}

/* A copy of a string value without NUL; `what` and `noun` name it in errors. */
static int bytes_copy(const json_t *json, const char *what, const char *noun, size_t max,
                      char **ret, struct error *err)
{
    _cleanup_free_ char *owned = NULL;
    const char *data;
    size_t size;

    int r = json_bytes_get(json, &data, &size, &owned);
    if (r == -ENOMEM)
        return error_set(err, ENOMEM, "'%s': out of memory", what);
    if (r < 0)
        return wrong_type(err, what, json, "a string or {\"base64\": …}");
    if (memchr(data, '\0', size))
        return error_set(err, EINVAL, "'%s': has a NUL byte", what);
    if (size > max)
        return error_set(err, E2BIG, "'%s': %s has %zu bytes, at most %zu are allowed", what, noun,
                         size, max);
    char *copy = strndup(data, size);
    if (!copy)
        return error_set(err, ENOMEM, "'%s': out of memory", what);
    *ret = copy;
    return 0;
}

static int decode_string(const json_t *json, const struct field *f, char **target,
                         struct error *err)
{
    _cleanup_free_ char *text = NULL;

    int r = bytes_copy(json, f->key, "the value", f->max, &text, err);
    if (r < 0)
        return r;
    if (strlen(text) < f->min)
        return error_set(err, EINVAL, "'%s': is empty", f->key);
    if (f->type == FIELD_PATH && text[0] != '/')
        return error_set(err, EINVAL, "'%s': '%.64s' is not an absolute path", f->key, text);
    if (f->type == FIELD_NAME && !name_is_valid(text))
        return error_set(err, EINVAL,
                         "'%s': '%.64s' is no name: it starts with a-z or 0-9, goes on with a-z, "
                         "0-9, '.', '_' or '-', and has at most 63 characters",
                         f->key, text);
    free(*target);
    *target = TAKE_PTR(text);
    return 0;
}

static int decode_integer(const json_t *json, const struct field *f, uint64_t *ret,
                          struct error *err)
{
    if (!json_is_integer(json))
        return wrong_type(err, f->key, json, "an integer");
    json_int_t value = json_integer_value(json);
    if (value < 0 || (uint64_t)value < f->min || (uint64_t)value > f->max)
        return error_set(err, EINVAL,
                         "'%s': %" JSON_INTEGER_FORMAT " is not within %" PRIu64 " and %" PRIu64,
                         f->key, value, f->min, f->max);
    *ret = (uint64_t)value;
    return 0;
}

static int decode_strv(const json_t *json, const struct field *f, char ***target, struct error *err)
{
    _cleanup_strv_ char **v = NULL;
    size_t total = 0;

    if (!json_is_array(json))
        return wrong_type(err, f->key, json, "an array of strings");
    size_t count = json_array_size(json);
    if (count < f->min)
        return error_set(err, EINVAL, "'%s': is empty", f->key);
    if (count > f->max)
        return error_set(err, E2BIG, "'%s': %zu elements, at most %" PRIu64 " are allowed", f->key,
                         count, f->max);
    v = calloc(count + 1, sizeof(*v));
    if (!v)
        return error_set(err, ENOMEM, "'%s': out of memory", f->key);
    for (size_t i = 0; i < count; i++) {
        char what[96];
        (void)snprintf(what, sizeof(what), "%s[%zu]", f->key, i);
        int r = bytes_copy(json_array_get(json, i), what, "the argument", ARGUMENT_BYTES_MAX, &v[i],
                           err);
        if (r < 0)
            return r;
        total += strlen(v[i]) + 1;
        if (total > SPEC_ARGV_BYTES_MAX)
            return error_set(err, E2BIG, "'%s': more than %u bytes in all", f->key,
                             SPEC_ARGV_BYTES_MAX);
    }
    (void)strv_free(*target);
    *target = TAKE_PTR(v);
    return 0;
}

static int env_entry(const char *key, const json_t *value, char **ret, struct error *err)
{
    _cleanup_free_ char *text = NULL;
    char what[96];

    if (key[0] == '\0' || strchr(key, '='))
        return error_set(err, EINVAL, "'env': '%.64s' is not a variable's name", key);
    (void)snprintf(what, sizeof(what), "env.%s", key);
    int r = bytes_copy(value, what, "the variable", ARGUMENT_BYTES_MAX, &text, err);
    if (r < 0)
        return r;
    if (strlen(key) + 1 + strlen(text) > ARGUMENT_BYTES_MAX)
        return error_set(err, E2BIG, "'%s': name and value have more than %u bytes", what,
                         ARGUMENT_BYTES_MAX);
    *ret = string_printf("%s=%s", key, text);
    return *ret ? 0 : error_set(err, ENOMEM, "'%s': out of memory", what);
}

static int decode_env(const json_t *json, const struct field *f, char ***target, struct error *err)
{
    _cleanup_strv_ char **v = NULL;
    size_t total = 0, count = 0;
    const char *key;
    json_t *value;

    if (!json_is_object(json))
        return wrong_type(err, f->key, json, "an object of strings");
    if (json_object_size(json) > SPEC_ENV_MAX)
        return error_set(err, E2BIG, "'%s': %zu variables, at most %u are allowed", f->key,
                         json_object_size(json), SPEC_ENV_MAX);
    v = calloc(json_object_size(json) + 1, sizeof(*v));
    if (!v)
        return error_set(err, ENOMEM, "'%s': out of memory", f->key);
    /* The iterator of a const object: json_object_iter() takes a non-const one, changes nothing. */
    union {
        const json_t *in;
        json_t *out;
    } object = {.in = json};
    json_object_foreach(object.out, key, value)
    {
        int r = env_entry(key, value, &v[count], err);
        if (r < 0)
            return r;
        total += strlen(v[count++]) + 1;
        if (total > SPEC_ENV_BYTES_MAX)
            return error_set(err, E2BIG, "'%s': more than %u bytes in all", f->key,
                             SPEC_ENV_BYTES_MAX);
    }
    (void)strv_free(*target);
    *target = TAKE_PTR(v);
    return 0;
}

static int decode_field(const json_t *json, const struct field *f, void *member, struct error *err)
{
    uint64_t value = 0;
    int r;

    switch (f->type) {
    case FIELD_STRING:
    case FIELD_PATH:
    case FIELD_NAME:
        return decode_string(json, f, member, err);
    case FIELD_BOOL:
        if (!json_is_boolean(json))
            return wrong_type(err, f->key, json, "true or false");
        *(bool *)member = json_is_true(json);
        return 0;
    case FIELD_U16:
        r = decode_integer(json, f, &value, err);
        if (r >= 0)
            *(uint16_t *)member = (uint16_t)value;
        return r;
    case FIELD_U32:
        r = decode_integer(json, f, &value, err);
        if (r >= 0)
            *(uint32_t *)member = (uint32_t)value;
        return r;
    case FIELD_U64:
        r = decode_integer(json, f, &value, err);
        if (r >= 0)
            *(uint64_t *)member = value;
        return r;
    case FIELD_STRV:
        return decode_strv(json, f, member, err);
    case FIELD_ENV:
        return decode_env(json, f, member, err);
    case FIELD_JSON:
        *(const json_t **)member = json;
        return 0;
    }
    return -EINVAL;
}

static const struct field *field_find(const struct field *fields, size_t count, const char *key)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(fields[i].key, key) == 0)
            return &fields[i];
    }
    return NULL;
}

int fields_decode(const json_t *json, const struct field *fields, size_t count, void *target,
                  struct error *err)
{
    const char *key;
    json_t *value;

    if (!json_is_object(json))
        return error_set(err, EINVAL, "expected an object, got %s",
                         json ? json_type_name(json) : "nothing");
    union {
        const json_t *in;
        json_t *out;
    } object = {.in = json};
    json_object_foreach(object.out, key, value)
    {
        const struct field *f = field_find(fields, count, key);
        if (!f)
            return error_set(err, EINVAL, "'%.64s': unknown key", key);
        if (json_is_null(value))
            continue;
        int r = decode_field(value, f, (char *)target + f->offset, err);
        if (r < 0)
            return r;
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *given = json_object_get(json, fields[i].key);
        if (fields[i].required && (!given || json_is_null(given)))
            return error_set(err, EINVAL, "'%s': is missing", fields[i].key);
    }
    return 0;
}
