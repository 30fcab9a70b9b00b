#include "cli/client.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/fd.h"
#include "cli/daemon-start.h"

#define PATH_TEXT_MAX ((size_t)64 * 1024)

static int append_encoded(struct buf *b, const char *s)
{
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        int r;

        if (isalnum(c) || strchr("-._~", c))
            r = buf_append(b, s, 1);
        else
            r = buf_printf(b, "%%%02X", c);
        if (r < 0)
            return r;
    }
    return 0;
}

char *client_path(const char *pattern, ...)
{
    _cleanup_buf_ struct buf b = {0};
    va_list args;
    int r = 0;

    buf_init(&b, PATH_TEXT_MAX);
    va_start(args, pattern);
    while (*pattern && r >= 0) {
        if (pattern[0] == '{' && pattern[1] == '}') {
            r = append_encoded(&b, va_arg(args, const char *));
            pattern += 2;
        } else {
            r = buf_append(&b, pattern++, 1);
        }
    }
    va_end(args);
    return r < 0 ? NULL : strdup(buf_string(&b));
}

const char *client_string(const json_t *json, const char *key)
{
    const char *s = json_string_value(json_object_get(json, key));

    return s ? s : "";
}

int client_error(const json_t *json, struct error *err)
{
    const char *code = client_string(json, "code"), *message = client_string(json, "message");
    enum error_code known = error_code_from_name(code);
    int errnum = error_code_errno(known);

    return error_set_errno(
        err, known == ERR_NONE ? ERR_INTERNAL : known, errnum > 0 ? errnum : EIO, "%s",
        message[0] ? message : "the daemon reports an error and does not say why");
}

/* Reads an answer of 400 or more and turns it into the error. */
static int read_error(struct cli *cli, struct error *err)
{
    _cleanup_buf_ struct buf body = {0};
    json_auto_t *json = NULL;
    int status = cli->http.head.status, r;

    buf_init(&body, HTTP_LINE_MAX);
    r = http_read_all(&cli->http, &body, err);
    if (r < 0)
        return r;
    json = json_loadb(buf_string(&body), body.size, 0, NULL);
    if (json && json_is_string(json_object_get(json, "message")))
        return client_error(json, err);
    return error_set(err, EIO, "the daemon answers %d %s", status, cli->http.head.reason);
}

static int connect_once(struct cli *cli, struct error *err)
{
    int fd;

    if (http_is_reusable(&cli->http))
        return 0;
    http_close(&cli->http);
    fd = daemon_connect(cli, err);
    if (fd < 0)
        return fd;
    http_set_fd(&cli->http, fd);
    return 0;
}

static int request_with_retry(struct cli *cli, struct http_request *request, struct error *err)
{
    bool kept;
    int r;

    r = connect_once(cli, err);
    if (r < 0)
        return r;
    kept = !cli->http.fresh;
    r = http_request(&cli->http, request, err);
    if (r != -ECONNRESET || !kept || request->upload || request->upgrade)
        return r;
    /* The daemon may close a kept connection at any time: nothing was done yet, ask again. */
    error_clear(err);
    r = connect_once(cli, err);
    return r < 0 ? r : http_request(&cli->http, request, err);
}

int client_open(struct cli *cli, struct http_request *request, struct error *err)
{
    bool own_progress = !cli->wait.progress;
    int r;

    if (request->silence_usec == 0)
        request->silence_usec = CLIENT_SILENCE_USEC;
    if (own_progress)
        cli_progress_begin(cli, NULL);
    r = request_with_retry(cli, request, err);
    if (own_progress)
        cli_progress_end(cli);
    if (r < 0)
        return r;
    return cli->http.head.status >= 400 ? read_error(cli, err) : 0;
}

/* *ret_text holds the bytes and is the caller's to free, after the request. NULL: no body. */
static int set_body(struct http_request *request, json_t *body, char **ret_text, struct error *err)
{
    if (!body)
        return 0;
    *ret_text = json_dumps(body, JSON_COMPACT);
    if (!*ret_text)
        return error_set(err, EINVAL, "the request is not valid UTF-8");
    request->body = *ret_text;
    request->body_size = strlen(*ret_text);
    return 0;
}

int client_call(struct cli *cli, const char *method, const char *path, json_t *body, json_t **ret,
                struct error *err)
{
    return client_call_long(cli, method, path, body, CLIENT_SILENCE_USEC, ret, err);
}

int client_call_long(struct cli *cli, const char *method, const char *path, json_t *body,
                     uint64_t silence_usec, json_t **ret, struct error *err)
{
    _cleanup_free_ char *text = NULL;
    _cleanup_buf_ struct buf answer = {0};
    struct http_request request = {.method = method, .target = path, .silence_usec = silence_usec};
    json_error_t why;
    json_t *json;
    int r;

    if (!path)
        return error_set(err, ENOMEM, "out of memory");
    r = set_body(&request, body, &text, err);
    if (r < 0)
        return r;
    r = client_open(cli, &request, err);
    if (r < 0)
        return r;
    buf_init(&answer, CLIENT_BODY_MAX);
    r = http_read_all(&cli->http, &answer, err);
    if (r < 0 || !ret)
        return r;
    *ret = NULL;
    if (answer.size == 0)
        return 0;
    json = json_loadb(buf_string(&answer), answer.size, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (!json)
        return error_set(err, EPROTO, "the daemon's answer is not JSON: %s", why.text);
    *ret = json;
    return 0;
}

/* One line of a progress report. 1 when it was the last, with *ret set. */
static int take_line(struct cli *cli, const char *line, const char *key, json_t **ret,
                     struct error *err)
{
    json_auto_t *json = json_loads(line, 0, NULL);
    json_t *member;

    if (!json)
        return line[0] ? error_set(err, EPROTO, "the daemon's answer is not JSON") : 0;
    member = json_object_get(json, "progress");
    if (member) {
        json_t *percent = json_object_get(member, "percent");

        progress_update(&cli->progress, client_string(member, "step"),
                        json_is_integer(percent) ? (int)json_integer_value(percent) : -1);
        return 0;
    }
    member = json_object_get(json, "output");
    if (member) {
        const char *text = json_string_value(member);

        progress_end(&cli->progress);
        if (text && text[0])
            (void)fprintf(stderr, "%s%s", text, text[strlen(text) - 1] == '\n' ? "" : "\n");
        return 0;
    }
    member = json_object_get(json, "error");
    if (member)
        return client_error(member, err);
    member = json_object_get(json, key);
    if (!member)
        return 0; /* something newer than this program */
    *ret = json_incref(member);
    return 1;
}

int client_work(struct cli *cli, const char *path, json_t *body, const char *key, json_t **ret,
                struct error *err)
{
    _cleanup_free_ char *text = NULL, *line = NULL;
    _cleanup_buf_ struct buf rest = {0};
    struct http_request request = {.method = "POST",
                                   .target = path,
                                   .accept = "application/x-ndjson",
                                   .silence_usec = CLIENT_WORK_SILENCE_USEC};
    int r;

    r = set_body(&request, body, &text, err);
    if (r < 0)
        return r;
    r = client_open(cli, &request, err);
    if (r < 0)
        return r;
    cli->accepted = true;
    buf_init(&rest, HTTP_LINE_MAX);
    for (;;) {
        r = http_read_line(&cli->http, &rest, &line, err);
        if (r == 0)
            return error_set_errno(err, ERR_INTERNAL, EPROTO,
                                   "the daemon's answer ends without a result");
        if (r > 0)
            r = take_line(cli, line, key, ret, err);
        if (r < 0)
            return r;
        if (r > 0)
            break;
    }
    /* The end of the body, so that the connection can be used again. */
    r = http_read_line(&cli->http, &rest, &line, NULL);
    if (r != 0)
        http_close(&cli->http);
    return 0;
}

int client_upgrade(struct cli *cli, const char *path, json_t *body, int *ret_fd,
                   struct buf *ret_rest, struct error *err)
{
    _cleanup_free_ char *text = NULL;
    struct http_request request = {.method = "POST",
                                   .target = path,
                                   .upgrade = true,
                                   .silence_usec = CLIENT_WORK_SILENCE_USEC};
    int r;

    r = set_body(&request, body, &text, err);
    if (r < 0)
        return r;
    /* A command may wait in a session's queue for long. */
    r = client_open(cli, &request, err);
    if (r < 0)
        return r;
    if (!cli->http.head.upgraded) {
        http_close(&cli->http);
        return error_set_errno(err, ERR_INTERNAL, EPROTO,
                               "the daemon answers %d where a stream was expected",
                               cli->http.head.status);
    }
    *ret_fd = http_take_stream(&cli->http, ret_rest);
    return 0;
}

int client_print_json(const json_t *json)
{
    if (json_dumpf(json, stdout, JSON_INDENT(2) | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9)) < 0 ||
        putchar('\n') == EOF)
        return -EPIPE;
    return 0;
}
