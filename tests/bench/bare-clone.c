/*
 * Bare clones of a template through libvirt, for comparison: the same files, the same machine, the
 * fewest calls that bring a guest back, one after the other. Commands on stdin, one answer line of
 * JSON each:
 *
 *   clone       ends the clone before it, makes a new one: microseconds from the first call to its
 *               milestones; the copy of the disk comes before and is told apart
 *   ping COUNT  microseconds of each echo on the console of the last clone
 */
#include <fcntl.h>
#include <libvirt/libvirt-qemu.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backend/qemu/qemu-driver.h"
#include "backend/qemu/qemu-root.h"
#include "backend/qemu/qemu-xml.h"
#include "bare-console.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"

#define VM_ID "bare"
#define POLL_NSEC 500000
#define PINGS_MAX 10000u

struct bare {
    char *dir;                  /* owned: of the VM */
    char *template_dir, *image; /* weak */
    uint32_t cpus, memory_mib;
    struct driver *driver;          /* owned */
    const struct driver_info *info; /* weak */
    virConnectPtr conn;             /* weak */
    int console;                    /* owned */
    uint32_t pings;
};

struct marks {
    uint64_t disk, created, loaded, resumed, replied;
};

static int command(virDomainPtr dom, const char *text, char **ret, struct error *err)
{
    _cleanup_free_ char *reply = NULL;

    if (virDomainQemuMonitorCommand(dom, text, &reply, 0) < 0)
        return driver_error(err, "command QEMU of", VM_ID);
    if (strstr(reply, "\"error\""))
        return error_set(err, EIO, "QEMU: %s", reply);
    if (ret)
        *ret = TAKE_PTR(reply);
    return 0;
}

static int pass_state(struct bare *b, virDomainPtr dom, struct error *err)
{
    _cleanup_free_ char *path = string_printf("%s/state", b->template_dir), *reply = NULL;
    _cleanup_close_ int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -EBADF;
    unsigned int n_out = 0;
    int *out = NULL, r;

    if (fd < 0)
        return error_set(err, errno, "open '%s': %s", path, errno_text(errno));
    r = virDomainQemuMonitorCommandWithFiles(
        dom, "{\"execute\":\"getfd\",\"arguments\":{\"fdname\":\"state\"}}", 1, &fd, &n_out, &out,
        &reply, 0);
    free(out);
    return r < 0 ? driver_error(err, "pass the state to QEMU of", VM_ID) : 0;
}

static int await_state(virDomainPtr dom, struct error *err)
{
    for (;;) {
        _cleanup_free_ char *reply = NULL;
        const struct timespec pause = {.tv_nsec = POLL_NSEC};
        int r = command(dom, "{\"execute\":\"query-migrate\"}", &reply, err);

        if (r < 0)
            return r;
        if (strstr(reply, "\"completed\""))
            return 0;
        if (strstr(reply, "\"failed\""))
            return error_set(err, EIO, "QEMU cannot load the state: %s", reply);
        (void)nanosleep(&pause, NULL);
    }
}

static int load(struct bare *b, virDomainPtr dom, struct error *err)
{
    int r;

    r = command(dom,
                "{\"execute\":\"migrate-set-capabilities\",\"arguments\":{\"capabilities\":"
                "[{\"capability\":\"x-ignore-shared\",\"state\":true}]}}",
                NULL, err);
    if (r >= 0)
        r = pass_state(b, dom, err);
    if (r >= 0)
        r = command(dom, "{\"execute\":\"migrate-incoming\",\"arguments\":{\"uri\":\"fd:state\"}}",
                    NULL, err);
    return r < 0 ? r : await_state(dom, err);
}

static int describe(struct bare *b, const char *disk, const char *console, struct buf *xml,
                    struct error *err)
{
    _cleanup_free_ char *memory = string_printf("%s/memory", b->template_dir);
    _cleanup_free_ char *log = string_printf("%s/serial.log", b->dir);
    const struct vm_spec vm = {
        .id = VM_ID,
        .dir = b->dir,
        .cpus = b->cpus,
        .memory_mib = b->memory_mib,
        .image = b->image,
        .disk = disk,
    };
    const struct xml_spec spec = {
        .vm = &vm,
        .machine = b->info->machine,
        .accel = b->info->accel,
        .emulator = b->info->emulator,
        .type = b->info->type,
        .console_path = console,
        .log_path = log,
        .memory_file = memory,
        .incoming = true,
    };

    if (!memory || !log)
        return error_set(err, ENOMEM, "out of memory");
    return xml_build(&spec, xml, err);
}

/* Kills the clone, if there is one, and waits until libvirt has forgotten it too. */
static void end(struct bare *b)
{
    pid_t pid;
    _cleanup_close_ int fd = root_open_vm(driver_root(b->driver), VM_ID, &pid);
    virDomainPtr dom;

    b->console = fd_close(b->console);
    if (fd >= 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN};

        (void)pidfd_send_signal(fd, SIGKILL, NULL, 0);
        (void)poll(&p, 1, -1);
        (void)waitpid(pid, NULL, 0);
    }
    dom = virDomainLookupByName(b->conn, VM_ID);
    if (dom) {
        (void)virDomainDestroy(dom);
        (void)virDomainFree(dom);
    }
    (void)dir_remove(b->dir, NULL);
}

static int start(struct bare *b, const char *xml, const char *console, struct marks *m,
                 struct error *err)
{
    uint64_t from = clock_now_usec();
    virDomainPtr dom = virDomainCreateXML(b->conn, xml, VIR_DOMAIN_START_PAUSED);
    int r;

    if (!dom)
        return driver_error(err, "start", VM_ID);
    m->created = clock_now_usec() - from;
    r = load(b, dom, err);
    m->loaded = clock_now_usec() - from;
    if (r >= 0 && virDomainResume(dom) < 0)
        r = driver_error(err, "resume", VM_ID);
    m->resumed = clock_now_usec() - from;
    if (r >= 0) {
        b->console = bare_console_open(console, err);
        r = b->console < 0 ? b->console : 0;
    }
    m->replied = clock_now_usec() - from;
    (void)virDomainFree(dom);
    return r;
}

static int clone_one(struct bare *b, struct error *err)
{
    _cleanup_free_ char *from = string_printf("%s/disk", b->template_dir);
    _cleanup_free_ char *disk = string_printf("%s/disk", b->dir);
    _cleanup_free_ char *console = string_printf("%s/console.sock", b->dir);
    _cleanup_buf_ struct buf xml;
    uint64_t before;
    struct marks m = {0};
    int r;

    buf_init(&xml, XML_SIZE_MAX);
    if (!from || !disk || !console)
        return error_set(err, ENOMEM, "out of memory");
    end(b);
    r = dir_create(b->dir, 0700, err);
    before = clock_now_usec();
    if (r >= 0)
        r = file_copy_sparse(from, disk, 0600, err);
    m.disk = clock_now_usec() - before;
    if (r >= 0)
        r = describe(b, disk, console, &xml, err);
    if (r >= 0)
        r = start(b, buf_string(&xml), console, &m, err);
    if (r < 0)
        return r;
    (void)printf("{\"disk\": %llu, \"created\": %llu, \"loaded\": %llu, \"resumed\": %llu, "
                 "\"replied\": %llu}\n",
                 (unsigned long long)m.disk, (unsigned long long)m.created,
                 (unsigned long long)m.loaded, (unsigned long long)m.resumed,
                 (unsigned long long)m.replied);
    return 0;
}

static int ping(struct bare *b, uint64_t count, struct error *err)
{
    int r;

    (void)printf("[");
    for (uint64_t i = 0; i < count; i++) {
        uint64_t from = clock_now_usec();

        r = bare_console_ping(b->console, b->pings++, err);
        if (r < 0)
            return r;
        (void)printf("%s%llu", i ? ", " : "", (unsigned long long)(clock_now_usec() - from));
    }
    (void)printf("]\n");
    return 0;
}

static int serve(struct bare *b, struct error *err)
{
    char line[64];
    int r = 0;

    while (r >= 0 && fgets(line, sizeof(line), stdin)) {
        uint64_t count = 0;

        line[strcspn(line, "\n")] = '\0';
        if (strcmp(line, "clone") == 0)
            r = clone_one(b, err);
        else if (strncmp(line, "ping ", 5) == 0 && parse_u64(line + 5, 1, PINGS_MAX, &count) >= 0)
            r = ping(b, count, err);
        else
            r = error_set(err, EINVAL, "'%s': no such command", line);
        (void)fflush(stdout);
    }
    return r;
}

int main(int argc, char **argv)
{
    struct bare b = {.console = -EBADF};
    struct error err = {0};
    uint64_t cpus = 0, memory = 0;
    int r;

    if (argc != 6 || parse_u64(argv[4], 1, 64, &cpus) < 0 ||
        parse_u64(argv[5], 1, 1u << 20, &memory) < 0) {
        (void)fprintf(stderr, "usage: bare-clone DIR TEMPLATE-DIR IMAGE CPUS MEMORY-MIB\n");
        return 2;
    }
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1); /* libvirt waits for the end of QEMUs that we reap */
    b.dir = string_printf("%s/vm", argv[1]);
    b.template_dir = argv[2];
    b.image = argv[3];
    b.cpus = (uint32_t)cpus;
    b.memory_mib = (uint32_t)memory;
    r = driver_new(argv[1], &b.driver, &err);
    if (r >= 0)
        r = driver_open(b.driver, &b.info, &b.conn, &err);
    if (r >= 0) {
        r = serve(&b, &err);
        end(&b);
    }
    b.driver = driver_free(b.driver);
    free(b.dir);
    if (r < 0)
        (void)fprintf(stderr, "bare-clone: %s\n", err.text);
    return r < 0;
}
