#include "api/native/api.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "api/native/code-run.h"
#include "api/native/events.h"
#include "api/native/exec-job.h"
#include "api/native/native.h"
#include "base/clock.h"

/* Which build this is: `hearth` asks a daemon of another one to end. */
static void binary_id(char *text, size_t size)
{
    struct stat st;

    if (stat("/proc/self/exe", &st) < 0)
        st = (struct stat){0};
    (void)snprintf(text, size, "%lld-%lld%09ld-%llu", (long long)st.st_size,
                   (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec, (unsigned long long)st.st_ino);
}

int api_native_new(struct core *core, struct loop *loop, struct api_native **ret, struct error *err)
{
    struct api_native *api = calloc(1, sizeof(*api));

    if (!api)
        return error_set(err, ENOMEM, "api: out of memory");
    api->core = core;
    api->loop = loop;
    api->started_wall_usec = clock_wall_usec();
    binary_id(api->binary_id, sizeof(api->binary_id));
    int r = event_hub_new(core, loop, &api->events);
    if (r < 0) {
        free(api);
        return error_set(err, -r, "api: %s", errno_text(-r));
    }
    *ret = api;
    return 0;
}

struct api_native *api_native_free(struct api_native *api)
{
    if (!api)
        return NULL;
    code_runs_free(api);
    exec_jobs_free(api);
    creations_free(api);
    api->events = event_hub_free(api->events);
    free(api);
    return NULL;
}

struct http_api api_native_http(struct api_native *api)
{
    return (struct http_api){
        .name = "native",
        .routes = native_routes,
        .n_routes = native_routes_count,
        .context = api,
        .gate = native_gate,
    };
}

void api_native_on_shutdown(struct api_native *api, void (*shutdown)(void *userdata),
                            void *userdata)
{
    api->shutdown = shutdown;
    api->shutdown_userdata = userdata;
}
