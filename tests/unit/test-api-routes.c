#include "harness/test.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "api/native/native.h"
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
    bool seen[128] = {0};
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
