#include <stdlib.h>
#include <string.h>

#include "api/front/touch.h"
#include "api/native/native.h"
#include "base/strv.h"

struct sandbox *native_sandbox(struct request *req)
{
    struct error err = {0};
    struct sandbox *sb = access_sandbox(req, native_of(req)->core, request_param(req, 0), &err);

    if (!sb)
        request_answer_error(req, &err);
    return sb;
}

void native_gate(struct request *req, void *context)
{
    struct sandbox *sb = native_sandbox(req);

    (void)context;
    if (sb)
        touch_then(req, sb, request_proceed);
}

struct console *native_console(struct request *req, struct sandbox **ret_sb)
{
    struct error err = {0};
    struct sandbox *sb = native_sandbox(req);

    if (!sb)
        return NULL;
    struct console *c = sandbox_console(sb, &err);
    if (!c)
        request_answer_error(req, &err);
    *ret_sb = sb;
    return c;
}

bool native_decode(struct request *req, const struct field *fields, size_t count, void *target)
{
    struct error err = {0};
    int r = fields_decode(request_json(req), fields, count, target, &err);

    if (r < 0)
        request_answer_error(req, &err);
    return r >= 0;
}

bool native_query_string(struct request *req, const char *key, const char **ret)
{
    struct error err = {0};
    const char *value;
    int r = request_query(req, key, &value, &err);

    if (r < 0)
        request_answer_error(req, &err);
    else if (value)
        *ret = value;
    return r >= 0;
}

bool native_query_bool(struct request *req, const char *key, bool *ret)
{
    const char *value = NULL;
    struct error err;

    if (!native_query_string(req, key, &value))
        return false;
    if (!value)
        return true;
    if (strcmp(value, "1") == 0 || strcmp(value, "true") == 0) {
        *ret = true;
        return true;
    }
    if (strcmp(value, "0") == 0 || strcmp(value, "false") == 0) {
        *ret = false;
        return true;
    }
    error_set(&err, EINVAL, "'%s': '%.64s' is neither true nor false", key, value);
    request_answer_error(req, &err);
    return false;
}

bool native_query_u64(struct request *req, const char *key, uint64_t max, uint64_t *ret)
{
    const char *value = NULL;
    struct error err;

    if (!native_query_string(req, key, &value))
        return false;
    if (!value || parse_u64(value, 0, max, ret) >= 0)
        return true;
    error_set(&err, EINVAL, "'%s': '%.64s' is not a number of 0 to %llu", key, value,
              (unsigned long long)max);
    request_answer_error(req, &err);
    return false;
}

int native_decode_from(const json_t *from, uint64_t ret[3], bool *ret_given, struct error *err)
{
    struct offsets {
        uint64_t out, err;
    } offsets = {0};
    static const struct field fields[] = {
        {"stdout", FIELD_U64, offsetof(struct offsets, out), 0, INT64_MAX, false},
        {"stderr", FIELD_U64, offsetof(struct offsets, err), 0, INT64_MAX, false},
    };

    *ret_given = from != NULL;
    if (from) {
        int r = fields_decode(from, fields, ARRAY_SIZE(fields), &offsets, err);
        if (r < 0) {
            error_wrap(err, "'from'");
            return r;
        }
    }
    ret[0] = 0;
    ret[1] = offsets.out;
    ret[2] = offsets.err;
    return 0;
}

int native_parse_mode(const char *text, uint32_t *ret, struct error *err)
{
    char *end;
    unsigned long mode = strtoul(text, &end, 8);

    if (text[0] < '0' || text[0] > '7' || *end != '\0' || mode > 07777)
        return error_set(err, EINVAL, "'mode': '%.32s' is not an octal mode like 0644", text);
    *ret = (uint32_t)mode;
    return 0;
}
