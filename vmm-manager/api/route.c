#include "api/route.h"

#include <string.h>

/* Length of the segment at p. */
static size_t segment(const char *p)
{
    return strcspn(p, "/");
}

static bool segment_is_parameter(const char *p)
{
    return *p >= 'A' && *p <= 'Z';
}

static bool pattern_match(const char *pattern, const char *path, struct route_params *params)
{
    params->count = 0;
    for (;;) {
        if (*pattern != '/' || *path != '/')
            return *pattern == '\0' && *path == '\0';
        pattern++;
        path++;
        size_t want = segment(pattern), have = segment(path);
        if (segment_is_parameter(pattern)) {
            if (have == 0 || have >= ROUTE_PARAM_SIZE || params->count == ROUTE_PARAMS_MAX)
                return false;
            memcpy(params->value[params->count], path, have);
            params->value[params->count++][have] = '\0';
        } else if (want != have || memcmp(pattern, path, want) != 0) {
            return false;
        }
        pattern += want;
        path += have;
    }
}

const struct route *route_match(const struct route *routes, size_t count, const char *method,
                                const char *path, struct route_params *ret_params,
                                bool *ret_path_known)
{
    *ret_path_known = false;
    for (size_t i = 0; i < count; i++) {
        if (!pattern_match(routes[i].pattern, path, ret_params))
            continue;
        *ret_path_known = true;
        if (strcmp(routes[i].method, method) == 0)
            return &routes[i];
    }
    return NULL;
}
