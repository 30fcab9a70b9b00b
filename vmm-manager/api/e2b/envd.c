#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/e2b/handlers.h"
#include "base/base64.h"
#include "base/clock.h"
#include "base/strv.h"
#include "core/keys.h"
#include "model/text.h"

/* What every envd call has in common, and its small answers. */

/* ---- errors ---- */

void e2b_answer_status(struct request *req, unsigned status, const char *message)
{
    request_answer(req, status,
                   json_pack("{s:i, s:o}", "code", (int)status, "message", json_text(message)));
}

void e2b_answer_error(struct request *req, const struct error *err)
{
    e2b_answer_status(req, (unsigned)error_code_http_status(err->code), err->text);
}

/* ---- proto3 JSON ---- */

json_t *pb_get(const json_t *message, const char *camel, const char *snake)
{
    json_t *value = json_object_get(message, camel);

    if (!value)
        value = json_object_get(message, snake);
    return json_is_null(value) ? NULL : value;
}

const char *pb_string(const json_t *message, const char *camel, const char *snake)
{
    const json_t *value = pb_get(message, camel, snake);
    const char *text = json_string_value(value);

    return text && strlen(text) == json_string_length(value) ? text : NULL;
}

int pb_u64(const json_t *message, const char *camel, const char *snake, uint64_t max, uint64_t *ret)
{
    const json_t *value = pb_get(message, camel, snake);

    if (!value)
        return 0;
    if (json_is_integer(value) && json_integer_value(value) >= 0 &&
        (uint64_t)json_integer_value(value) <= max) {
        *ret = (uint64_t)json_integer_value(value);
        return 0;
    }
    if (json_is_string(value))
        return parse_u64(json_string_value(value), 0, max, ret);
    return -EINVAL;
}

/* ---- whose sandbox ---- */

int envd_address(struct request *req, char ret_id[static 65], uint16_t *ret_port)
{
    const char *id = request_header(req, "E2b-Sandbox-Id");
    const char *port = request_header(req, "E2b-Sandbox-Port");
    const char *host = request_header(req, "Host");
    char *dash;
    uint64_t n;

    if (id || port) {
        if (!id || !port || strlen(id) >= 65 || parse_u64(port, 1, UINT16_MAX, &n) < 0)
            return -EINVAL;
        (void)snprintf(ret_id, 65, "%s", id);
        *ret_port = (uint16_t)n;
        return 1;
    }
    if (!host)
        return 0;
    n = strtoull(host, &dash, 10);
    if (dash == host || *dash != '-' || n == 0 || n > UINT16_MAX)
        return 0;
    size_t length = strspn(dash + 1, "abcdefghijklmnopqrstuvwxyz0123456789");
    if (length == 0 || length >= 65 || (dash[1 + length] != '.' && dash[1 + length] != '-'))
        return 0;
    (void)snprintf(ret_id, 65, "%.*s", (int)length, dash + 1);
    *ret_port = (uint16_t)n;
    return 1;
}

void envd_answer_gone(struct request *req, const char *id)
{
    request_answer(req, 502,
                   json_pack("{s:s, s:s, s:i}", "sandboxId", id, "message",
                             "The sandbox was not found", "code", 502));
}

void envd_answer_not_usable(struct request *req, const struct error *err)
{
    char id[65] = "";
    uint16_t port;

    (void)err;
    (void)envd_address(req, id, &port);
    envd_answer_gone(req, id);
}

bool e2b_query(struct request *req, const char *key, const char **ret)
{
    struct error err = {0};

    if (request_query(req, key, ret, &err) >= 0)
        return true;
    e2b_answer_error(req, &err);
    return false;
}

void envd_answer_denied(struct request *req)
{
    /* Connect clients read `code` as a text, the others take the status. */
    if (strcmp(request_method(req), "POST") == 0 && request_header(req, "Connect-Protocol-Version"))
        connect_answer_code(req, CONNECT_UNAUTHENTICATED, "the access token is missing or wrong");
    else
        e2b_answer_status(req, 401, "the access token is missing or wrong");
}

struct sandbox *envd_sandbox(struct request *req, bool signed_url)
{
    struct sandbox *sb;
    uint16_t port;
    char id[65];

    if (envd_address(req, id, &port) != 1) {
        e2b_answer_status(req, 400, "the headers E2b-Sandbox-Id and E2b-Sandbox-Port are needed");
        return NULL;
    }
    /* Without its token nobody learns whether a sandbox exists. */
    if (!signed_url && !core_sandbox_token_ok(e2b_of(req)->core, id, E2B_TOKEN_PURPOSE,
                                              request_header(req, "X-Access-Token"))) {
        envd_answer_denied(req);
        return NULL;
    }
    sb = sandbox_find(e2b_of(req)->core, id, NULL);
    if (!sb || strcmp(sandbox_id(sb), id) != 0) {
        envd_answer_gone(req, id);
        return NULL;
    }
    return sb;
}

struct console *envd_console(struct request *req, struct sandbox **ret_sb)
{
    struct sandbox *sb = envd_sandbox(req, /* signed_url= */ false);
    struct error err = {0};
    struct console *c;

    if (!sb)
        return NULL;
    c = sandbox_console(sb, &err);
    if (!c) {
        envd_answer_gone(req, sandbox_id(sb));
        return NULL;
    }
    *ret_sb = sb;
    return c;
}

struct console *envd_call(struct request *req, bool stream, struct sandbox **ret_sb,
                          json_t **ret_message)
{
    const struct proto_message *proto;
    struct error err = {0};
    struct console *c;
    const void *body;
    size_t size;

    c = envd_console(req, ret_sb);
    if (!c || !connect_codec(req, stream, &proto))
        return NULL;
    body = request_body(req, &size);
    if ((stream ? connect_decode_frame(proto, body, size, ret_message, &err)
                : connect_decode(proto, body, size, ret_message, &err)) < 0) {
        connect_answer_error(req, &err);
        return NULL;
    }
    return c;
}

int envd_user(struct request *req, struct sandbox *sb, char ret[static 129], struct error *err)
{
    const char *header = request_header(req, "Authorization");
    const char *fallback = sandbox_get_spec(sb)->user;
    _cleanup_free_ char *decoded = NULL;
    size_t size;

    if (!header || strncasecmp(header, "Basic ", 6) != 0) {
        (void)snprintf(ret, 129, "%s", fallback ? fallback : E2B_DEFAULT_USER);
        return 0;
    }
    header += strspn(header + 6, " ") + 6;
    if (base64_decode(header, strlen(header), &decoded, &size) < 0 || strlen(decoded) != size)
        return error_set_code(err, ERR_UNAUTHORIZED, "'Authorization': not Basic credentials");
    decoded[strcspn(decoded, ":")] = '\0';
    if (strlen(decoded) > 128 || decoded[0] == '\0')
        return error_set_code(err, ERR_UNAUTHORIZED, "'Authorization': no user name");
    (void)snprintf(ret, 129, "%s", decoded);
    return 0;
}

/* ---- small answers ---- */

void handle_envd_health(struct request *req)
{
    struct sandbox *sb;

    if (envd_console(req, &sb))
        request_answer_empty(req, 204);
}

void handle_envd_envs(struct request *req)
{
    struct sandbox *sb;
    json_t *envs;

    if (!envd_console(req, &sb))
        return;
    envs = json_object();
    char **env = sandbox_get_spec(sb)->env;
    for (size_t i = 0; env && env[i]; i++) {
        size_t name = strcspn(env[i], "=");
        _cleanup_free_ char *key = strndup(env[i], name);

        if (key && env[i][name])
            (void)json_object_set_new(envs, key, json_text(env[i] + name + 1));
    }
    request_answer(req, 200, envs);
}
