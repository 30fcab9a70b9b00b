#include "api/native/page.h"

#include <stdlib.h>
#include <string.h>

#include "api/native/native.h"
#include "base/buf.h"
#include "base/strv.h"

#define CURSOR_MAX 512u

struct item {
    char *key;    /* owned */
    json_t *json; /* weak: the array's */
};

static char *item_key(const json_t *json, const char *const *keys)
{
    struct buf key;
    char *text = NULL;
    int r = 0;

    buf_init(&key, CURSOR_MAX);
    for (; *keys && r >= 0; keys++) {
        const char *value = json_string_value(json_object_get(json, *keys));
        r = buf_printf(&key, "%s\x1f", value ? value : "");
    }
    if (r >= 0)
        text = strdup(buf_string(&key));
    buf_done(&key);
    return text;
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct item *)a)->key, ((const struct item *)b)->key);
}

/* Hex, which stands in a query as it is. */
static char *cursor_encode(const char *key)
{
    char *text = malloc(2 * strlen(key) + 1);

    if (text)
        hex_encode(key, strlen(key), text);
    return text;
}

static int cursor_decode(const char *cursor, char **ret, struct error *err)
{
    size_t size = strlen(cursor);
    char *key;

    if (size == 0 || size > 2 * CURSOR_MAX || size % 2 != 0 ||
        strspn(cursor, "0123456789abcdef") != size)
        return error_set(err, EINVAL, "'cursor': '%.64s' is none of this list", cursor);
    key = calloc(1, size / 2 + 1);
    if (!key)
        return error_set(err, ENOMEM, "out of memory");
    for (size_t i = 0; i < size / 2; i++) {
        const char digits[3] = {cursor[2 * i], cursor[2 * i + 1], '\0'};
        key[i] = (char)strtoul(digits, NULL, 16);
    }
    *ret = key;
    return 0;
}

static json_t *page(json_t *all, const char *const *keys, const char *after, uint64_t limit,
                    char **ret_next)
{
    size_t count = json_array_size(all), n = 0;
    struct item *items = calloc(count + 1, sizeof(*items));
    json_t *list = items ? json_array() : NULL;
    bool ok = list != NULL;

    for (size_t i = 0; ok && i < count; i++) {
        items[i].json = json_array_get(all, i);
        items[i].key = item_key(items[i].json, keys);
        ok = items[i].key != NULL;
    }
    if (ok)
        qsort(items, count, sizeof(*items), by_key);
    for (size_t i = 0; ok && i < count; i++) {
        if (after && strcmp(items[i].key, after) <= 0)
            continue;
        if (n++ == limit) {
            *ret_next = cursor_encode(items[i - 1].key);
            ok = *ret_next != NULL;
            break;
        }
        ok = json_array_append(list, items[i].json) >= 0;
    }
    for (size_t i = 0; items && i < count; i++)
        free(items[i].key);
    free(items);
    if (ok)
        return list;
    json_decref(list);
    return NULL;
}

void native_answer_list(struct request *req, const char *name, json_t *array_consume,
                        const char *const *keys)
{
    const char *cursor = NULL;
    uint64_t limit = 0;
    _cleanup_free_ char *after = NULL, *next = NULL;
    struct error err = {0};
    json_t *list = NULL;
    bool asked = native_query_string(req, "cursor", &cursor) &&
                 native_query_u64(req, "limit", PAGE_MAX, &limit);

    if (asked && cursor && cursor_decode(cursor, &after, &err) < 0) {
        request_answer_error(req, &err);
        asked = false;
    }
    if (asked && !cursor && limit == 0)
        list = json_incref(array_consume);
    else if (asked && array_consume)
        list = page(array_consume, keys, after, limit ? limit : PAGE_MAX, &next);
    json_decref(array_consume);
    if (!asked)
        return;
    json_t *answer = json_pack("{s:o}", name, list);
    if (answer && next)
        (void)json_object_set_new(answer, "next_cursor", json_string(next));
    request_answer(req, 200, answer);
}
