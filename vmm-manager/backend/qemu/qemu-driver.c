#include "backend/qemu/qemu-driver.h"

#include <dirent.h>
#include <jansson.h>
#include <libvirt/libvirt-qemu.h>
#include <libvirt/virterror.h>
#include <pthread.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backend/qemu/qemu-root.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/spawn.h"
#include "base/strv.h"

/* For QEMU to print its version. */
#define VERSION_USEC (10 * USEC_PER_SEC)
#define CAPABILITIES_TRIES 5u

struct driver {
    char *root;                /* owned */
    struct reaper *reaper;     /* owned */
    pthread_mutex_t open_lock; /* held while opening */
    virConnectPtr conn;        /* owned; set once */
    int event_id;              /* of the migration events */
    bool thread_runs;
    pthread_t thread; /* runs libvirt's event loop */
    _Atomic bool stop;
    struct driver_info info;
    pthread_mutex_t lock; /* guards the list of waits */
    pthread_cond_t wake;
    struct migration_wait *waits; /* weak */
};

/* Errors are read with virGetLastError() where they happen; nothing goes to stderr. */
static void ignore_error(void *userdata _unused_, virErrorPtr e _unused_)
{
}

int driver_error(struct error *err, const char *what, const char *id)
{
    virErrorPtr e = virGetLastError();
    const char *text = e && e->message ? e->message : "libvirt gave no reason";
    enum error_code code = ERR_BACKEND_FAILED;

    if (e && e->code == VIR_ERR_NO_DOMAIN)
        return error_set(err, ESRCH, "%s '%s': no such VM", what, id);
    return error_set_code(err, code, "%s '%s': %s", what, id, text);
}

/* ---- libvirt's event loop ---- */

static void on_wake(int timer, void *userdata _unused_)
{
    (void)virEventUpdateTimeout(timer, -1);
}

static void *event_main(void *userdata)
{
    struct driver *d = userdata;

    while (!d->stop)
        if (virEventRunDefaultImpl() < 0)
            (void)sched_yield();
    return NULL;
}

static void on_migration(virConnectPtr conn _unused_, virDomainPtr dom, const char *event _unused_,
                         long long seconds _unused_, unsigned int micros _unused_,
                         const char *details, void *userdata)
{
    struct driver *d = userdata;
    const char *id = virDomainGetName(dom);
    json_t *json = details ? json_loads(details, 0, NULL) : NULL;
    const char *status = json_string_value(json_object_get(json, "status"));
    enum migration_state state = MIGRATION_RUNS;

    if (status && strcmp(status, "completed") == 0)
        state = MIGRATION_COMPLETED;
    else if (status && (strcmp(status, "failed") == 0 || strcmp(status, "cancelled") == 0))
        state = MIGRATION_FAILED;
    json_decref(json);
    if (state == MIGRATION_RUNS || !id)
        return;
    (void)pthread_mutex_lock(&d->lock);
    for (struct migration_wait *w = d->waits; w; w = w->next)
        if (strcmp(w->id, id) == 0)
            w->state = state;
    (void)pthread_cond_broadcast(&d->wake);
    (void)pthread_mutex_unlock(&d->lock);
}

void driver_migration_begin(struct driver *d, struct migration_wait *w, const char *id)
{
    (void)pthread_mutex_lock(&d->lock);
    *w = (struct migration_wait){.id = id, .state = MIGRATION_RUNS, .next = d->waits};
    d->waits = w;
    (void)pthread_mutex_unlock(&d->lock);
}

enum migration_state driver_migration_wait(struct driver *d, struct migration_wait *w,
                                           uint64_t until_usec)
{
    struct timespec at = {
        .tv_sec = (time_t)(until_usec / USEC_PER_SEC),
        .tv_nsec = (long)(until_usec % USEC_PER_SEC * 1000),
    };
    enum migration_state state;

    (void)pthread_mutex_lock(&d->lock);
    while (w->state == MIGRATION_RUNS)
        if (pthread_cond_timedwait(&d->wake, &d->lock, &at) != 0)
            break;
    state = w->state;
    (void)pthread_mutex_unlock(&d->lock);
    return state;
}

void driver_migration_end(struct driver *d, struct migration_wait *w)
{
    (void)pthread_mutex_lock(&d->lock);
    for (struct migration_wait **p = &d->waits; *p; p = &(*p)->next)
        if (*p == w) {
            *p = w->next;
            break;
        }
    (void)pthread_mutex_unlock(&d->lock);
}

/* ---- opening ---- */

static int find_emulator(const char *name, char *path, size_t size, struct error *err)
{
    const char *dirs = getenv("PATH");

    for (const char *p = dirs ? dirs : "/usr/local/bin:/usr/bin:/bin"; *p;) {
        size_t n = strcspn(p, ":");

        if (n > 0 && *p == '/' && (size_t)snprintf(path, size, "%.*s/%s", (int)n, p, name) < size &&
            access(path, X_OK) == 0)
            return 0;
        p += n;
        p += *p == ':';
    }
    return error_set_code(err, ERR_BACKEND_UNAVAILABLE,
                          "%s is not installed (Debian: apt install qemu-system-%s)", name,
                          strstr(name, "x86") ? "x86" : "arm");
}

/*
 * On a busy host libvirt's first question to QEMU was seen to fail for no reason that it could
 * tell; asked again it answers.
 */
static char *ask_capabilities(virConnectPtr conn, const struct driver_info *info)
{
    for (unsigned tries = 1;; tries++) {
        char *xml = virConnectGetDomainCapabilities(conn, info->emulator, info->machine->arch,
                                                    info->machine->type,
                                                    info->accel == ACCEL_KVM ? "kvm" : "qemu", 0);
        const virError *why = xml ? NULL : virGetLastError();

        if (xml || (why && why->domain != VIR_FROM_NONE) || tries == CAPABILITIES_TRIES)
            return xml;
        log_warning("libvirt does not tell the capabilities of '%s', and not why: asking again",
                    info->emulator);
    }
}

/* The machine type behind an alias, from libvirt's domain capabilities: <machine>…</machine>. */
static int pin_type(virConnectPtr conn, struct driver_info *info, struct error *err)
{
    static const char open_tag[] = "<machine>", close_tag[] = "</machine>";
    _cleanup_free_ char *xml = NULL;
    const char *from, *to;

    xml = ask_capabilities(conn, info);
    if (!xml)
        return driver_error(err, "ask for the capabilities of", info->emulator);
    from = strstr(xml, open_tag);
    to = from ? strstr(from, close_tag) : NULL;
    if (!to)
        return error_set_code(err, ERR_BACKEND_FAILED, "'%s' has no machine type '%s'",
                              info->emulator, info->machine->type);
    from += sizeof(open_tag) - 1;
    if ((size_t)(to - from) >= sizeof(info->type))
        return error_set(err, E2BIG, "machine type of '%s' is too long", info->emulator);
    memcpy(info->type, from, (size_t)(to - from));
    info->type[to - from] = '\0';
    return 0;
}

static int look(struct driver_info *info, struct error *err)
{
    struct accel_facts facts;
    int r;

    info->machine = machine_native();
    if (!info->machine)
        return error_set_code(err, ERR_BACKEND_UNAVAILABLE,
                              "no guest machine for this host's architecture");
    accel_look(&facts);
    r = accel_decide(&facts, &info->accel, info->why, sizeof(info->why), err);
    if (r < 0)
        return r;
    return find_emulator(info->machine->emulator, info->emulator, sizeof(info->emulator), err);
}

/*
 * "QEMU emulator version 7.2.22 (Debian …)". libvirt knows it too, but would look at every emulator
 * of the host to tell.
 */
static int ask_versions(struct driver_info *info, struct error *err)
{
    const char *argv[] = {info->emulator, "--version", NULL};
    struct spawn_options options = {
        .argv = argv, .stdin_fd = -EBADF, .stdout_fd = -EBADF, .stderr_fd = -EBADF};
    static const char mark[] = "version ";
    _cleanup_buf_ struct buf output;
    unsigned long lib = 0;
    const char *text;
    int r;

    buf_init(&output, 4096);
    r = spawn_run(&options, VERSION_USEC, &output, err);
    if (r < 0)
        return r;
    if (virGetVersion(&lib, NULL, NULL) < 0)
        return driver_error(err, "ask for the version of", "libvirt");
    text = strstr(buf_string(&output), mark);
    text = text ? text + sizeof(mark) - 1 : "of unknown version";
    (void)snprintf(info->version, sizeof(info->version), "QEMU %.*s, libvirt %lu.%lu.%lu",
                   (int)strcspn(text, " (\n"), text, lib / 1000000, lib / 1000 % 1000, lib % 1000);
    return 0;
}

/*
 * libvirt throws its cache of capabilities away when the host's CPUID data changed, and compares
 * more of it than is equal on all cores (leaf 0x1f names the core): opened on another core than the
 * last time, it would ask QEMU again, which takes seconds. So it is always opened on the same core.
 */
static bool pin_thread(cpu_set_t *ret_old, cpu_set_t *ret_one)
{
    int cpu = 0;

    if (sched_getaffinity(0, sizeof(*ret_old), ret_old) < 0)
        return false;
    while (cpu < CPU_SETSIZE && !CPU_ISSET(cpu, ret_old))
        cpu++;
    CPU_ZERO(ret_one);
    if (cpu < CPU_SETSIZE)
        CPU_SET(cpu, ret_one);
    return sched_setaffinity(0, sizeof(*ret_one), ret_one) == 0;
}

/* This thread and those that libvirt made meanwhile, which inherited it. */
static void unpin_threads(const cpu_set_t *old, const cpu_set_t *one)
{
    DIR *dir = opendir("/proc/self/task");
    struct dirent *e;

    (void)sched_setaffinity(0, sizeof(*old), old);
    while (dir && (e = readdir(dir)) != NULL) {
        cpu_set_t now;
        uint64_t tid;

        if (parse_u64(e->d_name, 1, INT32_MAX, &tid) < 0 ||
            sched_getaffinity((pid_t)tid, sizeof(now), &now) < 0 || !CPU_EQUAL(&now, one))
            continue;
        (void)sched_setaffinity((pid_t)tid, sizeof(*old), old);
    }
    if (dir)
        (void)closedir(dir);
}

static int connect_driver(struct driver *d, struct driver_info *info, virConnectPtr *ret,
                          struct error *err)
{
    _cleanup_free_ char *uri = string_printf("qemu:///embed?root=%s", d->root);
    virConnectPtr conn;
    cpu_set_t old, one;
    bool pinned;
    int r;

    if (!uri)
        return error_set(err, ENOMEM, "out of memory");
    pinned = pin_thread(&old, &one);
    conn = virConnectOpen(uri);
    if (pinned)
        unpin_threads(&old, &one);
    if (!conn) {
        r = driver_error(err, "open libvirt's QEMU driver in", d->root);
        if (!getpwnam("libvirt-qemu"))
            return error_set_code(err, ERR_BACKEND_UNAVAILABLE,
                                  "libvirt needs a user 'libvirt-qemu' to exist (adduser --system "
                                  "--group --no-create-home libvirt-qemu)");
        return r;
    }
    r = pin_type(conn, info, err);
    if (r >= 0)
        r = ask_versions(info, err);
    if (r >= 0) {
        d->event_id = virConnectDomainQemuMonitorEventRegister(conn, NULL, "MIGRATION",
                                                               on_migration, d, NULL, 0);
        if (d->event_id < 0)
            r = driver_error(err, "register for events of", info->emulator);
    }
    if (r < 0) {
        (void)virConnectClose(conn);
        return r;
    }
    *ret = conn;
    return 0;
}

/* Once per process; libvirt keeps no way back. */
static int start_library(struct driver *d, struct error *err)
{
    sigset_t all, old;
    int k;

    if (d->thread_runs)
        return 0;
    if (virInitialize() < 0)
        return error_set_code(err, ERR_BACKEND_FAILED, "libvirt cannot be initialised");
    virSetErrorFunc(NULL, ignore_error);
    if (virEventRegisterDefaultImpl() < 0)
        return driver_error(err, "register the event loop of", "libvirt");
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old); /* signals belong to the loop's thread */
    k = pthread_create(&d->thread, NULL, event_main, d);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (k != 0)
        return error_set(err, k, "start libvirt's event thread: %s", errno_text(k));
    d->thread_runs = true;
    return 0;
}

int driver_open(struct driver *d, const struct driver_info **ret_info, virConnectPtr *ret_conn,
                struct error *err)
{
    int r = 0, ticket;

    (void)pthread_mutex_lock(&d->open_lock);
    if (!d->conn) {
        struct driver_info info = {0};

        ticket = reaper_begin(d->reaper, NULL);
        r = look(&info, err);
        if (r >= 0)
            r = root_prepare(d->root, err);
        if (r >= 0)
            r = start_library(d, err);
        if (r >= 0)
            r = connect_driver(d, &info, &d->conn, err);
        if (r >= 0)
            d->info = info;
        reaper_end(d->reaper, ticket);
    }
    (void)pthread_mutex_unlock(&d->open_lock);
    if (r < 0)
        return r;
    if (ret_info)
        *ret_info = &d->info;
    if (ret_conn)
        *ret_conn = d->conn;
    return 0;
}

int driver_new(const char *state_dir, struct driver **ret, struct error *err)
{
    struct driver *d = calloc(1, sizeof(*d));
    pthread_condattr_t attr;
    int r;

    if (!d)
        return error_set(err, ENOMEM, "out of memory");
    d->event_id = -1;
    (void)pthread_mutex_init(&d->open_lock, NULL);
    (void)pthread_mutex_init(&d->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&d->wake, &attr);
    (void)pthread_condattr_destroy(&attr);
    /* libvirt logs every error to stderr as well, harmless ones of its start included. */
    (void)setenv("LIBVIRT_LOG_OUTPUTS", "4:file:/dev/null", /* overwrite= */ 0);
    d->root = string_printf("%s/qemu", state_dir);
    if (!d->root) {
        (void)driver_free(d);
        return error_set(err, ENOMEM, "out of memory");
    }
    r = reaper_new(d->root, &d->reaper, err);
    if (r < 0) {
        (void)driver_free(d);
        return r;
    }
    *ret = d;
    return 0;
}

struct driver *driver_free(struct driver *d)
{
    if (!d)
        return NULL;
    if (d->conn) {
        if (d->event_id >= 0)
            (void)virConnectDomainQemuMonitorEventDeregister(d->conn, d->event_id);
        (void)virConnectClose(d->conn);
    }
    if (d->thread_runs) {
        d->stop = true;
        (void)virEventAddTimeout(0, on_wake, NULL, NULL);
        (void)pthread_join(d->thread, NULL);
    }
    (void)reaper_free(d->reaper);
    if (d->conn)
        root_release(d->root);
    (void)pthread_cond_destroy(&d->wake);
    (void)pthread_mutex_destroy(&d->lock);
    (void)pthread_mutex_destroy(&d->open_lock);
    free(d->root);
    free(d);
    return NULL;
}

const char *driver_root(const struct driver *d)
{
    return d->root;
}

struct reaper *driver_reaper(struct driver *d)
{
    return d->reaper;
}
