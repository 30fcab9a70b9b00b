#include "api-fixture.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/strv.h"
#include "core/keys.h"

#define ANY_PORT "127.0.0.1:0"

/* Asks as `key`, without looking at the answer. */
static unsigned ask(struct api_fixture *f, const char *key, const char *method, const char *path,
                    const char *body)
{
    struct client c;
    unsigned status = api_ask_as(f, key, NULL, method, path, body, &c);

    client_close(&c);
    return status;
}

static json_t *ask_json(struct api_fixture *f, const char *key, const char *method,
                        const char *path, const char *body, unsigned expected)
{
    struct client c;
    unsigned status = api_ask_as(f, key, NULL, method, path, body, &c);
    json_t *json = json_loadb(buf_string(&c.in), c.in.size, 0, NULL);

    if (status != expected || !json)
        test_fail(__FILE__, __LINE__, "%s %s: %u '%s'", method, path, status, buf_string(&c.in));
    client_close(&c);
    return json;
}

TEST(the_port_takes_requests_with_a_key_only)
{
    struct api_fixture f;
    struct client c;
    char key[64];
    api_begin_listening(&f, ANY_PORT);
    api_key(&f, "default", "user", NULL, key);
    ASSERT_EQ(strlen(key), KEY_SECRET_SIZE - 1);
    ASSERT_TRUE(string_starts_with(key, "e2b_"));
    ASSERT_EQ(strspn(key + 4, "0123456789abcdef"), 40);
    ASSERT_EQ(ask(&f, NULL, "GET", "/v1/sandboxes", NULL), 401);
    ASSERT_EQ(ask(&f, "", "GET", "/v1/sandboxes", NULL), 401);
    ASSERT_EQ(ask(&f, "e2b_0000000000000000000000000000000000000000", "GET", "/v1/version", NULL),
              401);
    ASSERT_EQ(ask(&f, key, "GET", "/v1/sandboxes", NULL), 200);
    char *bearer = string_printf("Authorization: bearer %s\r\n", key);
    ASSERT_EQ(api_ask_as(&f, NULL, bearer, "GET", "/v1/sandboxes", NULL, &c), 200);
    free(bearer);
    client_close(&c);
    key[43] ^= 1;
    ASSERT_EQ(ask(&f, key, "GET", "/v1/sandboxes", NULL), 401);
    api_end(&f);
}

TEST(a_revoked_key_is_no_key_and_the_others_survive_a_restart)
{
    struct api_fixture f;
    char first[64], second[64];
    json_t *keys;
    api_begin_listening(&f, ANY_PORT);
    api_key(&f, "acme", "user", NULL, first);
    api_key(&f, "acme", "viewer", "{\"rate\": 1000}", second);
    ASSERT_EQ(api_ask(&f, "GET", "/v1/keys?tenant=acme", NULL, &keys), 200);
    json_t *list = json_object_get(keys, "keys");
    ASSERT_EQ(json_array_size(list), 2);
    ASSERT_TRUE(!json_object_get(json_array_get(list, 0), "key")); /* never again */
    char *path = string_printf("/v1/keys/%s", api_string(json_array_get(list, 0), "id"));
    json_decref(keys);
    ASSERT_EQ(api_ask(&f, "DELETE", path, NULL, NULL), 204);
    api_fails(&f, "DELETE", path, NULL, 404, "not_found");
    free(path);
    ASSERT_EQ(ask(&f, first, "GET", "/v1/sandboxes", NULL), 401);
    ASSERT_EQ(ask(&f, second, "GET", "/v1/sandboxes", NULL), 200);
    api_close(&f);
    fixture_restart(&f.core);
    api_serve(&f);
    ASSERT_EQ(ask(&f, first, "GET", "/v1/sandboxes", NULL), 401);
    ASSERT_EQ(ask(&f, second, "GET", "/v1/sandboxes", NULL), 200);
    ASSERT_EQ(ask(&f, second, "POST", "/v1/sandboxes", "{}"), 403);
    api_end(&f);
}

TEST(tenants_do_not_see_each_other)
{
    struct api_fixture f;
    char one[64], two[64];
    json_t *mine, *list;
    api_begin_listening(&f, ANY_PORT);
    api_key(&f, "one", "user", NULL, one);
    api_key(&f, "two", "user", NULL, two);
    mine = ask_json(&f, one, "POST", "/v1/sandboxes", "{\"name\": \"pot\", \"disk_mib\": 16}", 201);
    ASSERT_STREQ(api_string(mine, "tenant"), "one");
    char *path = string_printf("/v1/sandboxes/%s", api_string(mine, "id"));
    ASSERT_EQ(ask(&f, one, "GET", path, NULL), 200);
    ASSERT_EQ(ask(&f, one, "GET", "/v1/sandboxes/pot", NULL), 200);
    ASSERT_EQ(ask(&f, two, "GET", path, NULL), 404);
    ASSERT_EQ(ask(&f, two, "GET", "/v1/sandboxes/pot", NULL), 404);
    ASSERT_EQ(ask(&f, two, "DELETE", path, NULL), 404);
    list = ask_json(&f, two, "GET", "/v1/sandboxes", NULL, 200);
    ASSERT_EQ(json_array_size(json_object_get(list, "sandboxes")), 0);
    json_decref(list);
    /* The same name is free for the other one. */
    list = ask_json(&f, two, "POST", "/v1/sandboxes", "{\"name\": \"pot\", \"disk_mib\": 16}", 201);
    ASSERT_TRUE(strcmp(api_string(list, "id"), api_string(mine, "id")) != 0);
    json_decref(list);
    ASSERT_EQ(ask(&f, one, "POST", "/v1/sandboxes", "{\"name\": \"pot\"}"), 409);
    ASSERT_EQ(ask(&f, one, "POST", "/v1/sandboxes", "{\"tenant\": \"two\"}"), 400);
    /* Whose it is survives a restart. */
    api_close(&f);
    fixture_restart(&f.core);
    api_serve(&f);
    ASSERT_EQ(ask(&f, one, "GET", path, NULL), 200);
    ASSERT_EQ(ask(&f, two, "GET", path, NULL), 404);
    json_decref(mine);
    free(path);
    api_end(&f);
}

TEST(the_host_may_act_for_any_tenant)
{
    struct api_fixture f;
    struct client c;
    char key[64];
    json_t *mine;
    api_begin_listening(&f, ANY_PORT);
    api_key(&f, "one", "user", NULL, key);
    mine = ask_json(&f, key, "POST", "/v1/sandboxes", "{\"name\": \"pot\", \"disk_mib\": 16}", 201);
    json_decref(mine);
    api_fails(&f, "GET", "/v1/sandboxes/pot", NULL, 404, "sandbox_not_found");
    static const struct {
        const char *request;
        unsigned status;
    } cases[] = {
        {"GET /v1/sandboxes/pot HTTP/1.1\r\nHost: h\r\nHearth-Tenant: one\r\n\r\n", 200},
        {"GET /v1/sandboxes/pot HTTP/1.1\r\nHost: h\r\nHearth-Tenant: *\r\n\r\n", 200},
        {"GET /v1/sandboxes/pot HTTP/1.1\r\nHost: h\r\nHearth-Tenant: two\r\n\r\n", 404},
        {"GET /v1/sandboxes HTTP/1.1\r\nHost: h\r\nHearth-Tenant: T/../\r\n\r\n", 400},
        {"POST /v1/sandboxes HTTP/1.1\r\nHost: h\r\nHearth-Tenant: *\r\nContent-Length: "
         "2\r\n\r\n{}",
         400},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        ASSERT_EQ(client_exchange(&c, f.core.loop, f.path, cases[i].request), cases[i].status);
        client_close(&c);
    }
    /* On the port the header means nothing. */
    ASSERT_EQ(
        api_ask_as(&f, key, "Hearth-Tenant: default\r\n", "GET", "/v1/sandboxes/pot", NULL, &c),
        200);
    client_close(&c);
    api_end(&f);
}

TEST(admins_have_the_keys_of_their_tenant_only)
{
    struct api_fixture f;
    char admin[64], user[64];
    json_t *keys, *made;
    api_begin_listening(&f, ANY_PORT);
    api_key(&f, "one", "admin", "{\"sandboxes\": 5}", admin);
    api_key(&f, "two", "user", NULL, user);
    ASSERT_EQ(ask(&f, user, "GET", "/v1/keys", NULL), 403);
    keys = ask_json(&f, admin, "GET", "/v1/keys", NULL, 200);
    ASSERT_EQ(json_array_size(json_object_get(keys, "keys")), 1);
    json_decref(keys);
    ASSERT_EQ(ask(&f, admin, "GET", "/v1/keys?tenant=two", NULL), 403);
    ASSERT_EQ(ask(&f, admin, "POST", "/v1/keys", "{\"tenant\": \"two\"}"), 403);
    ASSERT_EQ(ask(&f, admin, "POST", "/v1/keys", "{\"role\": \"king\"}"), 400);
    /* A key gives no more than it has. */
    made = ask_json(&f, admin, "POST", "/v1/keys", "{\"quota\": {\"sandboxes\": 9, \"cpus\": 2}}",
                    201);
    ASSERT_STREQ(api_string(made, "tenant"), "one");
    ASSERT_EQ(api_int(json_object_get(made, "quota"), "sandboxes"), 5);
    ASSERT_EQ(api_int(json_object_get(made, "quota"), "cpus"), 2);
    json_decref(made);
    ASSERT_EQ(api_ask(&f, "GET", "/v1/keys?tenant=two", NULL, &keys), 200);
    char *path = string_printf("/v1/keys/%s",
                               api_string(json_array_get(json_object_get(keys, "keys"), 0), "id"));
    json_decref(keys);
    ASSERT_EQ(ask(&f, admin, "DELETE", path, NULL), 404);
    ASSERT_EQ(ask(&f, user, "GET", "/v1/sandboxes", NULL), 200);
    free(path);
    api_end(&f);
}

static void fails_with_quota(struct api_fixture *f, const char *key, const char *body)
{
    json_t *json = ask_json(f, key, "POST", "/v1/sandboxes", body, 429);
    ASSERT_STREQ(api_string(json, "code"), "quota_exceeded");
    json_decref(json);
}

TEST(quotas_limit_what_a_tenant_holds)
{
    struct api_fixture f;
    char few[64], small[64], rich[64];
    api_begin_listening(&f, ANY_PORT);
    api_key(&f, "one", "user", "{\"sandboxes\": 2}", few);
    api_key(&f, "one", "user", "{\"cpus\": 3, \"memory_mib\": 600, \"disk_mib\": 100}", small);
    api_key(&f, "one", "user", NULL, rich);
    ASSERT_EQ(ask(&f, few, "POST", "/v1/sandboxes", "{\"disk_mib\": 16, \"name\": \"a\"}"), 201);
    fails_with_quota(&f, small, "{\"disk_mib\": 16, \"cpus\": 3}");
    fails_with_quota(&f, small, "{\"disk_mib\": 16, \"memory_mib\": 512}");
    fails_with_quota(&f, small, "{\"disk_mib\": 85}");
    ASSERT_EQ(ask(&f, few, "POST", "/v1/sandboxes", "{\"disk_mib\": 16}"), 201);
    fails_with_quota(&f, few, "{\"disk_mib\": 16}");
    ASSERT_EQ(ask(&f, rich, "POST", "/v1/sandboxes", "{\"disk_mib\": 16, \"name\": \"b\"}"), 201);
    ASSERT_EQ(ask(&f, rich, "DELETE", "/v1/sandboxes/a", NULL), 204);
    fails_with_quota(&f, few, "{\"disk_mib\": 16}");
    ASSERT_EQ(ask(&f, rich, "DELETE", "/v1/sandboxes/b", NULL), 204);
    ASSERT_EQ(ask(&f, few, "POST", "/v1/sandboxes", "{\"disk_mib\": 16}"), 201);
    api_end(&f);
}

TEST(a_rate_lets_bursts_in_and_says_when_to_come_again)
{
    struct api_fixture f;
    struct client c;
    char key[64];
    unsigned let_in = 0;
    api_begin_listening(&f, ANY_PORT);
    api_key(&f, "one", "user", "{\"rate\": 1}", key);
    for (int i = 0; i < 6; i++)
        let_in += ask(&f, key, "GET", "/v1/sandboxes", NULL) == 200;
    ASSERT_TRUE(let_in >= 2 && let_in < 6);
    client_connect(&c, f.core.loop, api_front_url(f.front));
    char *request =
        string_printf("GET /v1/version HTTP/1.1\r\nHost: h\r\nX-API-Key: %s\r\n\r\n", key);
    client_send_text(&c, request);
    client_wait_text(&c, "\r\n\r\n");
    ASSERT_TRUE(strstr(buf_string(&c.in), "429 Too Many") != NULL);
    ASSERT_TRUE(strstr(buf_string(&c.in), "\r\nRetry-After: 1\r\n") != NULL);
    free(request);
    client_close(&c);
    api_end(&f);
}

TEST(tokens_belong_to_one_sandbox_and_one_purpose)
{
    struct fixture f;
    char one[SANDBOX_TOKEN_SIZE], again[SANDBOX_TOKEN_SIZE], other[SANDBOX_TOKEN_SIZE];
    fixture_begin(&f);
    core_sandbox_token(f.core, "abc", "envd", one);
    core_sandbox_token(f.core, "abc", "envd", again);
    ASSERT_STREQ(one, again);
    core_sandbox_token(f.core, "abd", "envd", other);
    ASSERT_TRUE(strcmp(one, other) != 0);
    core_sandbox_token(f.core, "abc", "traffic", other);
    ASSERT_TRUE(strcmp(one, other) != 0);
    ASSERT_TRUE(core_sandbox_token_ok(f.core, "abc", "envd", one));
    ASSERT_FALSE(core_sandbox_token_ok(f.core, "abc", "envd", other));
    ASSERT_FALSE(core_sandbox_token_ok(f.core, "abc", "envd", NULL));
    ASSERT_FALSE(core_sandbox_token_ok(f.core, "abc", "envd", ""));
    fixture_restart(&f);
    ASSERT_TRUE(core_sandbox_token_ok(f.core, "abc", "envd", one));
    fixture_end(&f);
}

TEST(signatures_are_those_of_the_sdk)
{
    /* sha256("/a b:read:user:tok:2000000000"), as the SDK makes it. */
    static const char wanted[] = "v1_OdTKztUgJMjYNVBIg3OwCGV/vTGsG9v1qy1RDb2dPJI";
    char have[URL_SIGNATURE_SIZE];
    struct error err = {0};
    url_signature("/a b", "read", "user", "tok", "2000000000", have);
    ASSERT_STREQ(have, wanted);
    ASSERT_OK(
        url_signature_check("/a b", "read", "user", "tok", have, "2000000000", 1999999999, &err));
    ASSERT_ERR(
        url_signature_check("/a b", "read", "user", "tok", have, "2000000000", 2000000001, &err),
        EPERM);
    ASSERT_STREQ(err.text, "signature is already expired");
    ASSERT_ERR(url_signature_check("/a b", "write", "user", "tok", have, "2000000000", 1, &err),
               EPERM);
    ASSERT_STREQ(err.text, "invalid signature");
    ASSERT_ERR(url_signature_check("/a b", "read", "user", "tok", have, "2100000000", 1, &err),
               EPERM);
    ASSERT_ERR(url_signature_check("/a b", "read", "user", "tok", NULL, NULL, 1, &err), EPERM);
    ASSERT_STREQ(err.text, "missing signature query parameter");
    url_signature("/a b", "read", NULL, "tok", NULL, have);
    ASSERT_STREQ(have, "v1_dgCJhR1eFbOEacKLrakWIrQZDgxJ2zP38eGtFIbZ9+8");
}
