#include "base/strv.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"

char **strv_free(char **v)
{
    for (size_t i = 0; v && v[i]; i++)
        free(v[i]);
    free(v);
    return NULL;
}

size_t strv_length(char *const *v)
{
    size_t n = 0;

    while (v && v[n])
        n++;
    return n;
}

int strv_append(char ***v, const char *s)
{
    size_t n = strv_length(*v);
    char *copy = strdup(s);
    char **grown;

    if (!copy)
        return -ENOMEM;
    grown = reallocarray(*v, n + 2, sizeof(char *));
    if (!grown) {
        free(copy);
        return -ENOMEM;
    }
    grown[n] = copy;
    grown[n + 1] = NULL;
    *v = grown;
    return 0;
}

int strv_copy(char *const *v, char ***ret)
{
    size_t n = strv_length(v);
    _cleanup_strv_ char **copy = calloc(n + 1, sizeof(char *));

    if (!copy)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        copy[i] = strdup(v[i]);
        if (!copy[i])
            return -ENOMEM;
    }
    *ret = TAKE_PTR(copy);
    return 0;
}

char *string_printf(const char *format, ...)
{
    char *text = NULL;
    va_list ap;
    int n;

    va_start(ap, format);
    n = vasprintf(&text, format, ap);
    va_end(ap);
    return n < 0 ? NULL : text;
}

int string_set(char **s, const char *value)
{
    char *copy = NULL;

    if (value) {
        copy = strdup(value);
        if (!copy)
            return -ENOMEM;
    }
    free(*s);
    *s = copy;
    return 0;
}

bool string_starts_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

/* Digits at the front of s; *end points behind them. */
static int parse_digits(const char *s, uint64_t *ret, const char **end)
{
    uint64_t value = 0;

    if (!s || !isdigit((unsigned char)*s))
        return -EINVAL;
    for (; isdigit((unsigned char)*s); s++) {
        uint64_t digit = (uint64_t)(*s - '0');

        if (value > (UINT64_MAX - digit) / 10)
            return -ERANGE;
        value = value * 10 + digit;
    }
    *ret = value;
    *end = s;
    return 0;
}

int parse_u64(const char *s, uint64_t min, uint64_t max, uint64_t *ret)
{
    uint64_t value;
    const char *end;
    int r = parse_digits(s, &value, &end);

    if (r < 0)
        return r;
    if (*end)
        return -EINVAL;
    if (value < min || value > max)
        return -ERANGE;
    *ret = value;
    return 0;
}

/* A number and a unit out of a table; an empty unit is in the table too. */
struct unit {
    const char *name;
    uint64_t factor;
};

static int parse_with_unit(const char *s, const struct unit *units, size_t n_units, uint64_t *ret)
{
    uint64_t value;
    const char *end;
    int r = parse_digits(s, &value, &end);

    if (r < 0)
        return r;
    for (size_t i = 0; i < n_units; i++) {
        if (strcasecmp(end, units[i].name) != 0)
            continue;
        if (units[i].factor != 0 && value > UINT64_MAX / units[i].factor)
            return -ERANGE;
        *ret = value * units[i].factor;
        return 0;
    }
    return -EINVAL;
}

int parse_size(const char *s, uint64_t unit_bytes, uint64_t *ret_bytes)
{
    const struct unit units[] = {
        {"", unit_bytes},    {"b", 1},
        {"k", 1ULL << 10},   {"kb", 1ULL << 10},
        {"kib", 1ULL << 10}, {"m", 1ULL << 20},
        {"mb", 1ULL << 20},  {"mib", 1ULL << 20},
        {"g", 1ULL << 30},   {"gb", 1ULL << 30},
        {"gib", 1ULL << 30}, {"t", 1ULL << 40},
        {"tb", 1ULL << 40},  {"tib", 1ULL << 40},
    };

    return parse_with_unit(s, units, ARRAY_SIZE(units), ret_bytes);
}

int parse_duration(const char *s, uint64_t *ret_usec)
{
    static const struct unit units[] = {
        {"", USEC_PER_SEC},          {"us", 1},
        {"ms", USEC_PER_MSEC},       {"s", USEC_PER_SEC},
        {"m", 60 * USEC_PER_SEC},    {"h", 3600 * USEC_PER_SEC},
        {"d", 86400 * USEC_PER_SEC},
    };

    return parse_with_unit(s, units, ARRAY_SIZE(units), ret_usec);
}

int hex_digit(int c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

void hex_encode(const void *data, size_t size, char *text)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *p = data;

    for (size_t i = 0; i < size; i++) {
        text[2 * i] = digits[p[i] >> 4];
        text[2 * i + 1] = digits[p[i] & 15];
    }
    text[2 * size] = '\0';
}

bool name_is_valid(const char *s)
{
    size_t n = strlen(s);

    if (n == 0 || n > 63)
        return false;
    for (size_t i = 0; i < n; i++) {
        bool letter = (s[i] >= 'a' && s[i] <= 'z') || (s[i] >= '0' && s[i] <= '9');

        if (!letter && (i == 0 || !strchr("._-", s[i])))
            return false;
    }
    return true;
}

int random_id(char *text, size_t count)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    size_t done = 0;

    while (done < count) {
        uint8_t bytes[64];

        if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
            return -errno;
        for (size_t i = 0; i < sizeof(bytes) && done < count; i++) {
            uint8_t n = bytes[i] & 63;

            if (n < (done == 0 ? 26 : 36)) /* no modulo: every character equally likely */
                text[done++] = letters[n];
        }
    }
    text[count] = '\0';
    return 0;
}
