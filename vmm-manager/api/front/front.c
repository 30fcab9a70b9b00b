#include "api/front/front.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/front/access-log.h"
#include "api/front/access.h"
#include "api/front/front-private.h"
#include "api/front/metrics.h"
#include "api/front/ops.h"
#include "api/tls.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"
#include "base/strv.h"

#define TCP_CONNECTIONS_MAX 2048u
#define TCP_IDLE_SEC 75u
#define PEM_MAX (256u * 1024u)
#define DRAIN_LOOK_USEC (10 * USEC_PER_MSEC)

/* ---- what both have ---- */

static void on_seen(const struct http_seen *seen, void *userdata)
{
    struct api_front *front = userdata;

    metrics_seen(front->metrics, seen);
    if (front->access_log)
        access_log_write(front->access_log, seen);
}

static int authorize_host(struct request *req, void *userdata, struct error *err)
{
    struct api_front *front = userdata;

    return access_authorize_host(req, front->core, err);
}

static int authorize_key(struct request *req, void *userdata, struct error *err)
{
    struct api_front *front = userdata;

    return access_authorize_key(req, front->core, err);
}

/* The APIs that were given, and what the front serves itself. */
static int front_http(struct api_front *front, const struct api_front_options *options,
                      struct http_api apis[static HTTP_APIS_MAX], struct http_options *ret,
                      struct error *err)
{
    if (options->n_apis >= HTTP_APIS_MAX)
        return error_set(err, E2BIG, "api: at most %u APIs", HTTP_APIS_MAX - 1);
    memcpy(apis, options->apis, options->n_apis * sizeof(*apis));
    apis[options->n_apis] = (struct http_api){
        .name = "ops",
        .routes = ops_routes,
        .n_routes = ops_routes_count,
        .context = front,
    };
    *ret = (struct http_options){
        .apis = apis,
        .n_apis = options->n_apis + 1,
        .seen = on_seen,
        .userdata = front,
    };
    return 0;
}

/* ---- the port ---- */

static int read_pem(const char *path, char **ret, struct error *err)
{
    size_t size;

    return file_read(path, PEM_MAX, ret, &size, err);
}

static int front_tls(struct api_front *front, const struct api_front_options *options,
                     struct error *err)
{
    int r;

    if (!options->tls_cert_path && !options->tls_key_path)
        return 0;
    if (!options->tls_cert_path || !options->tls_key_path)
        return error_set(err, EINVAL, "TLS needs a certificate and its key");
    r = read_pem(options->tls_cert_path, &front->cert, err);
    return r < 0 ? r : read_pem(options->tls_key_path, &front->key, err);
}

static int front_listen(struct api_front *front, const char *where, char *address,
                        struct error *err)
{
    int r = tcp_listen(where ? where : FRONT_LISTEN_DEFAULT, &front->tcp_fd, address, err);

    if (r != -EADDRINUSE || where)
        return r;
    /* Nobody asked for this port: another daemon of this host may have it. */
    error_clear(err);
    r = tcp_listen("127.0.0.1:0", &front->tcp_fd, address, err);
    if (r >= 0)
        log_notice("'" FRONT_LISTEN_DEFAULT "' is taken, listening on '%s' instead", address);
    return r;
}

static int on_tls(int fd, const void *address, unsigned address_size, void *userdata)
{
    struct api_front *front = userdata;

    return http_server_adopt(front->tcp, fd, address, address_size);
}

static int front_tcp(struct api_front *front, const struct api_front_options *options,
                     struct error *err)
{
    char address[TCP_ADDRESS_SIZE];
    struct http_api apis[HTTP_APIS_MAX];
    struct http_options http;
    int r;

    if (options->listen && strcmp(options->listen, "off") == 0) {
        if (front->address_path) /* of a daemon that was killed */
            (void)unlink(front->address_path);
        return 0;
    }
    r = front_tls(front, options, err);
    if (r >= 0)
        r = front_listen(front, options->listen, address, err);
    if (r < 0)
        return r;
    if (!front->cert && !tcp_address_is_local(address))
        log_warning("Listening on '%s' without TLS: keys travel in the clear", address);
    r = front_http(front, options, apis, &http, err);
    if (r < 0)
        return r;
    http.idle_sec = TCP_IDLE_SEC;
    http.connections = TCP_CONNECTIONS_MAX;
    http.authorize = authorize_key;
    http.cors = true;
    /* TCP tells no other way that the client is gone. */
    http.half_is_gone = true;
    http.listen_fd = front->cert ? -EBADF : front->tcp_fd;
    r = http_server_new(options->loop, &http, &front->tcp, err);
    if (r >= 0 && front->cert) {
        const struct tls_options tls = {
            .listen_fd = front->tcp_fd,
            .cert = front->cert,
            .key = front->key,
            .adopt = on_tls,
            .userdata = front,
        };
        r = tls_front_new(options->loop, &tls, &front->tls, err);
    }
    if (r < 0)
        return r;
    (void)snprintf(front->url, sizeof(front->url), "%s://%s", front->cert ? "https" : "http",
                   address);
    if (front->address_path) {
        _cleanup_free_ char *line = string_printf("%s\n", front->url);
        r = line ? file_write_atomic(front->address_path, line, strlen(line), 0644, err) : -ENOMEM;
        if (r < 0)
            return error_fill(err, r, "write '%s'", front->address_path);
    }
    return 0;
}

/* ---- life ---- */

static int front_host(struct api_front *front, const struct api_front_options *options,
                      struct error *err)
{
    struct http_api apis[HTTP_APIS_MAX];
    struct http_options http;
    int r = front_http(front, options, apis, &http, err);

    if (r >= 0)
        r = unix_listen(front->socket_path, &front->own, err);
    if (r < 0)
        return r;
    http.authorize = authorize_host;
    http.listen_fd = front->own.fd;
    return http_server_new(options->loop, &http, &front->host, err);
}

int api_front_new(const struct api_front_options *options, struct api_front **ret,
                  struct error *err)
{
    struct api_front *front = calloc(1, sizeof(*front));
    int r;

    if (!front)
        return error_set(err, ENOMEM, "api: out of memory");
    front->core = options->core;
    front->loop = options->loop;
    front->own.fd = front->tcp_fd = -EBADF;
    r = string_set(&front->socket_path, options->socket_path);
    if (r >= 0)
        r = string_set(&front->address_path, options->address_path);
    if (r >= 0)
        r = metrics_new(&front->metrics);
    if (r < 0)
        (void)error_set(err, ENOMEM, "api: out of memory");
    if (r >= 0 && options->access_log)
        r = access_log_open(options->access_log, &front->access_log, err);
    /* The port first: its trouble is found before anybody is let in. */
    if (r >= 0)
        r = front_tcp(front, options, err);
    if (r >= 0)
        r = front_host(front, options, err);
    if (r < 0) {
        (void)api_front_free(front);
        return r;
    }
    *ret = front;
    return 0;
}

struct api_front *api_front_free(struct api_front *front)
{
    if (!front)
        return NULL;
    front->drain = source_free(front->drain);
    front->tcp = http_server_free(front->tcp);
    front->tls = tls_front_free(front->tls);
    front->host = http_server_free(front->host);
    if (front->url[0] && front->address_path)
        (void)unlink(front->address_path);
    unix_listener_close(&front->own, front->socket_path);
    front->tcp_fd = fd_close(front->tcp_fd);
    if (front->key)
        sodium_memzero(front->key, strlen(front->key));
    front->metrics = metrics_free(front->metrics);
    front->access_log = access_log_close(front->access_log);
    free(front->cert);
    free(front->key);
    free(front->address_path);
    free(front->socket_path);
    free(front);
    return NULL;
}

const char *api_front_url(const struct api_front *front)
{
    return front->url;
}

/* ---- the end ---- */

static size_t front_busy(const struct api_front *front)
{
    size_t busy = http_server_busy(front->host);

    return front->tcp ? busy + http_server_busy(front->tcp) : busy;
}

static int on_drain(struct source *s, uint64_t now_usec, void *userdata)
{
    struct api_front *front = userdata;

    if (front_busy(front) > 0 && now_usec < front->drain_until_usec)
        return source_set_time(s, now_usec + DRAIN_LOOK_USEC);
    front->drain = source_free(front->drain);
    front->drained(front->drained_userdata);
    return 0;
}

int api_front_drain(struct api_front *front, uint64_t timeout_usec, void (*done)(void *userdata),
                    void *userdata)
{
    uint64_t now = clock_now_usec();

    if (front->drain)
        return 0;
    http_server_drain(front->host);
    if (front->tcp)
        http_server_drain(front->tcp);
    if (front->tls)
        tls_front_drain(front->tls);
    front->drain_until_usec = now + timeout_usec;
    front->drained = done;
    front->drained_userdata = userdata;
    return loop_add_timer(front->loop, "api-drain", now, on_drain, front, &front->drain);
}
