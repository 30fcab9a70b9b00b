#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "api/native/handlers.h"
#include "api/native/native.h"
#include "api/native/page.h"
#include "api/native/ticket.h"
#include "base/clock.h"
#include "kernel/kernel.h"

#define KERNELS_MAX 16u

void handle_version(struct request *req)
{
    struct api_native *api = native_of(req);
    struct utsname host;
    char started[32];

    (void)uname(&host);
    clock_format_wall(api->started_wall_usec, started, sizeof(started));
    request_answer(req, 200,
                   json_pack("{s:s, s:i, s:s, s:i, s:s, s:s}", "version", HEARTH_VERSION, "api", 1,
                             "arch", host.machine, "pid", (int)getpid(), "started", started,
                             "binary_id", api->binary_id));
}

/* The report is ours. */
static void on_report(json_t *report, void *userdata)
{
    struct request *req = ticket_take(userdata);

    if (req)
        request_answer(req, 200, report);
    else
        json_decref(report);
}

void handle_doctor(struct request *req)
{
    struct ticket *t = ticket_new(req, NULL);

    if (!t)
        return;
    int r = core_doctor(native_of(req)->core, on_report, t);
    if (r < 0) {
        struct error err = {0};
        error_fill(&err, r, "doctor");
        ticket_answer_done(t, &err);
    }
}

static void on_shutdown_over(void *state, enum request_end why)
{
    struct api_native *api = state;

    if (why == REQUEST_STOPPED)
        return;
    if (api->shutdown)
        api->shutdown(api->shutdown_userdata);
    else
        loop_quit(api->loop, 0);
}

void handle_shutdown(struct request *req)
{
    request_own(req, native_of(req), on_shutdown_over);
    request_answer_empty(req, 202);
}

void handle_kernels(struct request *req)
{
    struct kernel kernels[KERNELS_MAX], chosen = {0};
    struct error err = {0};

    int count = kernel_list(kernels, KERNELS_MAX, &err);
    if (count < 0) {
        request_answer_error(req, &err);
        return;
    }
    (void)kernel_find(NULL, &chosen, NULL);
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        const struct kernel *k = &kernels[i];
        (void)json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s, s:b}", "name", k->name,
                                                    "version", k->version, "path", k->path,
                                                    "sha256", k->sha256, "default",
                                                    strcmp(k->name, chosen.name) == 0));
    }
    request_answer(req, 200, json_pack("{s:o}", "kernels", list));
}
