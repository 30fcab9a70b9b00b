#include "backend/qemu/qemu-verbs.h"

#include <fcntl.h>
#include <libvirt/virterror.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/qemu/qemu-qmp.h"
#include "backend/qemu/qemu-root.h"
#include "backend/qemu/qemu-snapshot.h"
#include "backend/qemu/qemu-state.h"
#include "backend/qemu/qemu-xml.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/strv.h"
#include "erofs/packs.h"

#define UNDO_MSEC 5000
#define FILE_MIN_BYTES ((rlim_t)64 << 20)
#define FORGET_MSEC 1 /* between two looks whether libvirt has forgotten a VM */
#define FORGET_TRIES 2000

void verb_domain_cleanup(virDomainPtr *dom)
{
    if (*dom)
        (void)virDomainFree(*dom);
}

void verb_request_done(struct verb_request *q)
{
    free(q->id);
    free(q->dir);
    free(q->kernel);
    free(q->initramfs);
    free(q->image);
    free(q->disk);
    free(q->memory_file);
    free(q->state_file);
}

int verb_paths(const char *dir, struct backend_vm *ret, struct error *err)
{
    struct backend_vm vm = {0};
    size_t n;

    n = (size_t)snprintf(vm.console_path, sizeof(vm.console_path), "%s/console.sock", dir);
    if (n >= sizeof(((struct sockaddr_un *)0)->sun_path))
        return error_set(err, ENAMETOOLONG,
                         "'%s/console.sock' is %zu bytes long, a Unix socket can have 107: use a "
                         "shorter state directory",
                         dir, n);
    n = (size_t)snprintf(vm.log_path, sizeof(vm.log_path), "%s/serial.log", dir);
    if (n >= sizeof(vm.log_path))
        return error_set(err, ENAMETOOLONG, "'%s/serial.log' is too long", dir);
    *ret = vm;
    return 0;
}

int verb_check(const struct verb_request *q, struct error *err)
{
    if (clock_now_usec() >= q->deadline_usec)
        return error_set(err, ETIMEDOUT, "'%s' was not ready in time", q->id);
    if (q->cancel)
        return error_set(err, ECANCELED, "'%s' was given up", q->id);
    return 0;
}

/* Ends what a failed start left behind, if anything, and lets libvirt forget it. */
static void undo_start(struct driver *d, const char *id, virDomainPtr dom)
{
    pid_t pid;
    _cleanup_close_ int fd = root_open_vm(driver_root(d), id, &pid);

    if (fd >= 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN};

        (void)pidfd_send_signal(fd, SIGKILL, NULL, 0);
        (void)poll(&p, 1, UNDO_MSEC);
        (void)waitpid(pid, NULL, WNOHANG);
    }
    if (dom)
        (void)virDomainDestroy(dom);
}

/*
 * libvirt may still be busy forgetting a VM of the same name that was killed a moment ago.
 * Destroying it waits for most of that; the last step is announced to nobody.
 */
static int make_room(struct driver *d, virConnectPtr conn, const struct verb_request *q,
                     struct error *err)
{
    _cleanup_close_ int fd = root_open_vm(driver_root(d), q->id, NULL);

    if (fd >= 0)
        return error_set(err, EEXIST, "'%s' runs already", q->id);
    for (;;) {
        _cleanup_domain_ virDomainPtr old = virDomainLookupByName(conn, q->id);
        int r = verb_check(q, err);

        if (!old || r < 0)
            return r;
        if (virDomainDestroy(old) < 0)
            (void)poll(NULL, 0, FORGET_MSEC);
    }
}

/*
 * A name that libvirt is about to give up is not found any more, but still taken. That fails before
 * anything is started, with a code that no QEMU that does not start has.
 */
static int create(virConnectPtr conn, const struct verb_request *q, const char *xml,
                  virDomainPtr *ret, struct error *err)
{
    unsigned flags = q->state_file ? VIR_DOMAIN_START_PAUSED : 0;

    for (unsigned tries = 0;; tries++) {
        const virError *why;

        *ret = virDomainCreateXML(conn, xml, flags);
        if (*ret)
            return 0;
        why = virGetLastError();
        if (!why || why->code != VIR_ERR_OPERATION_FAILED || tries == FORGET_TRIES ||
            verb_check(q, NULL) < 0)
            return driver_error(err, "start", q->id);
        (void)poll(NULL, 0, FORGET_MSEC);
    }
}

static int create_domain(struct driver *d, const struct verb_request *q, struct backend_vm *vm,
                         bool bare_state, virDomainPtr *ret, struct error *err)
{
    _cleanup_strv_ char **packs = NULL;
    _cleanup_buf_ struct buf xml;
    const struct driver_info *info;
    virConnectPtr conn;
    bool incoming = q->state_file != NULL;
    int r;

    buf_init(&xml, XML_SIZE_MAX);
    r = image_packs_find(q->image, &packs, err);
    if (r >= 0)
        r = driver_open(d, &info, &conn, err);
    if (r < 0)
        return r;
    struct vm_spec spec = {
        .id = q->id,
        .dir = q->dir,
        .cpus = q->cpus,
        .memory_mib = q->memory_mib,
        .kernel = q->kernel,
        .initramfs = q->initramfs,
        .image = q->image,
        .disk = q->disk,
    };
    struct xml_spec domain = {
        .vm = &spec,
        .packs = packs,
        .machine = info->machine,
        .accel = info->accel,
        .emulator = info->emulator,
        .type = info->type,
        .console_path = vm->console_path,
        .log_path = vm->log_path,
        .memory_file = q->memory_file,
        .incoming = incoming,
        .bare_state = bare_state,
    };
    r = xml_build(&domain, &xml, err);
    if (r < 0)
        return r;
    r = make_room(d, conn, q, err);
    if (r < 0)
        return r;
    (void)unlink(vm->log_path);
    return create(conn, q, buf_string(&xml), ret, err);
}

static int load_state(struct driver *d, const struct verb_request *q, bool bare, virDomainPtr dom,
                      struct error *err)
{
    _cleanup_close_ int fd = open(q->state_file, O_RDONLY | O_CLOEXEC);
    int r;

    if (fd < 0)
        return error_set(err, errno, "open '%s': %s", q->state_file, errno_text(errno));
    r = verb_check(q, err);
    if (r < 0)
        return r;
    return qmp_migrate_in(d, dom, fd, /* ignore_shared= */ !bare, q->deadline_usec, err);
}

/* Why a start failed: too late, or what QEMU itself said last. */
static int explain(struct driver *d, const struct verb_request *q, int r, struct error *err)
{
    struct error why = *err;
    char words[200];

    if (r == -ETIMEDOUT || r == -ECANCELED || r == -EEXIST)
        return r;
    if (clock_now_usec() >= q->deadline_usec)
        return error_set(err, ETIMEDOUT, "'%s' was not ready in time: %s", q->id, why.text);
    if (q->cancel)
        return error_set(err, ECANCELED, "'%s' was given up", q->id);
    if (why.code == ERR_BACKEND_FAILED && !strstr(why.text, "qemu-system") &&
        root_last_words(driver_root(d), q->id, words, sizeof(words)) >= 0)
        return error_set_code(err, ERR_BACKEND_FAILED, "%s: %s", why.text, words);
    return r;
}

/* QEMU with all that the guest is made of. */
static int start(struct driver *d, struct verb_request *q, struct backend_vm *vm, virDomainPtr *ret,
                 struct error *err)
{
    bool bare = false;
    int r = 0;

    if (q->state_file)
        r = state_is_bare(q->state_file, &bare, err);
    if (r >= 0)
        r = create_domain(d, q, vm, bare, ret, err);
    if (r >= 0 && q->pages)
        r = snapshot_install(d, q, err);
    if (r >= 0 && q->state_file)
        r = load_state(d, q, bare, *ret, err);
    return r;
}

/*
 * The serial log is kept short while a daemon lives. Without one it cannot become longer than the
 * disk is, the longest file that QEMU has to write: a guest that goes on ends with a signal.
 */
static void limit_files(pid_t pid, const char *disk)
{
    struct stat st;

    if (stat(disk, &st) < 0)
        return;
    const struct rlimit limit = {
        .rlim_cur = MAX((rlim_t)st.st_size, FILE_MIN_BYTES),
        .rlim_max = RLIM_INFINITY,
    };
    (void)prlimit(pid, RLIMIT_FSIZE, &limit, NULL);
}

int verb_start(struct driver *d, struct verb_request *q, struct backend_vm *ret, int *ret_pidfd,
               struct error *err)
{
    _cleanup_domain_ virDomainPtr dom = NULL;
    struct backend_vm vm;
    int r, fd = -EBADF, ticket;

    r = verb_paths(q->dir, &vm, err);
    if (r < 0)
        return r;
    r = verb_check(q, err);
    if (r < 0)
        return r;
    ticket = reaper_begin(driver_reaper(d), q->id);
    if (ticket < 0)
        return error_set(err, EAGAIN, "too many VMs are being started");
    r = start(d, q, &vm, &dom, err);
    if (r >= 0) {
        fd = root_open_vm(driver_root(d), q->id, &vm.pid);
        if (fd < 0)
            r = error_set_code(err, ERR_BACKEND_FAILED, "QEMU of '%s' ended at once", q->id);
        else
            limit_files(vm.pid, q->disk);
    }
    if (r < 0 && r != -EEXIST)
        undo_start(d, q->id, dom);
    if (r < 0)
        r = explain(d, q, r, err);
    reaper_end(driver_reaper(d), ticket);
    if (r < 0)
        return r;
    *ret = vm;
    *ret_pidfd = fd;
    return 0;
}

int verb_find(struct driver *d, const char *id, virDomainPtr *ret, struct error *err)
{
    virConnectPtr conn;
    int r;

    r = driver_open(d, NULL, &conn, err);
    if (r < 0)
        return r;
    *ret = virDomainLookupByName(conn, id);
    return *ret ? 0 : driver_error(err, "find", id);
}

int verb_save(struct driver *d, const struct verb_request *q, struct error *err)
{
    _cleanup_domain_ virDomainPtr dom = NULL;
    _cleanup_close_ int fd = -EBADF;
    int r;

    r = verb_find(d, q->id, &dom, err);
    if (r < 0)
        return r;
    fd = open(q->state_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_set(err, errno, "create '%s': %s", q->state_file, errno_text(errno));
    r = verb_check(q, err);
    if (r < 0)
        return r;
    if (virDomainSuspend(dom) < 0)
        return driver_error(err, "pause", q->id);
    r = verb_check(q, err);
    if (r < 0)
        return r;
    r = qmp_migrate_out(d, dom, fd, q->deadline_usec, err);
    if (r < 0)
        return r;
    if (fsync(fd) < 0)
        return error_set(err, errno, "write '%s': %s", q->state_file, errno_text(errno));
    return 0;
}

int verb_pause(struct driver *d, const char *id, struct error *err)
{
    _cleanup_domain_ virDomainPtr dom = NULL;
    int r;

    r = verb_find(d, id, &dom, err);
    if (r < 0)
        return r;
    return virDomainSuspend(dom) < 0 ? driver_error(err, "pause", id) : 0;
}

int verb_resume(struct driver *d, const char *id, struct error *err)
{
    _cleanup_domain_ virDomainPtr dom = NULL;
    int r;

    r = verb_find(d, id, &dom, err);
    if (r < 0)
        return r;
    return virDomainResume(dom) < 0 ? driver_error(err, "resume", id) : 0;
}

int verb_adopt(struct driver *d, const struct verb_request *q, struct backend_vm *ret,
               int *ret_pidfd, struct error *err)
{
    struct backend_vm vm;
    int r, fd;

    r = verb_paths(q->dir, &vm, err);
    if (r < 0)
        return r;
    /* Opening the driver makes libvirt take the VM back; nothing else is needed of it here. */
    r = driver_open(d, NULL, NULL, err);
    if (r < 0)
        return r;
    fd = root_open_vm(driver_root(d), q->id, &vm.pid);
    if (fd < 0)
        return error_set(err, ESRCH, "'%s' no longer runs", q->id);
    *ret = vm;
    *ret_pidfd = fd;
    return 0;
}
