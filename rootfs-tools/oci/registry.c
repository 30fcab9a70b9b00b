#include "oci/registry.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/strv.h"
#include "erofs/digest.h"
#include "oci/registry-private.h"

#define TOKEN_ANSWER_MAX ((size_t)256 * 1024)

static void json_cleanup(json_t **json)
{
    json_decref(*json);
}

/* ---- endpoints ---- */

static void add_endpoint(struct registry *r, const char *host, bool mirror)
{
    struct endpoint *e = &r->endpoints[r->n_endpoints];
    const char *api = reference_api_host(host);

    if (r->n_endpoints >= ENDPOINTS_MAX)
        return;
    r->n_endpoints++;
    (void)snprintf(e->host, sizeof(e->host), "%s", host);
    e->plain = registries_is_insecure(&r->config, host);
    (void)snprintf(e->base, sizeof(e->base), "%s://%s", e->plain ? "http" : "https", api);
    e->mirror = mirror;
}

int registry_open(const struct reference *ref, const _Atomic bool *cancel, struct registry **ret,
                  struct error *err)
{
    struct registry *r = calloc(1, sizeof(*r));
    size_t n = strlen(ref->host);
    int e;

    if (!r)
        return error_set(err, ENOMEM, "out of memory");
    r->ref = *ref;
    r->cancel = cancel;
    e = registries_load(&r->config, err);
    if (e < 0) {
        free(r);
        return e;
    }
    for (size_t i = 0; r->config.mirrors && r->config.mirrors[i]; i++) {
        const char *text = r->config.mirrors[i];

        if (strncmp(text, ref->host, n) == 0 && text[n] == '=' &&
            r->n_endpoints + 1 < ENDPOINTS_MAX)
            add_endpoint(r, text + n + 1, true);
    }
    add_endpoint(r, ref->host, false);
    *ret = r;
    return 0;
}

static void forget_secret(char *text)
{
    if (text)
        explicit_bzero(text, strlen(text));
    free(text);
}

struct registry *registry_close(struct registry *r)
{
    if (!r)
        return NULL;
    for (size_t i = 0; i < r->n_endpoints; i++) {
        forget_secret(r->endpoints[i].token);
        forget_secret(r->endpoints[i].user_password);
    }
    registries_done(&r->config);
    free(r);
    return NULL;
}

/* ---- authentication ---- */

static int denied(const struct endpoint *e, bool had_login, struct error *err)
{
    return error_set_code(err, ERR_REGISTRY_DENIED,
                          had_login ? "registry '%s' refuses the user name or password; try "
                                      "`hearth login %s`"
                                    : "registry '%s' wants a login; try `hearth login %s`",
                          e->host, e->host);
}

/* REALM?service=…&scope=…, the parts escaped. */
static char *token_url(const struct registry *r, const struct challenge *c)
{
    char scope[REFERENCE_SIZE + 32];
    char *service, *escaped, *url = NULL;

    if (r->ref.repository[0])
        (void)snprintf(scope, sizeof(scope), "repository:%s:pull", r->ref.repository);
    else
        scope[0] = '\0';
    service = curl_easy_escape(NULL, c->service, 0);
    escaped = curl_easy_escape(NULL, scope, 0);
    if (service && escaped)
        url = string_printf("%s%sservice=%s%s%s", c->realm, strchr(c->realm, '?') ? "&" : "?",
                            service, scope[0] ? "&scope=" : "", escaped);
    curl_free(service);
    curl_free(escaped);
    return url;
}

/* An identity token is exchanged for an access token by OAuth 2. */
static char *oauth_form(const struct registry *r, const struct challenge *c,
                        const struct credentials *login)
{
    char *token = curl_easy_escape(NULL, login->identity_token, 0);
    char *service = curl_easy_escape(NULL, c->service, 0);
    char *form = NULL;

    if (token && service)
        form = string_printf("grant_type=refresh_token&refresh_token=%s&service=%s&client_id=hearth"
                             "%s%s%s",
                             token, service, r->ref.repository[0] ? "&scope=repository:" : "",
                             r->ref.repository, r->ref.repository[0] ? ":pull" : "");
    if (token)
        explicit_bzero(token, strlen(token));
    curl_free(token);
    curl_free(service);
    return form;
}

static int get_token(struct registry *r, struct endpoint *e, const struct challenge *c,
                     const struct credentials *login, struct error *err)
{
    bool oauth = login && login->identity_token[0];
    _cleanup_free_ char *url = oauth ? strdup(c->realm) : token_url(r, c);
    _cleanup_free_ char *form = oauth ? oauth_form(r, c, login) : NULL;
    char *pair = login && !oauth ? string_printf("%s:%s", login->user, login->password) : NULL;
    _cleanup_buf_ struct buf body = {.max = TOKEN_ANSWER_MAX};
    struct http_headers headers;
    long status = 0;
    int n;

    if (!url || (oauth && !form))
        return error_set(err, ENOMEM, "out of memory");
    n = http_get(&(struct http_get){.url = url,
                                    .plain_allowed = e->plain,
                                    .user_password = pair,
                                    .form = form,
                                    .cancel = r->cancel},
                 &body, &headers, &status, err);
    forget_secret(pair);
    if (n < 0)
        return n;
    if (status == 401 || status == 403)
        return denied(e, login != NULL, err);
    if (status != 200)
        return registry_status_error(r, e, "token", status, &body, err);
    forget_secret(e->token);
    e->token = token_parse(buf_string(&body), body.size);
    return e->token ? 0
                    : error_set_code(err, ERR_REGISTRY_FAILED,
                                     "the token server of '%s' gave no token", e->host);
}

int registry_authenticate(struct registry *r, struct endpoint *e, const char *header, bool again,
                          struct error *err)
{
    struct credentials found = {0};
    const struct credentials *login = r->credentials;
    struct challenge c;
    int n = 0;

    if (challenge_parse(header, &c) < 0)
        return error_set_code(err, ERR_REGISTRY_FAILED,
                              "registry '%s' asks for a way of authentication that is not known",
                              e->host);
    if (!login) {
        n = credentials_find(e->host, &found, err);
        if (n < 0)
            return n;
        login = n == 0 ? &found : NULL;
    }
    if (again) {
        n = denied(e, login != NULL, err);
    } else if (c.bearer) {
        n = get_token(r, e, &c, login, err);
    } else if (!login || login->identity_token[0]) {
        n = denied(e, false, err);
    } else {
        forget_secret(e->user_password);
        e->user_password = string_printf("%s:%s", login->user, login->password);
        n = e->user_password ? 0 : error_set(err, ENOMEM, "out of memory");
    }
    explicit_bzero(&found, sizeof(found));
    return n;
}

/* ---- answers ---- */

/* The registry's own words: {"errors": [{"code", "message"}]}. */
static void own_words(const struct buf *body, char *text, size_t size)
{
    _cleanup_(json_cleanup) json_t *json = NULL;
    const json_t *first;
    const char *message;

    text[0] = '\0';
    if (!body || body->size == 0)
        return;
    json = json_loadb(buf_string(body), body->size, 0, NULL);
    first = json_array_get(json_object_get(json, "errors"), 0);
    message = json_string_value(json_object_get(first, "message"));
    if (message)
        (void)snprintf(text, size, ": %.120s", message);
    for (char *s = text; *s; s++)
        if ((unsigned char)*s < ' ')
            *s = '?';
}

int registry_status_error(const struct registry *r, const struct endpoint *e, const char *what,
                          long status, const struct buf *body, struct error *err)
{
    char name[REFERENCE_SIZE + 160], words[160];

    if (reference_format(&r->ref, name, sizeof(name)) < 0)
        name[0] = '\0';
    own_words(body, words, sizeof(words));
    if (status == 404)
        return error_set_code(err, ERR_IMAGE_NOT_FOUND,
                              "image '%s': registry '%s' has no such %s%s", name, e->host, what,
                              words);
    if (status == 401 || status == 403)
        return error_set_code(err, ERR_REGISTRY_DENIED,
                              "image '%s': registry '%s' denies access%s; a private image needs "
                              "`hearth login %s`",
                              name, e->host, words, e->host);
    if (status == 429)
        return error_set_code(err, ERR_REGISTRY_FAILED,
                              "image '%s': registry '%s' limits how often it is asked%s; try later",
                              name, e->host, words);
    return error_set_code(err, ERR_REGISTRY_FAILED, "image '%s': registry '%s' answers %ld%s", name,
                          e->host, status, words);
}

/* One GET below /v2/, with authentication when asked for. */
static int get_from(struct registry *r, struct endpoint *e, const char *path,
                    const char *const *accept, struct buf *body, struct http_headers *headers,
                    const char *what, struct error *err)
{
    _cleanup_free_ char *url = string_printf("%s/v2/%s", e->base, path);
    bool asked = false;

    if (!url)
        return error_set(err, ENOMEM, "out of memory");
    for (;;) {
        long status = 0;
        int n = http_get(&(struct http_get){.url = url,
                                            .plain_allowed = e->plain,
                                            .bearer = e->token,
                                            .user_password = e->user_password,
                                            .accept = accept,
                                            .cancel = r->cancel},
                         body, headers, &status, err);

        if (n < 0)
            return n;
        if (status == 200)
            return 0;
        if (status != 401 || !headers->authenticate[0])
            return registry_status_error(r, e, what, status, body, err);
        n = registry_authenticate(r, e, headers->authenticate, asked, err);
        if (n < 0)
            return n;
        asked = true;
    }
}

static int get_any(struct registry *r, const char *path, const char *const *accept,
                   struct buf *body, struct http_headers *headers, const char *what,
                   struct error *err)
{
    int n = -ENOENT;

    for (size_t i = 0; i < r->n_endpoints; i++) {
        error_clear(err);
        n = get_from(r, &r->endpoints[i], path, accept, body, headers, what, err);
        if (n == 0 || n == -ENOMEM || n == -ECANCELED)
            break;
    }
    return n;
}

static int check_digest(const struct buf *body, const char *digest, const char *what,
                        struct error *err)
{
    char sha256[65];

    digest_bytes(buf_data(body), body->size, sha256);
    if (strcmp(digest + 7, sha256) != 0)
        return error_set_code(err, ERR_REGISTRY_FAILED,
                              "the %s %.20s… came with another content, sha256:%.13s…", what,
                              digest, sha256);
    return 0;
}

int registry_manifest(struct registry *r, const char *tag_or_digest, struct buf *ret,
                      char ret_media_type[256], char ret_digest[DIGEST_SIZE], struct error *err)
{
    _cleanup_free_ char *path = string_printf("%s/manifests/%s", r->ref.repository, tag_or_digest);
    struct http_headers headers = {0};
    char sha256[65];
    int n;

    if (!path)
        return error_set(err, ENOMEM, "out of memory");
    n = get_any(r, path, oci_accept, ret, &headers, "manifest", err);
    if (n < 0)
        return n;
    if (strchr(tag_or_digest, ':')) {
        n = check_digest(ret, tag_or_digest, "manifest", err);
        if (n < 0)
            return n;
    }
    digest_bytes(buf_data(ret), ret->size, sha256);
    (void)snprintf(ret_digest, DIGEST_SIZE, "sha256:%s", sha256);
    (void)snprintf(ret_media_type, 256, "%s", headers.content_type);
    return 0;
}

int registry_blob(struct registry *r, const struct oci_descriptor *blob, struct buf *ret,
                  struct error *err)
{
    _cleanup_free_ char *path = string_printf("%s/blobs/%s", r->ref.repository, blob->digest);
    struct http_headers headers = {0};
    int n;

    if (!path)
        return error_set(err, ENOMEM, "out of memory");
    n = get_any(r, path, NULL, ret, &headers, "blob", err);
    if (n == 0)
        n = check_digest(ret, blob->digest, "blob", err);
    return n;
}

int registry_check_login(const char *host, const struct credentials *credentials, struct error *err)
{
    struct reference ref = {0};
    struct registry *r;
    _cleanup_buf_ struct buf body = {.max = TOKEN_ANSWER_MAX};
    struct http_headers headers = {0};
    int n;

    (void)snprintf(ref.host, sizeof(ref.host), "%s", host);
    n = registry_open(&ref, NULL, &r, err);
    if (n < 0)
        return n;
    r->credentials = credentials;
    n = get_from(r, &r->endpoints[r->n_endpoints - 1], "", NULL, &body, &headers, "API", err);
    (void)registry_close(r);
    return n;
}
