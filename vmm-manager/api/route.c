#include "api/route.h"

#include <string.h>

/* Length of the segment at p. */
static size_t segment(const char *p)
{
    return strcspn(p, "/");
}

static bool is_rest(const char *pattern)
{
    return strcmp(pattern, "**") == 0;
}

static bool method_fits(const char *of_route, const char *method)
{
    return of_route[0] == '*' || strcmp(of_route, method) == 0 ||
           (strcmp(method, "HEAD") == 0 && strcmp(of_route, "GET") == 0);
}

static bool segment_is_parameter(const char *p)
{
    size_t length = segment(p);

    return length > 0 && strspn(p, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") >= length;
}

static bool pattern_match(const char *pattern, const char *path, struct route_params *params)
{
    params->count = 0;
    for (;;) {
        if (*pattern == '/' && is_rest(pattern + 1))
            return *path == '\0' || *path == '/';
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
        if (method_fits(routes[i].method, method))
            return &routes[i];
    }
    return NULL;
}
