#include "api-fixture.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/strv.h"

void api_serve(struct api_fixture *f)
{
    struct api_front_options options = {
        .core = f->core.core,
        .loop = f->core.loop,
        .socket_path = f->path,
        .listen = f->listen ? f->listen : "off",
    };
    struct http_api native;
    struct error err = {0};

    if (api_native_new(f->core.core, f->core.loop, &f->api, &err) < 0)
        test_fail(__FILE__, __LINE__, "api: %s", err.text);
    native = api_native_http(f->api);
    options.apis = &native;
    options.n_apis = 1;
    if (api_front_new(&options, &f->front, &err) < 0)
        test_fail(__FILE__, __LINE__, "api: %s", err.text);
}

void api_close(struct api_fixture *f)
{
    f->front = api_front_free(f->front);
    f->api = api_native_free(f->api);
}

void api_begin(struct api_fixture *f)
{
    api_begin_listening(f, NULL);
}

void api_begin_listening(struct api_fixture *f, const char *listen)
{
    *f = (struct api_fixture){.listen = listen};
    fixture_begin(&f->core);
    (void)snprintf(f->path, sizeof(f->path), "%s/hearthd.sock", test_tmpdir());
    api_serve(f);
    f->sb = fixture_sandbox(&f->core, NULL, NULL);
    (void)snprintf(f->id, sizeof(f->id), "%s", sandbox_id(f->sb));
}

void api_end(struct api_fixture *f)
{
    api_close(f);
    fixture_end(&f->core);
}

unsigned api_ask(struct api_fixture *f, const char *method, const char *path, const char *body,
                 json_t **ret)
{
    struct client c;
    char *request = string_printf("%s %s HTTP/1.1\r\nHost: h\r\nContent-Length: %zu\r\n\r\n%s",
                                  method, path, body ? strlen(body) : 0, body ? body : "");
    unsigned status = client_exchange(&c, f->core.loop, f->path, request);

    free(request);
    if (ret) {
        *ret = json_loadb(buf_string(&c.in), c.in.size, JSON_ALLOW_NUL, NULL);
        if (!*ret && status != 204)
            test_fail(__FILE__, __LINE__, "not JSON: '%s'", buf_string(&c.in));
    }
    client_close(&c);
    return status;
}

unsigned api_ask_as(struct api_fixture *f, const char *key, const char *headers, const char *method,
                    const char *path, const char *body, struct client *c)
{
    char *request =
        string_printf("%s %s HTTP/1.1\r\nHost: h\r\n%s%s%s%sContent-Length: %zu\r\n\r\n%s", method,
                      path, key ? "X-API-Key: " : "", key ? key : "", key ? "\r\n" : "",
                      headers ? headers : "", body ? strlen(body) : 0, body ? body : "");
    unsigned status = client_exchange(c, f->core.loop, api_front_url(f->front), request);

    free(request);
    return status;
}

void api_key(struct api_fixture *f, const char *tenant, const char *role, const char *quota,
             char ret[static 64])
{
    _cleanup_free_ char *body =
        string_printf("{\"tenant\": \"%s\", \"role\": \"%s\", \"quota\": %s}", tenant, role,
                      quota ? quota : "{}");
    json_t *answer;

    if (api_ask(f, "POST", "/v1/keys", body, &answer) != 201)
        test_fail(__FILE__, __LINE__, "no key: %s", api_string(answer, "message"));
    (void)snprintf(ret, 64, "%s", api_string(answer, "key"));
    json_decref(answer);
}

unsigned api_ask_box(struct api_fixture *f, const char *method, const char *path, const char *body,
                     json_t **ret)
{
    _cleanup_free_ char *whole = string_printf("/v1/sandboxes/%s%s", f->id, path);

    return api_ask(f, method, whole, body, ret);
}

void api_fails(struct api_fixture *f, const char *method, const char *path, const char *body,
               unsigned status, const char *code)
{
    _cleanup_free_ char *whole = path[0] == '/' ? strdup(path)
                                 : path[0] == '\0'
                                     ? string_printf("/v1/sandboxes/%s", f->id)
                                     : string_printf("/v1/sandboxes/%s/%s", f->id, path);
    json_t *answer;
    unsigned got = api_ask(f, method, whole, body, &answer);

    if (got != status || strcmp(api_string(answer, "code"), code) != 0)
        test_fail(__FILE__, __LINE__, "%s %s: %u %s '%s', expected %u %s", method, whole, got,
                  api_string(answer, "code"), api_string(answer, "message"), status, code);
    ASSERT_TRUE(api_string(answer, "message")[0] != '\0');
    json_decref(answer);
}

const char *api_string(const json_t *json, const char *key)
{
    const char *value = json_string_value(json_object_get(json, key));

    return value ? value : "";
}

json_int_t api_int(const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);

    if (!json_is_integer(value))
        test_fail(__FILE__, __LINE__, "'%s' is not there", key);
    return json_integer_value(value);
}

void api_upgrade(struct api_fixture *f, struct client *c, const char *path, const char *body)
{
    char *request = string_printf("POST /v1/sandboxes/%s%s HTTP/1.1\r\nHost: h\r\n"
                                  "Connection: Upgrade\r\nUpgrade: hearth-stream\r\n"
                                  "Content-Length: %zu\r\n\r\n%s",
                                  f->id, path, strlen(body), body);

    client_connect(c, f->core.loop, f->path);
    client_send_text(c, request);
    free(request);
    client_wait_text(c, "\r\n\r\n");
    if (strncmp(buf_string(&c->in), "HTTP/1.1 101", 12) != 0)
        test_fail(__FILE__, __LINE__, "no upgrade: %s", buf_string(&c->in));
    buf_consume(&c->in, (size_t)(strstr(buf_string(&c->in), "\r\n\r\n") + 4 - buf_string(&c->in)));
}

void api_frame_send(struct client *c, enum stream_type type, const void *data, size_t size)
{
    uint8_t header[STREAM_HEADER_SIZE];

    stream_encode_header(type, size, header);
    client_send(c, header, sizeof(header));
    if (size > 0)
        client_send(c, data, size);
}

struct frame api_frame(struct client *c)
{
    static char payload[STREAM_PAYLOAD_MAX + 1];
    struct frame frame = {.payload = payload};

    client_wait_size(c, STREAM_HEADER_SIZE);
    const uint8_t *h = buf_data(&c->in);
    ASSERT_TRUE(h != NULL);
    frame.type = h[0];
    frame.size = (size_t)h[4] << 24 | (size_t)h[5] << 16 | (size_t)h[6] << 8 | h[7];
    ASSERT_TRUE(h[1] == 0 && h[2] == 0 && h[3] == 0 && frame.size <= STREAM_PAYLOAD_MAX);
    client_wait_size(c, STREAM_HEADER_SIZE + frame.size);
    memcpy(payload, buf_data(&c->in) + STREAM_HEADER_SIZE, frame.size);
    payload[frame.size] = '\0';
    buf_consume(&c->in, STREAM_HEADER_SIZE + frame.size);
    return frame;
}

json_t *api_finish(struct client *c, struct buf *out, unsigned *ret_type)
{
    for (;;) {
        struct frame frame = api_frame(c);
        if (out && (frame.type == STREAM_STDOUT || frame.type == STREAM_STDERR))
            ASSERT_OK(buf_append(out, frame.payload, frame.size));
        if (frame.type == STREAM_EXIT || frame.type == STREAM_ERROR) {
            *ret_type = frame.type;
            json_t *json = json_loads(frame.payload, 0, NULL);
            ASSERT_TRUE(json != NULL);
            return json;
        }
    }
}
