#include "harness/test.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "api/front/ops.h"
#include "api/native/native.h"
#include "api/native/openapi.h"
#include "base/file.h"

/* The next `METHOD /path` in back-quotes, or NULL. */
static const char *next_route(const char *p, char *method, char *path)
{
    for (; (p = strchr(p, '`')); p++) {
        if (sscanf(p, "`%7[A-Z] /v1%120[^` ?]`", method, path) == 2)
            return p + 1;
    }
    return NULL;
}

TEST(docs_and_table_list_the_same_routes)
{
    struct error err = {0};
    char *text, method[8], rest[128], path[160];
    bool seen[256] = {0};
    size_t size;

    ASSERT_TRUE(native_routes_count <= ARRAY_SIZE(seen));
    ASSERT_OK(file_read(HEARTH_SOURCE_DIR "/docs/API.md", 1024 * 1024, &text, &size, &err));
    const char *end = strstr(text, "\n## Lists");
    const char *p = text;
    while ((p = next_route(p, method, rest)) && (!end || p < end)) {
        bool found = false;
        (void)snprintf(path, sizeof(path), "/v1%s", rest);
        for (size_t i = 0; i < native_routes_count; i++) {
            if (strcmp(native_routes[i].method, method) == 0 &&
                strcmp(native_routes[i].pattern, path) == 0)
                found = seen[i] = true;
        }
        if (!found)
            test_fail(__FILE__, __LINE__, "%s %s is documented, but no route", method, path);
    }
    for (size_t i = 0; i < native_routes_count; i++) {
        if (!seen[i])
            test_fail(__FILE__, __LINE__, "%s %s is not documented", native_routes[i].method,
                      native_routes[i].pattern);
    }
    free(text);
}

TEST(every_route_is_found_by_its_own_pattern)
{
    for (size_t i = 0; i < native_routes_count; i++) {
        const struct route *r = &native_routes[i];
        struct route_params params;
        bool known;
        char path[256] = "";
        /* Parameters are capitals: lower case makes a value that no other pattern has literally. */
        for (size_t k = 0; r->pattern[k]; k++)
            path[k] = (char)tolower(r->pattern[k]);
        ASSERT_TRUE(
            route_match(native_routes, native_routes_count, r->method, path, &params, &known) == r);
        ASSERT_TRUE(r->handle != NULL);
    }
}

TEST(routes_with_a_fixed_word_win_over_parameters)
{
    struct route_params params;
    bool known;
    const struct route *r = route_match(native_routes, native_routes_count, "POST",
                                        "/v1/images/import", &params, &known);
    ASSERT_TRUE(r != NULL);
    ASSERT_EQ(params.count, 0);
    r = route_match(native_routes, native_routes_count, "GET", "/v1/sandboxes/abc/sessions",
                    &params, &known);
    ASSERT_TRUE(r != NULL);
    ASSERT_STREQ(params.value[0], "abc");
    ASSERT_TRUE(route_match(native_routes, native_routes_count, "PATCH", "/v1/sandboxes/a", &params,
                            &known) == NULL);
    ASSERT_TRUE(known);
}

/* ---- openapi.yaml ---- */

struct listed {
    const struct route *route;
    bool seen;
};

static size_t all_routes(struct listed *list, size_t max)
{
    size_t n = 0;
    ASSERT_TRUE(native_routes_count + ops_routes_count <= max);
    for (size_t i = 0; i < native_routes_count; i++)
        list[n++].route = &native_routes[i];
    for (size_t i = 0; i < ops_routes_count; i++)
        list[n++].route = &ops_routes[i];
    return n;
}

/* "/v1/x/{ID}" to "/v1/x/ID" */
static void plain_path(char *path)
{
    char *to = path;
    for (const char *from = path; *from; from++)
        if (*from != '{' && *from != '}')
            *to++ = *from;
    *to = '\0';
}

/* A pattern with the rest of the path ends with {NAME} there: a name may have slashes. */
static bool same_path(const char *pattern, const char *path)
{
    size_t length = strlen(pattern);
    if (length > 2 && strcmp(pattern + length - 2, "**") == 0)
        return strncmp(pattern, path, length - 2) == 0 && strcmp(path + length - 2, "NAME") == 0;
    return strcmp(pattern, path) == 0;
}

static const char *access_word(const struct route *route)
{
    return route->flags & ROUTE_OPEN      ? "open"
           : route->flags & ROUTE_HOST    ? "host"
           : route->flags & ROUTE_ADMIN   ? "admin"
           : route->flags & ROUTE_HOME    ? "home"
           : route->flags & ROUTE_CONTENT ? "content"
                                          : "";
}

TEST(openapi_and_tables_list_the_same_routes_and_rights)
{
    struct listed list[256] = {0}, *last = NULL;
    size_t size, count = all_routes(list, ARRAY_SIZE(list)), operations = 0;
    char path[160] = "", method[16], word[32] = "", line[4096];
    const char *p = strstr(openapi_text(&size), "\npaths:\n"), *end = strstr(p, "\ncomponents:\n");
    bool described = true;
    ASSERT_TRUE(p && end);
    for (p += 8; p <= end; p += strcspn(p, "\n") + 1) {
        (void)snprintf(line, sizeof(line), "%.*s", (int)strcspn(p, "\n"), p);
        bool is_path = strncmp(line, "  /", 3) == 0;
        bool is_method = line[0] && strspn(line, " ") == 4 &&
                         sscanf(line, " %15[a-z]:", method) == 1 &&
                         strcmp(method, "parameters") != 0;
        if ((is_path || is_method || p == end) && last && !described)
            test_fail(__FILE__, __LINE__, "%s %s: x-access is not '%s'", last->route->method, path,
                      access_word(last->route));
        if (is_path) {
            ASSERT_EQ(sscanf(line, " %159[^:]:", path), 1);
            plain_path(path);
            last = NULL;
        } else if (is_method) {
            last = NULL;
            operations++;
            for (size_t i = 0; i < count; i++)
                if (strcasecmp(list[i].route->method, method) == 0 &&
                    same_path(list[i].route->pattern, path))
                    last = &list[i];
            if (!last)
                test_fail(__FILE__, __LINE__, "%s %s is in openapi.yaml, but no route", method,
                          path);
            last->seen = true;
            described = access_word(last->route)[0] == '\0';
        } else if (last && sscanf(line, " x-access: %31s", word) == 1) {
            described = strcmp(word, access_word(last->route)) == 0;
        }
    }
    for (size_t i = 0; i < count; i++)
        if (!list[i].seen)
            test_fail(__FILE__, __LINE__, "%s %s is not in openapi.yaml", list[i].route->method,
                      list[i].route->pattern);
    ASSERT_EQ(operations, count);
    printf("openapi: %zu operations\n", operations);
}
