#include "api/native/api.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "api/native/exec-job.h"
#include "api/native/native.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/strv.h"

#define LISTEN_BACKLOG 256

/* Which build this is: `hearth` asks a daemon of another one to end. */
static void binary_id(char *text, size_t size)
{
    struct stat st;

    if (stat("/proc/self/exe", &st) < 0)
        st = (struct stat){0};
    (void)snprintf(text, size, "%lld-%lld%09ld-%llu", (long long)st.st_size,
                   (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec, (unsigned long long)st.st_ino);
}

/*
 * Bound beside and renamed: whoever connects finds the old socket or the new one, never none, and
 * the mode is right from the first moment.
 */
static int socket_listen(struct api_native *api, struct error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    _cleanup_free_ char *beside = string_printf("%s.new", api->socket_path);
    struct stat st;

    if (!beside)
        return error_set(err, ENOMEM, "socket '%s': out of memory", api->socket_path);
    if (strlen(beside) >= sizeof(address.sun_path))
        return error_set(err, ENAMETOOLONG, "socket '%s': the path has more than %zu bytes",
                         api->socket_path, sizeof(address.sun_path) - sizeof(".new"));
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", beside);
    api->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (api->listen_fd < 0)
        return error_set(err, errno, "socket '%s': %s", api->socket_path, errno_text(errno));
    (void)unlink(beside);
    /* On Linux the mode of the descriptor is the mode that bind() gives the file. */
    if (fchmod(api->listen_fd, 0600) < 0 ||
        bind(api->listen_fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        return error_set(err, errno, "socket '%s': bind: %s", beside, errno_text(errno));
    if (chmod(beside, 0600) < 0 || listen(api->listen_fd, LISTEN_BACKLOG) < 0 ||
        stat(beside, &st) < 0 || rename(beside, api->socket_path) < 0) {
        int r = error_set(err, errno, "socket '%s': %s", api->socket_path, errno_text(errno));
        (void)unlink(beside);
        return r;
    }
    api->socket_dev = st.st_dev;
    api->socket_ino = st.st_ino;
    return 0;
}

int api_native_new(struct core *core, struct loop *loop, const char *socket_path,
                   struct api_native **ret, struct error *err)
{
    struct api_native *api = calloc(1, sizeof(*api));
    int r;

    if (!api)
        return error_set(err, ENOMEM, "api: out of memory");
    api->core = core;
    api->loop = loop;
    api->listen_fd = -EBADF;
    api->started_wall_usec = clock_wall_usec();
    binary_id(api->binary_id, sizeof(api->binary_id));
    api->socket_path = strdup(socket_path);
    r = api->socket_path ? socket_listen(api, err) : error_set(err, ENOMEM, "api: out of memory");
    if (r >= 0) {
        struct http_options options = {
            .listen_fd = api->listen_fd,
            .routes = native_routes,
            .n_routes = native_routes_count,
            .context = api,
        };
        r = http_server_new(loop, &options, &api->http, err);
    }
    if (r < 0) {
        api_native_free(api);
        return r;
    }
    *ret = api;
    return 0;
}

struct api_native *api_native_free(struct api_native *api)
{
    struct stat st;

    if (!api)
        return NULL;
    api->stopping = true;
    api->http = http_server_free(api->http);
    exec_jobs_free(api);
    /* A daemon that took over has its own socket there by now. */
    if (api->socket_ino != 0 && stat(api->socket_path, &st) == 0 && st.st_dev == api->socket_dev &&
        st.st_ino == api->socket_ino)
        (void)unlink(api->socket_path);
    api->listen_fd = fd_close(api->listen_fd);
    free(api->socket_path);
    free(api);
    return NULL;
}
