#include "api/native/range.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/macros.h"
#include "base/strv.h"

/* A number of digits only; empty is none. */
static int part(const char *start, size_t length, bool *ret_given, uint64_t *ret)
{
    char text[24];

    *ret_given = length > 0;
    if (length == 0)
        return 0;
    if (length >= sizeof(text) || strspn(start, "0123456789") < length)
        return -EINVAL;
    (void)snprintf(text, sizeof(text), "%.*s", (int)length, start);
    return parse_u64(text, 0, INT64_MAX, ret);
}

int byte_range_parse(const char *header, uint64_t size, struct byte_range *ret)
{
    static const char unit[] = "bytes=";
    uint64_t first = 0, last = 0;
    bool has_first, has_last;
    const char *dash;

    if (!header || strncasecmp(header, unit, strlen(unit)) != 0)
        return 0;
    header += strlen(unit);
    dash = strchr(header, '-');
    if (!dash || part(header, (size_t)(dash - header), &has_first, &first) < 0 ||
        part(dash + 1, strlen(dash + 1), &has_last, &last) < 0 || (!has_first && !has_last) ||
        (has_first && has_last && last < first))
        return 0;
    if (!has_first) { /* the last so many */
        if (last == 0 || size == 0)
            return -ERANGE;
        *ret = (struct byte_range){size - MIN(last, size), MIN(last, size)};
        return 1;
    }
    if (first >= size)
        return -ERANGE;
    if (!has_last || last >= size)
        last = size - 1;
    *ret = (struct byte_range){first, last - first + 1};
    return 1;
}
