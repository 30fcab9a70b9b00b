#include "backend/firecracker/fc-client.h"

#include <curl/curl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"

/*
 * Theory of operation. libcurl tells through two callbacks which sockets and which time it waits
 * for; both become sources of the loop, and every event is handed back with
 * curl_multi_socket_action(). A finished transfer is found in reap(), which may be entered from any
 * of them; callbacks of calls run there and may free any call, so the list is read again after
 * each. A call's deadline is a timer of ours: libcurl (7.88) takes a time-out that is less than a
 * millisecond ahead for one that is over, and forgets it when something else happens just then.
 */
struct fc_client {
    struct loop *loop; /* ref */
    CURLM *multi;      /* owned */
    struct source *timer;
    struct fc_call *first;
};

struct fc_call {
    struct fc_client *client; /* weak */
    CURL *easy;               /* owned */
    struct source *deadline;  /* owned */
    struct curl_slist *headers;
    char *body; /* owned, NULL when none */
    struct buf answer;
    bool has_headers; /* all of them: libcurl takes an answer that ends in the middle of one */
    char method[8];
    char path[64];
    fc_call_fn done;
    void *userdata;
    struct fc_call *next;
};

/* One socket that libcurl watches. */
struct fc_socket {
    struct fc_client *client; /* weak */
    struct source *source;
};

static void reap(struct fc_client *client);
static void finish(struct fc_call *call, CURLcode code);

static int socket_ready(struct source *s, int fd, uint32_t events, void *userdata)
{
    struct fc_client *client = ((struct fc_socket *)userdata)->client;
    int flags = 0, running;

    (void)s;
    if (events & (EPOLLIN | EPOLLHUP))
        flags |= CURL_CSELECT_IN;
    if (events & EPOLLOUT)
        flags |= CURL_CSELECT_OUT;
    if (events & EPOLLERR)
        flags |= CURL_CSELECT_ERR;
    (void)curl_multi_socket_action(client->multi, fd, flags, &running);
    reap(client);
    return 0;
}

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *userdata, void *socket_data)
{
    struct fc_client *client = userdata;
    struct fc_socket *socket = socket_data;
    uint32_t events = 0;

    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        if (socket) {
            source_free(socket->source);
            free(socket);
            (void)curl_multi_assign(client->multi, fd, NULL);
        }
        return 0;
    }
    if (what & CURL_POLL_IN)
        events |= EPOLLIN;
    if (what & CURL_POLL_OUT)
        events |= EPOLLOUT;
    if (socket)
        return source_set_io_events(socket->source, events) < 0 ? -1 : 0;
    socket = calloc(1, sizeof(*socket));
    if (!socket)
        return -1;
    socket->client = client;
    if (loop_add_io(client->loop, "firecracker-api", fd, events, socket_ready, socket,
                    &socket->source) < 0) {
        free(socket);
        return -1;
    }
    (void)curl_multi_assign(client->multi, fd, socket);
    return 0;
}

static int timer_due(struct source *s, uint64_t now_usec, void *userdata)
{
    struct fc_client *client = userdata;
    int running;

    (void)s;
    (void)now_usec;
    (void)curl_multi_socket_action(client->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    reap(client);
    return 0;
}

static int on_timer(CURLM *multi, long timeout_msec, void *userdata)
{
    struct fc_client *client = userdata;
    uint64_t at = USEC_INFINITY;

    (void)multi;
    if (timeout_msec >= 0)
        at = clock_now_usec() + (uint64_t)timeout_msec * USEC_PER_MSEC;
    return source_set_time(client->timer, at) < 0 ? -1 : 0;
}

int fc_client_new(struct loop *loop, struct fc_client **ret)
{
    struct fc_client *client = calloc(1, sizeof(*client));
    int r;

    if (!client)
        return -ENOMEM;
    client->loop = loop;
    client->multi = curl_multi_init();
    r = client->multi ? loop_add_timer(loop, "firecracker-api-timer", USEC_INFINITY, timer_due,
                                       client, &client->timer)
                      : -ENOMEM;
    if (r < 0) {
        fc_client_free(client);
        return r;
    }
    (void)curl_multi_setopt(client->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    (void)curl_multi_setopt(client->multi, CURLMOPT_SOCKETDATA, client);
    (void)curl_multi_setopt(client->multi, CURLMOPT_TIMERFUNCTION, on_timer);
    (void)curl_multi_setopt(client->multi, CURLMOPT_TIMERDATA, client);
    *ret = client;
    return 0;
}

struct fc_client *fc_client_free(struct fc_client *client)
{
    if (!client)
        return NULL;
    while (client->first)
        fc_call_free(client->first);
    if (client->multi)
        (void)curl_multi_cleanup(client->multi);
    source_free(client->timer);
    free(client);
    return NULL;
}

struct fc_call *fc_call_free(struct fc_call *call)
{
    if (!call)
        return NULL;
    for (struct fc_call **p = &call->client->first; *p; p = &(*p)->next) {
        if (*p == call) {
            *p = call->next;
            break;
        }
    }
    call->deadline = source_free(call->deadline);
    if (call->easy) {
        (void)curl_multi_remove_handle(call->client->multi, call->easy);
        curl_easy_cleanup(call->easy);
    }
    curl_slist_free_all(call->headers);
    free(call->body);
    buf_done(&call->answer);
    free(call);
    return NULL;
}

static size_t on_data(char *data, size_t size, size_t count, void *userdata)
{
    struct fc_call *call = userdata;

    /* A short count makes libcurl end the transfer with CURLE_WRITE_ERROR. */
    return buf_append(&call->answer, data, size * count) < 0 ? 0 : size * count;
}

static size_t on_header(char *data, size_t size, size_t count, void *userdata)
{
    struct fc_call *call = userdata;

    if (size * count == 2 && memcmp(data, "\r\n", 2) == 0)
        call->has_headers = true;
    return size * count;
}

static int body_set(struct fc_call *call, json_t *body)
{
    if (!body)
        return 0;
    call->body = json_dumps(body, JSON_COMPACT);
    call->headers = curl_slist_append(NULL, "Content-Type: application/json");
    if (call->headers)
        call->headers = curl_slist_append(call->headers, "Expect:");
    return call->body && call->headers ? 0 : -ENOMEM;
}

static int on_deadline(struct source *s, uint64_t now_usec, void *userdata)
{
    (void)s;
    (void)now_usec;
    finish(userdata, CURLE_OPERATION_TIMEDOUT);
    return 0;
}

static int prepare(struct fc_call *call, const char *socket_path, uint64_t deadline_usec)
{
    char url[128];
    CURL *easy = curl_easy_init();
    int r;

    if (!easy)
        return -ENOMEM;
    call->easy = easy;
    r = loop_add_timer(call->client->loop, "firecracker-deadline", deadline_usec, on_deadline, call,
                       &call->deadline);
    if (r < 0)
        return r;
    (void)snprintf(url, sizeof(url), "http://localhost%s", call->path);
    (void)curl_easy_setopt(easy, CURLOPT_UNIX_SOCKET_PATH, socket_path);
    (void)curl_easy_setopt(easy, CURLOPT_URL, url);
    (void)curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, call->method);
    (void)curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
    /* On a connection that is used again libcurl repeats what broke off; no call may run twice. */
    (void)curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_data);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEDATA, call);
    (void)curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    (void)curl_easy_setopt(easy, CURLOPT_HEADERDATA, call);
    (void)curl_easy_setopt(easy, CURLOPT_PRIVATE, call);
    if (call->body) {
        (void)curl_easy_setopt(easy, CURLOPT_POSTFIELDS, call->body);
        (void)curl_easy_setopt(easy, CURLOPT_HTTPHEADER, call->headers);
    }
    return 0;
}

int fc_client_call(struct fc_client *client, const char *socket_path, const char *method,
                   const char *path, json_t *body, uint64_t deadline_usec, fc_call_fn done,
                   void *userdata, struct fc_call **ret, struct error *err)
{
    struct fc_call *call = calloc(1, sizeof(*call));
    int r;

    if (!call) {
        json_decref(body);
        return error_set(err, ENOMEM, "%s %s: out of memory", method, path);
    }
    call->client = client;
    call->done = done;
    call->userdata = userdata;
    buf_init(&call->answer, FC_ANSWER_MAX);
    (void)snprintf(call->method, sizeof(call->method), "%s", method);
    (void)snprintf(call->path, sizeof(call->path), "%s", path);
    call->next = client->first;
    client->first = call;
    r = body_set(call, body);
    json_decref(body);
    if (r == 0)
        r = prepare(call, socket_path, deadline_usec);
    if (r == 0 && curl_multi_add_handle(client->multi, call->easy) != CURLM_OK)
        r = -ENOMEM;
    if (r < 0) {
        fc_call_free(call);
        return error_set(err, -r, "%s %s: %s", method, path, errno_text(-r));
    }
    if (ret)
        *ret = call;
    return 0;
}

/* What the transport's failure means for the caller. */
static void transport_error(const struct fc_call *call, CURLcode code, struct error *err)
{
    const char *what = curl_easy_strerror(code);

    switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
        error_set_code(err, ERR_TIMEOUT, "Firecracker did not answer %s %s in time", call->method,
                       call->path);
        break;
    case CURLE_COULDNT_CONNECT:
        error_set_code(err, ERR_UNAVAILABLE, "Firecracker is not there for %s %s: %s", call->method,
                       call->path, what);
        break;
    case CURLE_WRITE_ERROR:
        error_set_code(err, ERR_BACKEND_FAILED, "Firecracker's answer to %s %s is over %u bytes",
                       call->method, call->path, FC_ANSWER_MAX);
        break;
    default:
        error_set_code(err, ERR_BACKEND_FAILED, "%s %s broke off: %s", call->method, call->path,
                       what);
        break;
    }
}

static void log_call(const struct fc_call *call)
{
    curl_off_t body = 0, answer = 0;
    long head = 0, answer_head = 0, status = 0;

    if (!log_enabled(LOG_LEVEL_DEBUG))
        return;
    (void)curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &status);
    (void)curl_easy_getinfo(call->easy, CURLINFO_REQUEST_SIZE, &head);
    (void)curl_easy_getinfo(call->easy, CURLINFO_SIZE_UPLOAD_T, &body);
    (void)curl_easy_getinfo(call->easy, CURLINFO_HEADER_SIZE, &answer_head);
    (void)curl_easy_getinfo(call->easy, CURLINFO_SIZE_DOWNLOAD_T, &answer);
    /* libcurl counts a body that goes with the head as part of it. */
    log_debug("firecracker: %s %s: %ld, %lld bytes sent, %lld received", call->method, call->path,
              status, (long long)head + (call->body ? 0 : (long long)body),
              (long long)answer_head + (long long)answer);
}

static void finish(struct fc_call *call, CURLcode code)
{
    json_t *answer = NULL;
    struct error err = {0};
    fc_call_fn done = call->done;
    void *userdata = call->userdata;
    long status = 0;

    log_call(call);
    if (code == CURLE_OK && !call->has_headers)
        code = CURLE_GOT_NOTHING;
    if (code != CURLE_OK) {
        transport_error(call, code, &err);
    } else {
        (void)curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &status);
        if (call->answer.size > 0) {
            answer = json_loadb(buf_string(&call->answer), call->answer.size,
                                JSON_REJECT_DUPLICATES, NULL);
            if (!answer)
                error_set_code(&err, ERR_BACKEND_FAILED,
                               "Firecracker's answer to %s %s is not JSON", call->method,
                               call->path);
        }
        if (status < 200 || status > 299) {
            const char *fault = json_string_value(json_object_get(answer, "fault_message"));

            error_set_code(&err, ERR_BACKEND_FAILED, "Firecracker refused %s %s (%ld): %.300s",
                           call->method, call->path, status, fault ? fault : "no reason given");
        }
    }
    fc_call_free(call);
    done(err.errnum && code != CURLE_OK ? 0 : status, err.errnum ? NULL : answer,
         err.errnum ? &err : NULL, userdata);
    json_decref(answer);
}

static void reap(struct fc_client *client)
{
    for (;;) {
        int left;
        CURLMsg *message = curl_multi_info_read(client->multi, &left);
        struct fc_call *call = NULL;

        if (!message)
            return;
        if (message->msg != CURLMSG_DONE)
            continue;
        (void)curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&call);
        if (call)
            finish(call, message->data.result);
    }
}
