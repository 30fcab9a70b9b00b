#include "api/front/access-log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "model/text.h"

#define PATH_SHOWN_MAX 512u

struct access_log {
    int fd;
    bool owned;
};

int access_log_open(const char *path, struct access_log **ret, struct error *err)
{
    struct access_log *log = calloc(1, sizeof(*log));

    if (!log)
        return error_set(err, ENOMEM, "access log: out of memory");
    log->owned = strcmp(path, "-") != 0;
    log->fd =
        log->owned ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : STDERR_FILENO;
    if (log->fd < 0) {
        free(log);
        return error_set(err, errno, "access log '%s': %s", path, errno_text(errno));
    }
    *ret = log;
    return 0;
}

struct access_log *access_log_close(struct access_log *log)
{
    if (log && log->owned)
        log->fd = fd_close(log->fd);
    free(log);
    return NULL;
}

/* The path without its query, which may hold a signature. */
static json_t *shown_path(const char *target)
{
    char path[PATH_SHOWN_MAX + 1];
    size_t length = MIN(strcspn(target, "?#"), (size_t)PATH_SHOWN_MAX);

    memcpy(path, target, length);
    path[length] = '\0';
    return json_text(path);
}

static void peer_text(const struct sockaddr *address, char *text, size_t size)
{
    (void)snprintf(text, size, "unix");
    if (address && address->sa_family == AF_INET)
        (void)inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)address)->sin_addr,
                        text, (socklen_t)size);
    else if (address && address->sa_family == AF_INET6)
        (void)inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr,
                        text, (socklen_t)size);
}

void access_log_write(struct access_log *log, const struct http_seen *seen)
{
    const struct principal *who = seen->principal;
    char time[32], peer[INET6_ADDRSTRLEN];
    json_t *line;
    _cleanup_free_ char *text = NULL;
    size_t size;

    peer_text(seen->peer, peer, sizeof(peer));
    clock_format_wall(clock_wall_usec() - seen->duration_usec, time, sizeof(time));
    line = json_pack("{s:s, s:s, s:s, s:s, s:o, s:s, s:i, s:f, s:I, s:I}", "time", time, "peer",
                     peer, "api", seen->api, "method", seen->method, "path",
                     shown_path(seen->target), "route", seen->pattern, "status", (int)seen->status,
                     "duration_ms", (double)seen->duration_usec / 1000, "bytes_in",
                     (json_int_t)seen->bytes_in, "bytes_out", (json_int_t)seen->bytes_out);
    if (!line)
        return;
    if (who->tenant[0])
        (void)json_object_set_new(line, "tenant", json_string(who->tenant));
    if (who->key_id[0])
        (void)json_object_set_new(line, "key", json_string(who->key_id));
    if (seen->code != ERR_NONE)
        (void)json_object_set_new(line, "code", json_string(error_code_name(seen->code)));
    if (seen->gone)
        (void)json_object_set_new(line, "gone", json_true());
    text = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(6));
    json_decref(line);
    if (!text)
        return;
    size = strlen(text);
    text[size] = '\n'; /* one write a line: lines of several writers stay whole */
    (void)fd_write_full(log->fd, text, size + 1);
}
