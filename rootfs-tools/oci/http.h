#pragma once

#include <curl/curl.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

/* What libcurl needs to be told every time, and the headers that registries answer with. */
struct http_headers {
    char content_type[256];
    char digest[72];         /* Docker-Content-Digest */
    char authenticate[2048]; /* WWW-Authenticate */
    uint64_t range_start;    /* of Content-Range */
    bool has_range;
    uint64_t retry_after_usec; /* 0: not said */
};

#define HTTP_RETRY_AFTER_MAX_USEC (UINT64_C(300) * 1000000)

/* A handle with time-outs, redirects and header reading set; `headers` is filled as they come. */
CURL *http_easy(const char *url, bool plain_allowed, struct http_headers *headers);

struct http_get {
    const char *url;
    bool plain_allowed;         /* http:// too */
    const char *bearer;         /* token or NULL */
    const char *user_password;  /* "user:password" for basic, or NULL */
    const char *const *accept;  /* media types, NULL-terminated, or NULL */
    const char *form;           /* body of a POST, or NULL: GET */
    const _Atomic bool *cancel; /* may be NULL */
};

/*
 * One small answer. Retries with growing pauses on 429, on 5xx and when the connection breaks.
 * Returns 0 with any other status, or a negative errno and err. Blocks.
 */
int http_get(const struct http_get *get, struct buf *body, struct http_headers *headers,
             long *ret_status, struct error *err);

/* How long to wait before try number `attempt` (from 1): grows, with a random part. */
uint64_t http_backoff_usec(unsigned attempt, uint64_t retry_after_usec);
/* Worth another try? */
bool http_is_transient(CURLcode code, long status);
/* Waits, in steps that look at `cancel`. False when cancelled. */
bool http_pause(uint64_t usec, const _Atomic bool *cancel);
/* Header list with Accept and Authorization; NULL: out of memory. Owned: curl_slist_free_all(). */
struct curl_slist *http_header_list(const char *bearer, const char *const *accept);
int http_failed(const char *url, CURLcode code, struct error *err);

#define HTTP_ATTEMPTS_MAX 6u
