#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/e2b/e2b.h"
#include "api/front/front.h"
#include "api/native/api.h"
#include "api/swerex/rex.h"
#include "base/buf.h"
#include "base/strv.h"
#include "core-fixture.h"
#include "core/keys.h"
#include "http-client.h"

/*
 * Every route of the E2B and SWE-ReX tables, with no key, a wrong one, another tenant's and a
 * viewer's; envd's also with no token, a wrong one and an expired signature. Routes come from the
 * tables. What is answered for another's sandbox is what is answered for one that never was.
 */
#define WRONG_KEY "e2b_0123456789abcdef0123456789abcdef01234567"
#define WRONG_TOKEN "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define EXPIRED                                                                                    \
    "signature=v1_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA&signature_expiration=1000000000"

struct doors {
    struct fixture core;
    struct api_native *native;
    struct api_e2b *e2b;
    struct api_swerex *rex;
    struct api_front *front;
    struct http_api apis[E2B_APIS + 2];
    char own[KEY_SECRET_SIZE], other[KEY_SECRET_SIZE], viewer[KEY_SECRET_SIZE];
    char id[32], never[32];
    unsigned asked;
};

static void key_make(struct doors *d, const char *tenant, enum role role,
                     char ret[static KEY_SECRET_SIZE])
{
    const struct key_options options = {.tenant = tenant, .role = role};
    const struct key *key;
    struct error err = {0};

    ASSERT_OK(core_key_create(d->core.core, &options, ret, &key, &err));
}

static void doors_open(struct doors *d)
{
    static char socket_path[160];
    struct api_front_options options = {.listen = "127.0.0.1:0", .apis = d->apis};
    struct error err = {0};
    struct sandbox *sb;

    *d = (struct doors){0};
    fixture_begin(&d->core);
    (void)snprintf(socket_path, sizeof(socket_path), "%s/hearthd.sock", test_tmpdir());
    options.core = d->core.core;
    options.loop = d->core.loop;
    options.socket_path = socket_path;
    ASSERT_OK(api_native_new(d->core.core, d->core.loop, &d->native, &err));
    ASSERT_OK(e2b_new(d->core.core, &d->e2b, &err));
    ASSERT_OK(swerex_new(d->core.core, &d->rex, &err));
    e2b_apis(d->e2b, d->apis);
    d->apis[E2B_APIS] = api_native_http(d->native);
    d->apis[E2B_APIS + 1] = swerex_http(d->rex);
    options.n_apis = E2B_APIS + 2;
    ASSERT_OK(api_front_new(&options, &d->front, &err));
    key_make(d, TENANT_DEFAULT, ROLE_USER, d->own);
    key_make(d, TENANT_DEFAULT, ROLE_VIEWER, d->viewer);
    key_make(d, "two", ROLE_ADMIN, d->other);
    sb = fixture_sandbox(&d->core, NULL, NULL);
    (void)snprintf(d->id, sizeof(d->id), "%s", sandbox_id(sb));
    (void)snprintf(d->never, sizeof(d->never), "%s", d->id);
    d->never[1] = d->never[1] == 'x' ? 'y' : 'x';
}

static void doors_close(struct doors *d)
{
    d->front = api_front_free(d->front);
    d->rex = swerex_free(d->rex);
    d->e2b = e2b_free(d->e2b);
    d->native = api_native_free(d->native);
    fixture_end(&d->core);
}

static char *path_of(const char *pattern, const char *id)
{
    struct buf path;

    buf_init(&path, 1024);
    while (*pattern) {
        if (strncmp(pattern, "/ID", 3) == 0 && (pattern[3] == '/' || pattern[3] == '\0')) {
            ASSERT_OK(buf_printf(&path, "/%s", id));
            pattern += 3;
        } else {
            ASSERT_OK(buf_append(&path, pattern++, 1));
        }
    }
    char *text = strdup(buf_string(&path));
    buf_done(&path);
    return text;
}

/* One request; the answer is in c->in. */
static unsigned ask(struct doors *d, const struct route *route, const char *id, const char *headers,
                    const char *query, const char *body, struct client *c)
{
    _cleanup_free_ char *path = path_of(route->pattern, id);
    _cleanup_free_ char *request =
        string_printf("%s %s%s%s HTTP/1.1\r\nHost: h\r\n%sContent-Length: %zu\r\n\r\n%s",
                      route->method, path, query[0] ? "?" : "", query, headers, strlen(body), body);

    d->asked++;
    return client_exchange(c, d->core.loop, api_front_url(d->front), request);
}

/* The answers for the sandbox and for one that never was are the same, and no success. */
static void same_as_never(struct doors *d, const struct route *route, const char *who,
                          const char *headers, const char *query, const char *body)
{
    struct client real, never;
    _cleanup_free_ char *other_headers = strdup(headers);
    char *at = strstr(other_headers, d->id);
    unsigned a, b;

    if (at)
        memcpy(at, d->never, strlen(d->never));
    a = ask(d, route, d->id, headers, query, body, &real);
    b = ask(d, route, d->never, other_headers, query, body, &never);
    if (a != b || a < 400)
        test_fail(__FILE__, __LINE__, "%s %s with %s: %u for a real one, %u for none: %s",
                  route->method, route->pattern, who, a, b, buf_string(&real.in));
    while (real.in.size > 0 && (at = strstr((char *)buf_data(&real.in), d->id)))
        memcpy(at, d->never, strlen(d->never));
    ASSERT_STREQ(buf_string(&real.in), buf_string(&never.in));
    client_close(&real);
    client_close(&never);
}

static const char *body_of(const struct route *route)
{
    if (strcmp(route->method, "GET") == 0 || strcmp(route->method, "DELETE") == 0)
        return "";
    return "{\"templateID\": \"none\", \"timeout\": 5, \"command\": \"true\", \"path\": \"/x\", "
           "\"content\": \"\"}";
}

static void check_keyed(struct doors *d, const struct route *route)
{
    const char *const keys[] = {d->other, WRONG_KEY, NULL};
    bool names = strstr(route->pattern, "/ID") != NULL;
    struct client c;

    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        _cleanup_free_ char *headers =
            keys[i] ? string_printf("X-API-Key: %s\r\n", keys[i]) : strdup("");
        const char *who = i == 0 ? "another tenant's key" : i == 1 ? "a wrong key" : "no key";

        if (names || i > 0) {
            same_as_never(d, route, who, headers, "", body_of(route));
            continue;
        }
        (void)ask(d, route, d->id, headers, "", body_of(route), &c);
        if (strstr(buf_string(&c.in), d->id))
            test_fail(__FILE__, __LINE__, "%s %s tells another tenant: %s", route->method,
                      route->pattern, buf_string(&c.in));
        client_close(&c);
    }
    if (strcmp(route->method, "GET") == 0 && !(route->flags & ROUTE_CONTENT))
        return;
    _cleanup_free_ char *viewer = string_printf("X-API-Key: %s\r\n", d->viewer);
    ASSERT_EQ(ask(d, route, d->id, viewer, "", body_of(route), &c), 403u);
    client_close(&c);
}

static void check_envd(struct doors *d, const struct route *route)
{
    static const char *const tokens[] = {"", "X-Access-Token: " WRONG_TOKEN "\r\n"};

    for (size_t i = 0; i < ARRAY_SIZE(tokens); i++) {
        _cleanup_free_ char *headers =
            string_printf("E2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: 49983\r\n"
                          "X-API-Key: %s\r\n%s",
                          d->id, i == 0 ? d->own : d->other, tokens[i]);

        same_as_never(d, route, i == 0 ? "no token" : "a wrong token", headers, "path=/etc/passwd",
                      "{}");
        same_as_never(d, route, "an expired signature", headers, "path=/etc/passwd&" EXPIRED, "{}");
    }
}

TEST(no_route_of_the_other_apis_lets_the_wrong_one_in)
{
    struct doors d;
    size_t routes = 0;

    doors_open(&d);
    for (size_t i = 0; i < ARRAY_SIZE(d.apis); i++) {
        const struct http_api *api = &d.apis[i];

        if (strcmp(api->name, "native") == 0 || strcmp(api->name, "port") == 0)
            continue; /* one has its own test; ports are open by design, see docs/CLIENTS.md */
        for (size_t j = 0; j < api->n_routes; j++, routes++) {
            if (strcmp(api->name, "envd") == 0)
                check_envd(&d, &api->routes[j]);
            else
                check_keyed(&d, &api->routes[j]);
        }
    }
    printf("isolation: %zu routes, %u requests\n", routes, d.asked);
    ASSERT_TRUE(routes > 40 && d.asked > 5 * routes);
    doors_close(&d);
}
