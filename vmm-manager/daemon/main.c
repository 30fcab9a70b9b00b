#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/e2b/e2b.h"
#include "api/front/front.h"
#include "api/native/api.h"
#include "api/swerex/rex.h"
#include "backend/firecracker/firecracker.h"
#include "backend/qemu/qemu.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/paths.h"
#include "core/core.h"
#include "daemon/options.h"
#include "daemon/process.h"

/*
 * hearthd: one loop, one core, one socket and one port with every API. It listens only after it has
 * found again what an earlier daemon left, so that a client never sees half of it. On SIGTERM or
 * SIGINT it answers what was asked and lets go: sandboxes live on and the next daemon adopts them.
 * Only warm ones that nobody claimed go.
 */
#define DRAIN_USEC (5 * USEC_PER_SEC)

static const struct core_backend_factory backends[] = {
    {"firecracker", backend_firecracker_new},
    {"qemu", backend_qemu_new},
};

struct daemon {
    struct daemon_options options;
    struct loop *loop;               /* owned */
    struct core *core;               /* owned */
    struct api_native *native;       /* owned */
    struct api_e2b *e2b;             /* owned */
    struct api_swerex *rex;          /* owned */
    struct api_front *front;         /* owned */
    struct source *term, *interrupt; /* owned */
    bool leaving;
};

/* Tells whoever started us, once. */
static void report_ready(struct daemon *d, const struct error *err)
{
    char line[600];
    int n = snprintf(line, sizeof(line), "%s\n", err ? err->text : "ready");

    if (d->options.ready_fd < 0)
        return;
    (void)fd_write_full(d->options.ready_fd, line, (size_t)n);
    d->options.ready_fd = fd_close(d->options.ready_fd);
}

static void on_stopped(void *userdata)
{
    struct daemon *d = userdata;

    loop_quit(d->loop, 0);
}

static void on_drained(void *userdata)
{
    struct daemon *d = userdata;

    core_stop(d->core, on_stopped, d);
}

/* Takes nothing new, answers what is under way, ends. */
static void leave(void *userdata)
{
    struct daemon *d = userdata;

    d->leaving = true;
    if (!d->front || api_front_drain(d->front, DRAIN_USEC, on_drained, d) < 0)
        on_drained(d);
}

static int on_signal(struct source *s, int signo, void *userdata)
{
    struct daemon *d = userdata;

    (void)s;
    log_notice("Signal %d: letting go of the sandboxes, they stay", signo);
    if (d->leaving) /* asked twice: at once */
        loop_quit(d->loop, 0);
    else
        leave(d);
    return 0;
}

static int serve(struct daemon *d, struct error *err)
{
    char address_path[4096];
    struct http_api apis[HTTP_APIS_MAX];
    struct api_front_options options = {
        .core = d->core,
        .loop = d->loop,
        .socket_path = d->options.socket_path,
        .listen = d->options.listen,
        .tls_cert_path = d->options.tls_cert,
        .tls_key_path = d->options.tls_key,
        .address_path = address_path,
        .access_log = d->options.access_log,
        .apis = apis,
    };
    int r = api_native_new(d->core, d->loop, &d->native, err);

    if (r < 0)
        return r;
    api_native_on_shutdown(d->native, leave, d);
    r = e2b_new(d->core, &d->e2b, err);
    if (r >= 0)
        r = swerex_new(d->core, &d->rex, err);
    if (r < 0)
        return r;
    if (d->options.tls_cert)
        e2b_set_https(d->e2b);
    /* Those that claim by header first. */
    e2b_apis(d->e2b, apis);
    options.n_apis = E2B_APIS;
    apis[options.n_apis++] = api_native_http(d->native);
    apis[options.n_apis++] = swerex_http(d->rex);
    (void)snprintf(address_path, sizeof(address_path), "%s/hearthd.url", d->options.state_dir);
    return api_front_new(&options, &d->front, err);
}

static void on_recovered(const struct error *err, void *userdata)
{
    struct daemon *d = userdata;
    struct error failed = {0};

    if (err)
        error_copy(&failed, err);
    else if (!d->leaving && serve(d, &failed) >= 0)
        error_clear(&failed);
    if (failed.errnum) {
        log_error("Failed to serve: %s", failed.text);
        report_ready(d, &failed);
        loop_quit(d->loop, 1);
        return;
    }
    if (!d->front)
        return;
    log_notice("Listening on '%s'%s%s", d->options.socket_path,
               api_front_url(d->front)[0] ? " and " : "", api_front_url(d->front));
    report_ready(d, NULL);
}

static int start(struct daemon *d, struct error *err)
{
    const struct core_options options = {
        .state_dir = d->options.state_dir,
        .max_sandboxes = d->options.max_sandboxes,
        .backends = backends,
        .n_backends = ARRAY_SIZE(backends),
        .answer_timeout_usec = d->options.boot_timeout_usec,
        .pool_size = d->options.pool_size,
        .snapshot_quota_bytes = d->options.snapshot_quota_bytes,
        .compress_after_usec = d->options.compress_after_usec,
        .chain_max = d->options.chain_max,
    };
    int r;

    r = dir_create(d->options.state_dir, 0700, err);
    if (r < 0)
        return r;
    r = loop_new(&d->loop);
    if (r >= 0)
        r = loop_add_signal(d->loop, "sigterm", SIGTERM, on_signal, d, &d->term);
    if (r >= 0)
        r = loop_add_signal(d->loop, "sigint", SIGINT, on_signal, d, &d->interrupt);
    if (r < 0)
        return error_set(err, -r, "event loop: %s", errno_text(-r));
    r = core_new(d->loop, &options, &d->core, err);
    if (r < 0)
        return r;
    r = core_recover(d->core, on_recovered, d);
    if (r < 0)
        return error_set(err, -r, "recover: %s", errno_text(-r));
    return 0;
}

static int run(struct daemon *d)
{
    struct error err = {0};
    int r;

    process_set_up();
    r = start(d, &err);
    if (r < 0) {
        log_error("Failed to start: %s", err.text);
        report_ready(d, &err);
    } else {
        r = loop_run(d->loop);
    }
    d->front = api_front_free(d->front);
    d->rex = swerex_free(d->rex);
    d->e2b = e2b_free(d->e2b);
    d->native = api_native_free(d->native);
    d->core = core_free(d->core);
    d->term = source_free(d->term);
    d->interrupt = source_free(d->interrupt);
    d->loop = loop_free(d->loop);
    return r == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct daemon d = {0};
    struct error err = {0};
    int level;

    if (daemon_options_parse(argc, argv, &d.options, &err) < 0) {
        fprintf(stderr, "hearthd: %s\n", err.text);
        return 2;
    }
    if (d.options.help) {
        daemon_options_help();
        return 0;
    }
    if (d.options.version) {
        puts("hearthd " HEARTH_VERSION);
        return 0;
    }
    level = log_level_from_string(d.options.log_level);
    if (level < 0) {
        fprintf(stderr, "hearthd: --log-level '%s': unknown level\n", d.options.log_level);
        return 2;
    }
    log_set_level((enum log_level)level);
    log_set_json(d.options.log_json);
    /* First calls: these keep their answers, and later ones come from threads. */
    (void)paths_cache_dir();
    (void)paths_program_dir();
    if (d.options.state_dir && !d.options.socket_path) {
        static char socket_path[4096];

        (void)snprintf(socket_path, sizeof(socket_path), "%s/hearthd.sock", d.options.state_dir);
        d.options.socket_path = socket_path;
    }
    if (!d.options.state_dir)
        d.options.state_dir = paths_state_dir();
    if (!d.options.socket_path)
        d.options.socket_path = paths_socket();
    return run(&d);
}
