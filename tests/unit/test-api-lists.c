#include "api-fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/strv.h"
#include "core/events.h"

#define SMALL "\"disk_mib\": 16"

/* ---- pages ---- */

TEST(a_list_comes_in_pages_each_item_once)
{
    struct api_fixture f;
    json_t *page;
    char seen[8][32] = {{0}};
    size_t n = 0;
    api_begin(&f);
    for (int i = 0; i < 4; i++)
        ASSERT_EQ(api_ask(&f, "POST", "/v1/sandboxes", "{" SMALL "}", NULL), 201);
    char *path = strdup("/v1/sandboxes?limit=2");
    while (path) {
        ASSERT_EQ(api_ask(&f, "GET", path, NULL, &page), 200);
        free(path);
        const json_t *list = json_object_get(page, "sandboxes");
        ASSERT_TRUE(json_array_size(list) >= 1 && json_array_size(list) <= 2);
        for (size_t i = 0; i < json_array_size(list); i++) {
            const char *id = api_string(json_array_get(list, i), "id");
            for (size_t k = 0; k < n; k++)
                ASSERT_TRUE(strcmp(seen[k], id) != 0);
            (void)snprintf(seen[n++], sizeof(seen[0]), "%s", id);
        }
        const char *next = api_string(page, "next_cursor");
        path = next[0] ? string_printf("/v1/sandboxes?limit=2&cursor=%s", next) : NULL;
        json_decref(page);
    }
    ASSERT_EQ(n, 5);
    ASSERT_STREQ(seen[0], f.id);
    api_fails(&f, "GET", "/v1/sandboxes?cursor=zz", NULL, 400, "invalid_argument");
    api_fails(&f, "GET", "/v1/sandboxes?limit=1001", NULL, 400, "invalid_argument");
    api_end(&f);
}

TEST(a_page_goes_on_behind_an_item_that_is_gone)
{
    struct api_fixture f;
    json_t *page;
    api_begin(&f);
    ASSERT_EQ(api_ask(&f, "POST", "/v1/sandboxes", "{" SMALL ", \"name\": \"b\"}", NULL), 201);
    ASSERT_EQ(api_ask(&f, "GET", "/v1/sandboxes?limit=1", NULL, &page), 200);
    char *path = string_printf("/v1/sandboxes?cursor=%s", api_string(page, "next_cursor"));
    json_decref(page);
    ASSERT_EQ(api_ask_box(&f, "DELETE", "", NULL, NULL), 204);
    ASSERT_EQ(api_ask(&f, "GET", path, NULL, &page), 200);
    const json_t *list = json_object_get(page, "sandboxes");
    ASSERT_EQ(json_array_size(list), 1);
    ASSERT_STREQ(api_string(json_array_get(list, 0), "name"), "b");
    json_decref(page);
    free(path);
    api_end(&f);
}

TEST(usage_is_the_tenants)
{
    struct api_fixture f;
    struct client c;
    char key[64];
    api_begin_listening(&f, "127.0.0.1:0");
    api_key(&f, "one", "user", "{\"cpus\": 7}", key);
    ASSERT_EQ(api_ask_as(&f, key, NULL, "POST", "/v1/sandboxes", "{" SMALL "}", &c), 201);
    client_close(&c);
    ASSERT_EQ(api_ask_as(&f, key, NULL, "GET", "/v1/usage", NULL, &c), 200);
    json_t *usage = json_loadb(buf_string(&c.in), c.in.size, 0, NULL);
    ASSERT_STREQ(api_string(usage, "tenant"), "one");
    ASSERT_EQ(api_int(usage, "sandboxes"), 1);
    ASSERT_EQ(api_int(usage, "disk_mib"), 16);
    ASSERT_EQ(api_int(json_object_get(usage, "states"), "running"), 1);
    ASSERT_EQ(api_int(json_object_get(usage, "quota"), "cpus"), 7);
    json_decref(usage);
    client_close(&c);
    api_end(&f);
}

/* ---- once ---- */

static unsigned create_once(struct api_fixture *f, const char *key, const char *body,
                            bool *replayed, char id[static 32])
{
    struct client c;
    unsigned status;
    char *request = string_printf("POST /v1/sandboxes HTTP/1.1\r\nHost: h\r\nIdempotency-Key: "
                                  "%s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s",
                                  key, strlen(body), body);
    client_connect(&c, f->core.loop, f->path);
    client_send_text(&c, request);
    client_wait_eof(&c);
    free(request);
    ASSERT_EQ(sscanf(buf_string(&c.in), "HTTP/1.1 %u", &status), 1);
    *replayed = strstr(buf_string(&c.in), "Idempotency-Replayed: true") != NULL;
    const char *at = strstr(buf_string(&c.in), "\"id\":\"");
    id[0] = '\0';
    if (at)
        (void)snprintf(id, 32, "%.16s", at + 6);
    client_close(&c);
    return status;
}

TEST(a_creation_with_a_key_happens_once_even_across_daemons)
{
    struct api_fixture f;
    char first[32], again[32];
    bool replayed;
    api_begin(&f);
    ASSERT_EQ(create_once(&f, "k1", "{" SMALL "}", &replayed, first), 201);
    ASSERT_FALSE(replayed);
    ASSERT_EQ(create_once(&f, "k1", "{" SMALL "}", &replayed, again), 201);
    ASSERT_TRUE(replayed);
    ASSERT_STREQ(first, again);
    ASSERT_EQ(create_once(&f, "k1", "{\"disk_mib\": 17}", &replayed, again), 409);
    ASSERT_EQ(create_once(&f, "k2", "{" SMALL "}", &replayed, again), 201);
    ASSERT_TRUE(strcmp(first, again) != 0);
    /* What failed may be tried again. */
    ASSERT_EQ(create_once(&f, "k3", "{\"image\": \"none\"}", &replayed, again), 404);
    ASSERT_EQ(create_once(&f, "k3", "{" SMALL "}", &replayed, again), 201);
    ASSERT_FALSE(replayed);
    api_close(&f);
    fixture_restart(&f.core);
    api_serve(&f);
    ASSERT_EQ(create_once(&f, "k1", "{" SMALL "}", &replayed, again), 201);
    ASSERT_TRUE(replayed);
    ASSERT_STREQ(first, again);
    api_end(&f);
}

TEST(a_creation_with_a_key_survives_its_client)
{
    struct api_fixture f;
    struct client c;
    char id[32];
    bool replayed = false;
    unsigned status;
    api_begin(&f);
    client_connect(&c, f.core.loop, f.path);
    client_send_text(&c, "POST /v1/sandboxes HTTP/1.1\r\nHost: h\r\nIdempotency-Key: "
                         "lost\r\nContent-Length: 16\r\n\r\n{\"disk_mib\": 16}");
    client_run_for(f.core.loop, 5);
    client_close(&c);
    do /* 409 while it is under way */
        status = create_once(&f, "lost", "{" SMALL "}", &replayed, id);
    while (status == 409);
    ASSERT_EQ(status, 201);
    ASSERT_TRUE(replayed);
    api_end(&f);
}

/* ---- events ---- */

static void listen_for_events(struct api_fixture *f, struct client *c, const char *key,
                              const char *headers)
{
    char *request = string_printf("GET /v1/events HTTP/1.1\r\nHost: h\r\nX-API-Key: %s\r\n%s\r\n",
                                  key, headers);
    client_connect(c, f->core.loop, api_front_url(f->front));
    client_send_text(c, request);
    client_wait_text(c, ": hello");
    ASSERT_TRUE(strstr(buf_string(&c->in), "text/event-stream") != NULL);
    free(request);
}

TEST(events_tell_of_the_tenants_sandboxes_only)
{
    struct api_fixture f;
    struct client one, two, c;
    char key1[64], key2[64];
    api_begin_listening(&f, "127.0.0.1:0");
    api_key(&f, "one", "user", NULL, key1);
    api_key(&f, "two", "viewer", NULL, key2);
    listen_for_events(&f, &one, key1, "");
    listen_for_events(&f, &two, key2, "");
    ASSERT_EQ(
        api_ask_as(&f, key1, NULL, "POST", "/v1/sandboxes", "{" SMALL ", \"name\": \"ev\"}", &c),
        201);
    client_close(&c);
    client_wait_text(&one, "\"state\":\"creating\"");
    client_wait_text(&one, "\"state\":\"running\"");
    ASSERT_EQ(api_ask_as(&f, key1, NULL, "DELETE", "/v1/sandboxes/ev", NULL, &c), 204);
    client_close(&c);
    client_wait_text(&one, "\"state\":\"removed\"");
    client_run_for(f.core.loop, 20);
    ASSERT_TRUE(strstr(buf_string(&two.in), "event:") == NULL);
    /* Who comes back gets what it missed. */
    unsigned long long number;
    ASSERT_EQ(sscanf(strstr(buf_string(&one.in), "id: "), "id: %llu", &number), 1);
    client_close(&one);
    char *headers = string_printf("Last-Event-ID: %llu\r\n", number);
    listen_for_events(&f, &one, key1, headers);
    free(headers);
    client_wait_text(&one, "\"state\":\"removed\"");
    ASSERT_TRUE(strstr(buf_string(&one.in), "creating") == NULL);
    ASSERT_TRUE(strstr(buf_string(&one.in), "reset") == NULL);
    client_close(&one);
    listen_for_events(&f, &one, key1, "Last-Event-ID: 17\r\n");
    client_wait_text(&one, "event: reset");
    client_close(&one);
    client_close(&two);
    api_end(&f);
}

TEST(a_listener_that_does_not_read_is_cut_off)
{
    struct api_fixture f;
    struct client c;
    char key[64];
    api_begin_listening(&f, "127.0.0.1:0");
    api_key(&f, "default", "user", NULL, key);
    listen_for_events(&f, &c, key, "");
    int small = 4096;
    ASSERT_OK(setsockopt(c.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)));
    struct sandbox *sb = f.sb;
    for (int i = 0; i < 60000; i++) /* far beyond the sockets' buffers and ours */
        core_tell(sb, "running");
    client_wait_eof(&c);
    ASSERT_TRUE(c.in.size < 60000 * 100);
    client_close(&c);
    api_end(&f);
}
