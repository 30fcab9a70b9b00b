#include "api-fixture.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/native/ports.h"
#include "api/sha1.h"
#include "base/fd.h"
#include "base/strv.h"

/* The example of RFC 6455, section 1.3. */
#define KEY "dGhlIHNhbXBsZSBub25jZQ=="
#define ACCEPT "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="

TEST(sha1_is_that_of_the_standard)
{
    static const struct {
        const char *text, *hash;
    } cases[] = {
        {"", "da39a3ee5e6b4b0d3255bfef95601890afd80709"},
        {"abc", "a9993e364706816aba3e25717850c26c9cd0d89d"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "84983e441c3bd26ebaae4aa1f95129e5e54670f1"},
        {"0123456789012345678901234567890123456789012345678901234567890123",
         "cf0800f7644ace3cb4c3fa33388d3ba0ea3c8b6e"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        uint8_t hash[SHA1_SIZE];
        char text[2 * SHA1_SIZE + 1];
        sha1(cases[i].text, strlen(cases[i].text), hash);
        hex_encode(hash, sizeof(hash), text);
        ASSERT_STREQ(text, cases[i].hash);
    }
}

static void terminal_open(struct api_fixture *f, struct client *c, const char *query)
{
    char *request = string_printf(
        "GET /v1/sandboxes/%s/terminal?%s HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, "
        "Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " KEY "\r\n"
        "Sec-WebSocket-Protocol: other, hearth\r\n\r\n",
        f->id, query);
    client_connect(c, f->core.loop, f->path);
    client_send_text(c, request);
    free(request);
    client_wait_text(c, "\r\n\r\n");
    if (!strstr(buf_string(&c->in), "101 Switching") ||
        !strstr(buf_string(&c->in), "Sec-WebSocket-Accept: " ACCEPT "\r\n") ||
        !strstr(buf_string(&c->in), "Sec-WebSocket-Protocol: hearth\r\n"))
        test_fail(__FILE__, __LINE__, "no hand-shake: %s", buf_string(&c->in));
    buf_consume(&c->in, (size_t)(strstr(buf_string(&c->in), "\r\n\r\n") + 4 - buf_string(&c->in)));
}

static void message(struct client *c, unsigned opcode, const char *data)
{
    static const uint8_t mask[4] = {0x11, 0x22, 0x33, 0x44};
    uint8_t frame[256];
    size_t size = strlen(data);
    ASSERT_TRUE(size < 126);
    frame[0] = (uint8_t)(0x80 | opcode);
    frame[1] = (uint8_t)(0x80 | size);
    memcpy(frame + 2, mask, 4);
    for (size_t i = 0; i < size; i++)
        frame[6 + i] = (uint8_t)((uint8_t)data[i] ^ mask[i % 4]);
    client_send(c, frame, 6 + size);
}

/* What came, with the headers of frames left in: the text lies whole in one of them. */
static void wait_output(struct client *c, const char *text)
{
    for (int i = 0; i < 4000; i++) {
        if (memmem(buf_data(&c->in), c->in.size, text, strlen(text)))
            return;
        client_wait_size(c, c->in.size + 1);
    }
    test_fail(__FILE__, __LINE__, "'%s' did not come", text);
}

TEST(a_terminal_lives_on_without_its_client)
{
    struct api_fixture f;
    struct client c, other;
    api_begin(&f);
    terminal_open(&f, &c, "session=term");
    wait_output(&c, "\"type\":\"started\"");
    message(&c, 2, "PS1=; v=4; echo one-$v$((1+1))\r");
    wait_output(&c, "one-42");
    message(&c, 1, "{\"type\": \"resize\", \"rows\": 33, \"cols\": 111}");
    message(&c, 2, "stty size\r");
    wait_output(&c, "33 111");
    /* A second one sees what was, and both see what comes. */
    terminal_open(&f, &other, "session=term");
    wait_output(&other, "one-42");
    message(&other, 2, "echo two-$v$((1+1))\r");
    wait_output(&other, "two-42");
    wait_output(&c, "two-42");
    client_close(&c);
    client_close(&other);
    client_run_for(f.core.loop, 20);
    terminal_open(&f, &c, "session=term");
    wait_output(&c, "two-42");
    message(&c, 2, "echo three-$v; exit 7\r");
    wait_output(&c, "three-4");
    wait_output(&c, "{\"type\":\"exit\",\"exit_code\":7}");
    client_close(&c);
    api_end(&f);
}

TEST(a_terminal_says_no_to_what_is_none)
{
    struct api_fixture f;
    struct client c;
    api_begin(&f);
    api_fails(&f, "GET", "terminal", NULL, 400, "invalid_argument");
    ASSERT_EQ(api_ask_box(&f, "POST", "/sessions", "{\"name\": \"p\"}", NULL), 201);
    char *request = string_printf(
        "GET /v1/sandboxes/%s/terminal?session=p HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " KEY "\r\n\r\n",
        f.id);
    ASSERT_EQ(client_exchange(&c, f.core.loop, f.path, request), 409);
    client_close(&c);
    free(request);
    /* A message that makes no sense ends the connection, not the daemon. */
    terminal_open(&f, &c, "");
    message(&c, 1, "nonsense");
    client_send(&c, "\x88\x80\x00\x00\x00\x00", 6);
    client_wait_eof(&c);
    client_close(&c);
    terminal_open(&f, &c, "");
    client_send(&c, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
    client_wait_eof(&c);
    client_close(&c);
    ASSERT_EQ(api_ask(&f, "GET", "/v1/version", NULL, NULL), 200);
    api_end(&f);
}

TEST(the_sandboxs_end_closes_its_terminals)
{
    struct api_fixture f;
    struct client c;
    api_begin(&f);
    terminal_open(&f, &c, "");
    wait_output(&c, "\"type\":\"started\"");
    ASSERT_EQ(api_ask_box(&f, "DELETE", "", NULL, NULL), 204);
    wait_output(&c, "\"type\":\"error\"");
    client_send(&c, "\x88\x80\x00\x00\x00\x00", 6);
    client_wait_eof(&c);
    client_close(&c);
    api_end(&f);
}

TEST(ports_are_those_that_listen)
{
    struct api_fixture f;
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof(address);
    json_t *answer;
    bool found = false;
    api_begin(&f);
    /* The guests of these tests share this machine's network. */
    _cleanup_close_ int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_OK(bind(fd, (struct sockaddr *)&address, sizeof(address)));
    ASSERT_OK(listen(fd, 1));
    ASSERT_OK(getsockname(fd, (struct sockaddr *)&address, &size));
    ASSERT_EQ(api_ask_box(&f, "GET", "/ports", NULL, &answer), 200);
    const json_t *list = json_object_get(answer, "ports");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *port = json_array_get(list, i);
        if (api_int(port, "port") == ntohs(address.sin_port))
            found = strcmp(api_string(port, "address"), "127.0.0.1") == 0;
    }
    ASSERT_TRUE(found);
    json_decref(answer);
    api_end(&f);
}
