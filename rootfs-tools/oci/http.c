#include "oci/http.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/strv.h"

#define CONNECT_TIMEOUT_SEC 20L
#define SILENCE_SEC 60L
#define REDIRECTS_MAX 8L
#define PAUSE_FIRST_USEC (UINT64_C(300) * USEC_PER_MSEC)
#define PAUSE_MAX_USEC (UINT64_C(20) * USEC_PER_SEC)

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void start_curl(void)
{
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
}

static void set_text(char *to, size_t size, const char *value, size_t n)
{
    while (n > 0 && (value[n - 1] == '\r' || value[n - 1] == '\n' || value[n - 1] == ' '))
        n--;
    if (n < size) {
        memcpy(to, value, n);
        to[n] = '\0';
    }
}

static void take_retry_after(const char *value, struct http_headers *h)
{
    char text[64] = "";
    uint64_t sec;
    time_t when;

    set_text(text, sizeof(text), value, strlen(value));
    if (parse_u64(text, 0, HTTP_RETRY_AFTER_MAX_USEC / USEC_PER_SEC, &sec) == 0) {
        h->retry_after_usec = sec * USEC_PER_SEC;
        return;
    }
    when = curl_getdate(text, NULL);
    if (when > 0 && (uint64_t)when * USEC_PER_SEC > clock_wall_usec())
        h->retry_after_usec = (uint64_t)when * USEC_PER_SEC - clock_wall_usec();
    else if (text[0] && strspn(text, "0123456789") == strlen(text))
        h->retry_after_usec = HTTP_RETRY_AFTER_MAX_USEC;
    h->retry_after_usec = MIN(h->retry_after_usec, HTTP_RETRY_AFTER_MAX_USEC);
}

static size_t on_header(char *data, size_t unit, size_t count, void *userdata)
{
    struct http_headers *h = userdata;
    size_t size = unit * count;
    char line[4096];
    const char *value;

    if (size >= sizeof(line))
        return size;
    memcpy(line, data, size);
    line[size] = '\0';
    if (strncmp(line, "HTTP/", 5) == 0)
        *h = (struct http_headers){0}; /* of the next answer, after a redirect */
    value = strchr(line, ':');
    if (!value)
        return size;
    value += 1 + strspn(value + 1, " \t");
    if (strncasecmp(line, "content-type:", 13) == 0) {
        size_t n = strcspn(value, ";\r\n");

        set_text(h->content_type, sizeof(h->content_type), value, n);
    } else if (strncasecmp(line, "docker-content-digest:", 22) == 0) {
        set_text(h->digest, sizeof(h->digest), value, strlen(value));
    } else if (strncasecmp(line, "www-authenticate:", 17) == 0) {
        /* Several may come; a bearer challenge is preferred. */
        if (!h->authenticate[0] || strncasecmp(value, "bearer", 6) == 0)
            set_text(h->authenticate, sizeof(h->authenticate), value, strlen(value));
    } else if (strncasecmp(line, "retry-after:", 12) == 0) {
        take_retry_after(value, h);
    } else if (strncasecmp(line, "content-range:", 14) == 0) {
        unsigned long long start;

        h->has_range = sscanf(value, "bytes %llu-", &start) == 1;
        h->range_start = h->has_range ? start : 0;
    }
    return size;
}

CURL *http_easy(const char *url, bool plain_allowed, struct http_headers *headers)
{
    const char *protocols = plain_allowed ? "http,https" : "https";
    CURL *easy;

    (void)pthread_once(&once, start_curl);
    easy = curl_easy_init();
    if (!easy)
        return NULL;
    if (curl_easy_setopt(easy, CURLOPT_URL, url) != CURLE_OK ||
        curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, protocols) != CURLE_OK ||
        curl_easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS_STR, protocols) != CURLE_OK) {
        curl_easy_cleanup(easy);
        return NULL;
    }
    (void)curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_MAXREDIRS, REDIRECTS_MAX);
    (void)curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, CONNECT_TIMEOUT_SEC);
    (void)curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, SILENCE_SEC);
    (void)curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, 256L * 1024);
    (void)curl_easy_setopt(easy, CURLOPT_USERAGENT, "hearth");
    (void)curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    (void)curl_easy_setopt(easy, CURLOPT_HEADERDATA, headers);
    return easy;
}

struct curl_slist *http_header_list(const char *bearer, const char *const *accept)
{
    struct curl_slist *list = curl_slist_append(NULL, "Expect:"), *next = list;
    _cleanup_buf_ struct buf line = {.max = 4096};

    /* One header with all of them: not everything on the way keeps several apart. */
    for (size_t i = 0; accept && accept[i]; i++)
        if (buf_printf(&line, "%s%s", i ? ", " : "Accept: ", accept[i]) < 0)
            next = NULL;
    if (next && accept) {
        next = curl_slist_append(list, buf_string(&line));
        list = next ? next : list;
    }
    if (next && bearer) {
        /* libcurl does not send it on to another host when it follows a redirect. */
        _cleanup_free_ char *text = string_printf("Authorization: Bearer %s", bearer);

        next = text ? curl_slist_append(list, text) : NULL;
        list = next ? next : list;
    }
    if (!next) {
        curl_slist_free_all(list);
        return NULL;
    }
    return list;
}

uint64_t http_backoff_usec(unsigned attempt, uint64_t retry_after_usec)
{
    uint64_t pause = PAUSE_FIRST_USEC << MIN(attempt - 1, 10u);
    uint16_t random = 0;

    if (retry_after_usec)
        return MIN(retry_after_usec, HTTP_RETRY_AFTER_MAX_USEC);
    if (getrandom(&random, sizeof(random), GRND_NONBLOCK) < 0)
        random = 0;
    pause = MIN(pause, PAUSE_MAX_USEC);
    return pause + pause * random / UINT16_MAX / 2;
}

bool http_is_transient(CURLcode code, long status)
{
    switch (code) {
    case CURLE_OK:
        return status == 408 || status == 429 || status >= 500;
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_SSL_CONNECT_ERROR:
        return true;
    default:
        return false;
    }
}

bool http_pause(uint64_t usec, const _Atomic bool *cancel)
{
    uint64_t until = clock_now_usec() + usec;

    for (;;) {
        uint64_t now = clock_now_usec();

        if (cancel && atomic_load(cancel))
            return false;
        if (now >= until)
            return true;
        (void)poll(NULL, 0, (int)MIN((until - now) / USEC_PER_MSEC + 1, UINT64_C(100)));
    }
}

int http_failed(const char *url, CURLcode code, struct error *err)
{
    size_t n = strcspn(url, "?");

    if (code == CURLE_UNSUPPORTED_PROTOCOL)
        return error_set_code(err, ERR_REGISTRY_FAILED,
                              "'%.*s': plain HTTP is only spoken to hosts that the configuration "
                              "names insecure",
                              (int)MIN(n, 200u), url);
    return error_set_code(err, ERR_REGISTRY_FAILED, "'%.*s': %s", (int)MIN(n, 200u), url,
                          curl_easy_strerror(code));
}

/* Also called once a second while nothing comes. */
static int on_tick(void *userdata, curl_off_t total, curl_off_t now, curl_off_t up_total,
                   curl_off_t up_now)
{
    const _Atomic bool *cancel = userdata;

    (void)total;
    (void)now;
    (void)up_total;
    (void)up_now;
    return atomic_load(cancel) ? 1 : 0;
}

static size_t on_body(char *data, size_t unit, size_t count, void *userdata)
{
    return buf_append(userdata, data, unit * count) < 0 ? 0 : unit * count;
}

static int get_once(const struct http_get *get, struct buf *body, struct http_headers *headers,
                    long *ret_status, CURLcode *ret_code)
{
    CURL *easy = http_easy(get->url, get->plain_allowed, headers);
    struct curl_slist *list = easy ? http_header_list(get->bearer, get->accept) : NULL;

    if (!list) {
        curl_easy_cleanup(easy);
        return -ENOMEM;
    }
    buf_clear(body);
    *headers = (struct http_headers){0};
    (void)curl_easy_setopt(easy, CURLOPT_HTTPHEADER, list);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEDATA, body);
    if (get->user_password) {
        (void)curl_easy_setopt(easy, CURLOPT_HTTPAUTH, CURLAUTH_BASIC);
        (void)curl_easy_setopt(easy, CURLOPT_USERPWD, get->user_password);
    }
    if (get->cancel) {
        (void)curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
        (void)curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, on_tick);
        (void)curl_easy_setopt(easy, CURLOPT_XFERINFODATA, (void *)(uintptr_t)get->cancel);
    }
    if (get->form)
        (void)curl_easy_setopt(easy, CURLOPT_COPYPOSTFIELDS, get->form);
    *ret_code = curl_easy_perform(easy);
    *ret_status = 0;
    (void)curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, ret_status);
    curl_easy_cleanup(easy);
    curl_slist_free_all(list);
    return 0;
}

int http_get(const struct http_get *get, struct buf *body, struct http_headers *headers,
             long *ret_status, struct error *err)
{
    for (unsigned attempt = 1;; attempt++) {
        CURLcode code;
        int r = get_once(get, body, headers, ret_status, &code);

        if (r < 0)
            return error_set(err, -r, "'%.200s': out of memory", get->url);
        if (code == CURLE_ABORTED_BY_CALLBACK)
            return error_set(err, ECANCELED, "cancelled");
        if (code == CURLE_WRITE_ERROR)
            return error_set_code(err, ERR_LIMIT_EXCEEDED,
                                  "'%.200s': the answer is longer than %zu bytes", get->url,
                                  body->max);
        if (!http_is_transient(code, *ret_status))
            return code == CURLE_OK ? 0 : http_failed(get->url, code, err);
        if (attempt >= HTTP_ATTEMPTS_MAX)
            return code == CURLE_OK ? 0 : http_failed(get->url, code, err);
        if (!http_pause(http_backoff_usec(attempt, headers->retry_after_usec), get->cancel))
            return error_set(err, ECANCELED, "cancelled");
    }
}
