#include "api/e2b/filter.h"

#include <stdlib.h>
#include <string.h>

#include "base/strv.h"

/* In place. A '%' that is none of an escape stays; a NUL ends it. */
static void percent_decode(char *text, bool plus)
{
    char *out = text;

    for (const char *p = text; *p; p++) {
        int high, low;

        if (p[0] == '%' && (high = hex_digit(p[1])) >= 0 && (low = hex_digit(p[2])) >= 0) {
            *out++ = (char)(high * 16 + low);
            p += 2;
        } else {
            *out++ = plus && *p == '+' ? ' ' : *p;
        }
    }
    *out = '\0';
}

static int take_state(struct list_filter *f, const char *state, struct error *err)
{
    while (*state) {
        size_t length = strcspn(state, ",");

        if (length == 7 && strncmp(state, "running", 7) == 0)
            f->running = true;
        else if (length == 6 && strncmp(state, "paused", 6) == 0)
            f->paused = true;
        else
            return error_set(err, EINVAL, "'state': '%.*s' is neither running nor paused",
                             (int)(length < 32 ? length : 32), state);
        state += length + (state[length] == ',');
    }
    return 0;
}

static int take_metadata(struct list_filter *f, const char *text, struct error *err)
{
    unsigned count = 0;

    while (*text) {
        size_t length = strcspn(text, "&");
        _cleanup_free_ char *pair = strndup(text, length), *whole = NULL;
        char *value;

        if (!pair)
            return error_set(err, ENOMEM, "out of memory");
        if (++count > FILTER_PAIRS_MAX)
            return error_set(err, E2BIG, "'metadata': more than %u pairs", FILTER_PAIRS_MAX);
        value = strchr(pair, '=');
        if (!value)
            return error_set(err, EINVAL, "'metadata': '%.64s' is no pair", pair);
        *value++ = '\0';
        percent_decode(pair, true);
        percent_decode(pair, false);
        percent_decode(value, true);
        percent_decode(value, false);
        whole = string_printf("%s=%s", pair, value);
        if (!whole || strv_append(&f->metadata, whole) < 0)
            return error_set(err, ENOMEM, "out of memory");
        text += length + (text[length] == '&');
    }
    return 0;
}

int list_filter_init(struct list_filter *f, const char *state, const char *metadata,
                     struct error *err)
{
    int r = 0;

    *f = (struct list_filter){0};
    if (state && state[0])
        r = take_state(f, state, err);
    else
        f->running = f->paused = true;
    if (r >= 0 && metadata)
        r = take_metadata(f, metadata, err);
    if (r < 0)
        list_filter_done(f);
    return r;
}

void list_filter_done(struct list_filter *f)
{
    f->metadata = strv_free(f->metadata);
}

static bool has(char *const *metadata, const char *pair)
{
    for (size_t i = 0; metadata && metadata[i]; i++) {
        if (strcmp(metadata[i], pair) == 0)
            return true;
    }
    return false;
}

bool list_filter_fits(const struct list_filter *f, bool is_paused, char *const *metadata)
{
    if (is_paused ? !f->paused : !f->running)
        return false;
    for (size_t i = 0; f->metadata && f->metadata[i]; i++) {
        if (!has(metadata, f->metadata[i]))
            return false;
    }
    return true;
}
