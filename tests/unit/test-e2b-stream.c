#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/e2b/e2b.h"
#include "api/front/front.h"
#include "base/strv.h"
#include "core-fixture.h"
#include "core/keys.h"
#include "http-client.h"

/* Calls of Connect that fail before a guest is asked: by their type, by their frames. */
struct door {
    struct fixture core;
    struct api_e2b *e2b;
    struct api_front *front;
    struct http_api apis[E2B_APIS];
    char head[512]; /* whose sandbox, and its token */
};

static void door_open(struct door *d)
{
    static char socket_path[160];
    struct api_front_options options = {.listen = "127.0.0.1:0", .apis = d->apis};
    char token[SANDBOX_TOKEN_SIZE];
    struct error err = {0};
    struct sandbox *sb;

    *d = (struct door){0};
    fixture_begin(&d->core);
    (void)snprintf(socket_path, sizeof(socket_path), "%s/hearthd.sock", test_tmpdir());
    options.core = d->core.core;
    options.loop = d->core.loop;
    options.socket_path = socket_path;
    ASSERT_OK(e2b_new(d->core.core, &d->e2b, &err));
    e2b_apis(d->e2b, d->apis);
    options.n_apis = E2B_APIS;
    ASSERT_OK(api_front_new(&options, &d->front, &err));
    sb = fixture_sandbox(&d->core, NULL, NULL);
    core_sandbox_token(d->core.core, sandbox_id(sb), "envd", token);
    (void)snprintf(d->head, sizeof(d->head),
                   "Host: h\r\nE2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: 49983\r\n"
                   "X-Access-Token: %s\r\nConnect-Protocol-Version: 1\r\n",
                   sandbox_id(sb), token);
}

static void door_close(struct door *d)
{
    d->front = api_front_free(d->front);
    d->e2b = e2b_free(d->e2b);
    fixture_end(&d->core);
}

static void begin(struct door *d, struct client *c, const char *call, const char *type,
                  const char *more)
{
    _cleanup_free_ char *head = string_printf(
        "POST %s HTTP/1.1\r\n%sContent-Type: %s\r\n%s\r\n\r\n", call, d->head, type, more);

    client_connect(c, d->core.loop, api_front_url(d->front));
    client_send_text(c, head);
}

/* What came holds the text, though frames have bytes that end strings. */
static bool holds(const struct client *c, const char *text)
{
    return memmem(buf_data(&c->in), c->in.size, text, strlen(text)) != NULL;
}

static void fails(struct door *d, const char *type, const void *body, size_t size, const char *why)
{
    _cleanup_free_ char *more = string_printf("Content-Length: %zu\r\nConnection: close", size);
    struct client c;

    begin(d, &c, "/process.Process/StreamInput", type, more);
    client_send(&c, body, size);
    client_wait_eof(&c);
    ASSERT_TRUE(holds(&c, "HTTP/1.1 200"));
    ASSERT_TRUE(holds(&c, type));
    if (!holds(&c, why))
        test_fail(__FILE__, __LINE__, "nothing of '%s'", why);
    client_close(&c);
}

TEST(a_stream_that_makes_no_sense_ends_with_the_reason)
{
    struct door d;

    door_open(&d);
    fails(&d, "application/connect+json", "", 0, "the stream has no start");
    fails(&d, "application/connect+json", "\0\0\0\0\2{}", 7, "not a start");
    fails(&d, "application/connect+json", "\0\0\0\0\2", 5, "ends inside a frame");
    fails(&d, "application/connect+json", "\0\0\0\0\2{{", 7, "not JSON");
    fails(&d, "application/connect+json", "\1\0\0\0\2{}", 7, "compression is not supported");
    fails(&d, "application/connect+json", "\0\x7f\0\0\0", 5, "a frame of 2130706432 bytes");
    fails(&d, "application/connect+proto", "\0\0\0\0\2\x1a\x00", 7, "not a start");
    fails(&d, "application/connect+proto", "\0\0\0\0\2\x0a\x05", 7, "cut or not protobuf");
    fails(&d, "application/connect+proto", "\0\0\0\0\2\x0a\x00", 7, "neither a pid nor a tag");
    door_close(&d);
}

TEST(who_goes_on_sending_is_told_and_cut)
{
    static const char chunk[] = "10000\r\n", end[] = "\r\n";
    struct door d;
    struct client c;
    char *data = calloc(1, 0x10000);

    ASSERT_TRUE(data);
    door_open(&d);
    begin(&d, &c, "/process.Process/StreamInput", "application/connect+proto",
          "Transfer-Encoding: chunked");
    /* Frames without anything in them: the first is no start. There is no end. */
    for (size_t i = 0; i < 64 && !c.eof; i++) {
        client_send(&c, chunk, strlen(chunk));
        client_send(&c, data, 0x10000);
        client_send(&c, end, strlen(end));
        client_run_for(d.core.loop, 1);
    }
    client_wait_eof(&c);
    ASSERT_TRUE(holds(&c, "HTTP/1.1 200"));
    ASSERT_TRUE(holds(&c, "application/connect+proto"));
    ASSERT_TRUE(holds(&c, "\"code\":\"invalid_argument\""));
    client_close(&c);
    free(data);
    door_close(&d);
}

static unsigned status_of(struct door *d, const char *call, const char *type, struct client *c)
{
    unsigned status;

    begin(d, c, call, type, "Content-Length: 0\r\nConnection: close");
    client_wait_eof(c);
    ASSERT_EQ(sscanf(buf_string(&c->in), "HTTP/1.1 %u", &status), 1);
    return status;
}

TEST(types_that_do_not_fit_a_call_are_refused)
{
    struct door d;
    struct client c;

    door_open(&d);
    ASSERT_EQ(status_of(&d, "/process.Process/List", "application/connect+proto", &c), 415u);
    client_close(&c);
    ASSERT_EQ(status_of(&d, "/process.Process/Start", "application/proto", &c), 415u);
    ASSERT_TRUE(holds(&c, "application/connect+proto"));
    client_close(&c);
    ASSERT_EQ(status_of(&d, "/process.Process/StreamInput", "application/json", &c), 415u);
    client_close(&c);
    /* Errors are JSON in either codec. */
    ASSERT_EQ(status_of(&d, "/process.Process/SendSignal", "application/proto", &c), 400u);
    ASSERT_TRUE(holds(&c, "application/json"));
    ASSERT_TRUE(holds(&c, "\"code\":\"invalid_argument\""));
    client_close(&c);
    ASSERT_EQ(status_of(&d, "/process.Process/List", "application/proto", &c), 200u);
    ASSERT_TRUE(holds(&c, "application/proto"));
    client_close(&c);
    door_close(&d);
}
