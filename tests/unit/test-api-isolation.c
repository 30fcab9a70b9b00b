#include "api-fixture.h"

#include <stdio.h>
#include <stdlib.h>

#include "api/e2b/e2b.h"
#include "api/front/ops.h"
#include "api/native/native.h"
#include "api/swerex/rex.h"
#include "base/strv.h"
#include "core/keys.h"

/*
 * Every route of every API on the port, with no key, a wrong one, one of another tenant, a viewer's
 * and an expired signature. Routes come from the tables: one that is added is asked too, and must
 * say here which body it takes.
 */
#define WRONG_KEY "e2b_0123456789abcdef0123456789abcdef01234567"

/* A body that is good enough to come to the question whose thing it is. */
static const struct {
    const char *route, *body;
} bodies[] = {
    {"POST /v1/shutdown", ""},
    {"POST /v1/sandboxes", "{\"image\": \"none\"}"},
    {"POST /v1/sandboxes/ID/hibernate", ""},
    {"POST /v1/sandboxes/ID/pause", ""},
    {"POST /v1/sandboxes/ID/resume", ""},
    {"POST /v1/sandboxes/ID/fork", "{\"count\": 1}"},
    {"POST /v1/sandboxes/ID/checkpoints", "{}"},
    {"POST /v1/sandboxes/ID/rollback", "{\"checkpoint\": \"x\"}"},
    {"POST /v1/snapshots/ID/verify", ""},
    {"POST /v1/snapshots/ID/repair", ""},
    {"POST /v1/snapshots/ID/fork", "{}"},
    {"POST /v1/sandboxes/ID/exec", "{\"argv\": [\"true\"]}"},
    {"POST /v1/sandboxes/ID/processes/PID/attach", "{}"},
    {"POST /v1/sandboxes/ID/processes/PID/signal", "{\"signal\": \"TERM\"}"},
    {"POST /v1/sandboxes/ID/sessions", "{\"name\": \"s\"}"},
    {"POST /v1/sandboxes/ID/sessions/NAME/run", "{\"text\": \"true\"}"},
    {"POST /v1/sandboxes/ID/sessions/NAME/attach", "{}"},
    {"PUT /v1/sandboxes/ID/files", "content"},
    {"POST /v1/sandboxes/ID/files/mkdir", "{\"path\": \"/tmp/d\"}"},
    {"POST /v1/sandboxes/ID/files/move", "{\"from\": \"/tmp/a\", \"to\": \"/tmp/b\"}"},
    {"POST /v1/sandboxes/ID/files/symlink", "{\"target\": \"a\", \"path\": \"/tmp/b\"}"},
    {"POST /v1/sandboxes/ID/files/attr", "{\"path\": \"/tmp/a\", \"mode\": \"0600\"}"},
    {"POST /v1/sandboxes/ID/dial", "{\"port\": 80}"},
    {"POST /v1/images/import", "{\"name\": \"x\", \"path\": \"/nowhere\"}"},
    {"POST /v1/images/pull", "{\"name\": \"NOT A REFERENCE\"}"},
    {"POST /v1/images/export", "{\"name\": \"x\", \"path\": \"/nowhere/x\"}"},
    {"POST /v1/images/build", "no tar"},
    {"POST /v1/images/prune", "{}"},
    {"POST /v1/registries/login",
     "{\"registry\": \"/\", \"username\": \"x\", \"password\": \"x\"}"},
    {"POST /v1/registries/logout", "{\"registry\": \"x\"}"},
    {"POST /v1/code_run", "{\"language\": \"bash\", \"code\": \"true\"}"},
    {"POST /v1/keys", "{\"tenant\": \"one\"}"},
    {"POST /rex/ID/create_session", "{\"session\": \"s\"}"},
    {"POST /rex/ID/run_in_session", "{\"session\": \"s\", \"command\": \"true\"}"},
    {"POST /rex/ID/close_session", "{\"session\": \"s\"}"},
    {"POST /rex/ID/execute", "{\"command\": \"true\", \"shell\": true}"},
    {"POST /rex/ID/read_file", "{\"path\": \"/etc/hostname\"}"},
    {"POST /rex/ID/write_file", "{\"path\": \"/tmp/x\", \"content\": \"x\"}"},
    {"POST /rex/ID/upload", "x"},
    {"POST /rex/ID/close", "{}"},
    {"POST /v2/sandboxes", "{\"templateID\": \"none\"}"},
    {"POST /sandboxes", "{\"templateID\": \"none\"}"},
    {"POST /v2/sandboxes/ID/connect", "{\"timeout\": 5}"},
    {"POST /sandboxes/ID/connect", "{\"timeout\": 5}"},
    {"POST /sandboxes/ID/resume", "{\"timeout\": 5}"},
    {"POST /sandboxes/ID/pause", "{}"},
    {"POST /sandboxes/ID/timeout", "{\"timeout\": 5}"},
    {"POST /sandboxes/ID/refreshes", "{\"duration\": 5}"},
    {"PUT /sandboxes/ID/network", "{}"},
    {"POST /sandboxes/ID/fork", "{\"count\": 1}"},
    {"POST /sandboxes/ID/snapshots", "{}"},
    {"POST /v3/templates", "{\"name\": \"t\"}"},
    {"POST /v2/templates/ID/builds/BUILD", "{\"fromImage\": \"none\"}"},
    {"PUT /templates/ID/files/HASH", "x"},
    {"POST /templates/tags", "{\"target\": \"t\", \"tags\": [\"v\"]}"},
    {"PATCH /templates/ID", "{\"public\": false}"},
    {"PATCH /v2/templates/ID", "{\"public\": false}"},
    {"PUT /v1/pools/ID", "{\"size\": 1}"},
    {"POST /v1/templates", "{\"name\": \"t\"}"},
};

static const char *body_of(const struct route *route)
{
    char text[128];
    (void)snprintf(text, sizeof(text), "%s %s", route->method, route->pattern);
    for (size_t i = 0; i < ARRAY_SIZE(bodies); i++) {
        if (strcmp(bodies[i].route, text) == 0)
            return bodies[i].body[0] ? bodies[i].body : NULL;
    }
    if (strcmp(route->method, "GET") != 0 && strcmp(route->method, "DELETE") != 0)
        test_fail(__FILE__, __LINE__, "%s: give it a body in this test", text);
    return NULL;
}

static bool has_parameter(const struct route *route)
{
    for (const char *p = route->pattern; *p; p++) {
        if (p[0] == '/' && p[1] >= 'A' && p[1] <= 'Z')
            return true;
    }
    return false;
}

/* The pattern with its parameters filled in: the first is `id`. */
static char *path_of(const struct route *route, const char *id, const char *query)
{
    struct buf path;
    const char *p = route->pattern;
    bool first = true;
    buf_init(&path, 1024);
    while (*p) {
        if (p[0] == '/' && p[1] >= 'A' && p[1] <= 'Z') {
            ASSERT_OK(buf_printf(&path, "/%s", first ? id : "default"));
            first = false;
            p += 1 + strcspn(p + 1, "/");
        } else {
            ASSERT_OK(buf_append(&path, p++, 1));
        }
    }
    ASSERT_OK(buf_printf(&path, "?path=/etc/hostname%s", query));
    char *text = strdup(buf_string(&path));
    buf_done(&path);
    return text;
}

struct matrix {
    struct api_fixture f;
    char own[64], other[64], other_admin[64], viewer[64];
    char id[32], never[32]; /* of tenant one's sandbox; of none, as long */
    unsigned asked;
    struct api_e2b *e2b;
    struct api_front *own_front; /* of the fixture, on its socket */
    struct api_swerex *rex;
    struct http_api apis[E2B_APIS + 2];
    unsigned without;       /* status of a request without a key */
    bool data_plane;        /* requests name the sandbox in headers */
    const char *credential; /* a header line of these; NULL: none */
};

static unsigned ask(struct matrix *m, const struct route *route, const char *key, const char *id,
                    const char *query, struct client *c)
{
    const char *upgrade = route->flags & ROUTE_UPGRADE_ONLY
                              ? "Connection: Upgrade\r\nUpgrade: hearth-stream\r\n"
                              : NULL;
    char *path = path_of(route, id, query);
    _cleanup_free_ char *whose =
        m->data_plane ? string_printf("E2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: %s\r\n%s", id,
                                      route->method[0] == '*' ? "8080" : "49983",
                                      m->credential ? m->credential : "")
                      : NULL;
    const char *method = route->method[0] == '*' ? "GET" : route->method;
    unsigned status = api_ask_as(&m->f, key, whose ? whose : upgrade, method, path,
                                 m->data_plane ? "{}" : body_of(route), c);
    free(path);
    m->asked++;
    return status;
}

static void expect(struct matrix *m, const struct route *route, const char *who, const char *key,
                   const char *query, unsigned wanted)
{
    struct client c;
    unsigned status = ask(m, route, key, m->id, query, &c);
    if (status != wanted)
        test_fail(__FILE__, __LINE__, "%s %s with %s: %u, expected %u: %s", route->method,
                  route->pattern, who, status, wanted, buf_string(&c.in));
    if (strstr(buf_string(&c.in), m->id) || strstr(buf_string(&c.in), "secret-name"))
        test_fail(__FILE__, __LINE__, "%s %s with %s tells: %s", route->method, route->pattern, who,
                  buf_string(&c.in));
    client_close(&c);
}

/* The answer for another tenant's thing is, but for the id itself, that for a thing that never was.
 */
static void expect_same_as_never(struct matrix *m, const struct route *route, const char *key)
{
    struct client real, never;
    unsigned a = ask(m, route, key, m->id, "", &real);
    unsigned b = ask(m, route, key, m->never, "", &never);
    if (a != b || a < 400)
        test_fail(__FILE__, __LINE__, "%s %s: %u for another's, %u for none: %s", route->method,
                  route->pattern, a, b, buf_string(&real.in));
    char *at;
    while ((at = strstr((char *)buf_data(&real.in), m->id)))
        memcpy(at, m->never, strlen(m->never));
    ASSERT_STREQ(buf_string(&real.in), buf_string(&never.in));
    client_close(&real);
    client_close(&never);
}

static void check_route(struct matrix *m, const struct route *route)
{
    static const char expired[] = "&signature=v1_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
                                  "&signature_expiration=1000000000";
    unsigned flags = route->flags;
    bool reads = strcmp(route->method, "GET") == 0;

    if (flags & ROUTE_OPEN)
        return;
    expect(m, route, "no key", NULL, "", m->without);
    expect(m, route, "a wrong key", WRONG_KEY, "", 401);
    expect(m, route, "an expired signature", NULL, expired, m->without);
    if (!reads || (flags & (ROUTE_CONTENT | ROUTE_ADMIN | ROUTE_HOME | ROUTE_HOST)))
        expect(m, route, "a viewer's key", m->viewer, "", 403);
    if (flags & (ROUTE_HOST | ROUTE_HOME)) {
        expect(m, route, "another tenant's key", m->other, "", 403);
        expect(m, route, "another tenant's admin key", m->other_admin, "", 403);
    } else if (has_parameter(route)) {
        expect_same_as_never(m, route, m->other_admin);
        expect_same_as_never(m, route, m->other);
    } else {
        struct client c;
        unsigned status = ask(m, route, m->other_admin, m->id, "", &c);
        if (strstr(buf_string(&c.in), m->id) || strstr(buf_string(&c.in), "secret-name"))
            test_fail(__FILE__, __LINE__, "%s %s: %u, tells of another's: %s", route->method,
                      route->pattern, status, buf_string(&c.in));
        client_close(&c);
    }
}

/* ---- the data plane of E2B: a sandbox's own token instead of a key ---- */

static void check_data_plane(struct matrix *m, const struct route *route)
{
    char wrong[SANDBOX_TOKEN_SIZE], other[SANDBOX_TOKEN_SIZE], late[URL_SIGNATURE_SIZE];
    char token[SANDBOX_TOKEN_SIZE];
    _cleanup_free_ char *query = NULL;
    m->data_plane = true;
    /* Without any, with the other tenant's keys, with a wrong token, with another sandbox's. */
    expect_same_as_never(m, route, NULL);
    expect_same_as_never(m, route, m->other_admin);
    expect_same_as_never(m, route, m->other);
    memset(wrong, '0', sizeof(wrong) - 1);
    wrong[sizeof(wrong) - 1] = '\0';
    core_sandbox_token(m->f.core.core, m->f.id, "envd", other);
    _cleanup_free_ char *with_wrong = string_printf("X-Access-Token: %s\r\n", wrong);
    _cleanup_free_ char *with_other = string_printf("X-Access-Token: %s\r\n", other);
    m->credential = with_wrong;
    expect_same_as_never(m, route, NULL);
    m->credential = with_other;
    expect_same_as_never(m, route, NULL);
    m->credential = NULL;
    /* A signature that was good once. */
    core_sandbox_token(m->f.core.core, m->id, "envd", token);
    url_signature("/etc/hostname", strcmp(route->method, "GET") == 0 ? "read" : "write", "", token,
                  "1000000000", late);
    query = string_printf("&signature=%s&signature_expiration=1000000000", late);
    struct client c;
    unsigned status = ask(m, route, NULL, m->id, query, &c);
    if (status < 400)
        test_fail(__FILE__, __LINE__, "%s %s with an expired signature: %u", route->method,
                  route->pattern, status);
    client_close(&c);
    m->data_plane = false;
}

static void serve_all(struct matrix *m)
{
    struct error err = {0};
    char path[200];
    (void)snprintf(path, sizeof(path), "%s.all", m->f.path);
    ASSERT_OK(e2b_new(m->f.core.core, &m->e2b, &err));
    e2b_apis(m->e2b, m->apis);
    ASSERT_OK(swerex_new(m->f.core.core, &m->rex, &err));
    m->apis[E2B_APIS] = api_native_http(m->f.api);
    m->apis[E2B_APIS + 1] = swerex_http(m->rex);
    const struct api_front_options options = {
        .core = m->f.core.core,
        .loop = m->f.core.loop,
        .socket_path = path,
        .listen = "127.0.0.1:0",
        .apis = m->apis,
        .n_apis = ARRAY_SIZE(m->apis),
    };
    m->own_front = m->f.front;
    ASSERT_OK(api_front_new(&options, &m->f.front, &err));
}

static void matrix_begin(struct matrix *m)
{
    struct client c;
    json_t *json;
    *m = (struct matrix){.without = 401};
    api_begin(&m->f);
    serve_all(m);
    api_key(&m->f, "one", "user", NULL, m->own);
    api_key(&m->f, "one", "viewer", NULL, m->viewer);
    api_key(&m->f, "two", "user", NULL, m->other);
    api_key(&m->f, "two", "admin", NULL, m->other_admin);
    ASSERT_EQ(api_ask_as(&m->f, m->own, NULL, "POST", "/v1/sandboxes",
                         "{\"name\": \"secret-name\", \"disk_mib\": 16}", &c),
              201);
    json = json_loadb(buf_string(&c.in), c.in.size, 0, NULL);
    (void)snprintf(m->id, sizeof(m->id), "%s", api_string(json, "id"));
    json_decref(json);
    client_close(&c);
    (void)snprintf(m->never, sizeof(m->never), "%s", m->id);
    m->never[1] = m->never[1] == 'x' ? 'y' : 'x';
}

static void matrix_end(struct matrix *m)
{
    m->f.front = api_front_free(m->f.front);
    m->f.front = m->own_front;
    m->e2b = e2b_free(m->e2b);
    m->rex = swerex_free(m->rex);
    api_end(&m->f);
}

TEST(no_route_lets_the_wrong_one_in)
{
    struct matrix m;
    size_t routes = ops_routes_count;
    matrix_begin(&m);
    for (size_t i = 0; i < ops_routes_count; i++)
        check_route(&m, &ops_routes[i]);
    for (size_t a = 0; a < ARRAY_SIZE(m.apis); a++) {
        /* SWE-ReX answers as its own server does. */
        m.without = strcmp(m.apis[a].name, "swerex") == 0 ? 403 : 401;
        for (size_t i = 0; i < m.apis[a].n_routes; i++) {
            const struct route *route = &m.apis[a].routes[i];
            if (!m.apis[a].claims)
                check_route(&m, route);
            else if (strcmp(route->pattern, "/health") !=
                     0) /* which is for everybody, by protocol */
                check_data_plane(&m, route);
        }
        routes += m.apis[a].n_routes;
    }
    printf("isolation: %zu routes of %zu APIs, %u requests\n", routes, ARRAY_SIZE(m.apis) + 1,
           m.asked);
    ASSERT_TRUE(m.asked >= 5 * (routes - 5));
    /* It is all still there for who owns it. */
    struct client c;
    ASSERT_EQ(api_ask_as(&m.f, m.own, NULL, "GET", "/v1/sandboxes/secret-name", NULL, &c), 200);
    client_close(&c);
    matrix_end(&m);
}
