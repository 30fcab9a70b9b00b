#include "backend/firecracker/fc-find.h"

#include <ctype.h>
#include <linux/kvm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/firecracker/fc-jail.h"
#include "backend/kvm.h"
#include "base/clock.h"
#include "base/paths.h"
#include "base/spawn.h"

static bool is_program(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

static bool try_path(char *ret, size_t size, const char *dir, size_t dir_length, const char *name)
{
    (void)snprintf(ret, size, "%.*s/%s", (int)dir_length, dir, name);
    if (is_program(ret))
        return true;
    ret[0] = '\0';
    return false;
}

/* The environment's word, then our own directory, then PATH. */
static bool look_for(const char *name, const char *variable, char *ret, size_t size)
{
    const char *value = getenv(variable), *path = getenv("PATH");
    char ours[4096];

    if (value && value[0]) {
        if (is_program(value)) {
            (void)snprintf(ret, size, "%s", value);
            return true;
        }
        return try_path(ret, size, value, strlen(value), name);
    }
    (void)snprintf(ours, sizeof(ours), "%s/../libexec/hearth", paths_program_dir());
    if (try_path(ret, size, ours, strlen(ours), name))
        return true;
    while (path && *path) {
        size_t length = strcspn(path, ":");

        if (length > 0 && try_path(ret, size, path, length, name))
            return true;
        path += length + (path[length] == ':');
    }
    return false;
}

int fc_version_compare(const char *a, const char *b)
{
    for (int part = 0; part < 3; part++) {
        unsigned long x = strtoul(a, NULL, 10), y = strtoul(b, NULL, 10);

        if (x != y)
            return x < y ? -1 : 1;
        a += strcspn(a, ".");
        b += strcspn(b, ".");
        a += *a == '.';
        b += *b == '.';
    }
    return 0;
}

/* First line of `firecracker --version`: "Firecracker v1.16.1". */
static int read_version(const char *program, char *ret, size_t size, struct error *err)
{
    const char *const argv[] = {program, "--version", NULL};
    struct spawn_options options = {.argv = argv, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1};
    _cleanup_buf_ struct buf output = {.max = 4096};
    const char *v;
    int r;

    r = spawn_run(&options, 10 * USEC_PER_SEC, &output, err);
    if (r < 0)
        return r;
    v = strstr(buf_string(&output), "Firecracker v");
    v = v ? v + strlen("Firecracker v") : NULL;
    if (!v || !isdigit((unsigned char)*v))
        return error_set_code(err, ERR_BACKEND_UNAVAILABLE,
                              "'%s' --version does not say which Firecracker it is", program);
    (void)snprintf(ret, size, "%.*s", (int)strspn(v, "0123456789."), v);
    return 0;
}

static void decide_jail(struct fc_programs *p)
{
    if (geteuid() != 0)
        (void)snprintf(p->not_jailed, sizeof(p->not_jailed), "not running as root");
    else if (!look_for("jailer", "HEARTH_JAILER", p->jailer, sizeof(p->jailer)))
        (void)snprintf(p->not_jailed, sizeof(p->not_jailed),
                       "no jailer beside firecracker or on PATH");
    else if (!fc_jail_cgroup_root())
        (void)snprintf(p->not_jailed, sizeof(p->not_jailed),
                       "no cgroup v2 tree is mounted at "
                       "/sys/fs/cgroup");
    else
        p->jailed = true;
}

int fc_find(struct fc_programs *ret, struct error *err)
{
    struct fc_programs p = {0};
    char real[4096], *slash;
    int r;

    if (!look_for("firecracker", "HEARTH_FIRECRACKER", p.firecracker, sizeof(p.firecracker)))
        return error_set_code(err, ERR_BACKEND_UNAVAILABLE,
                              "no firecracker program was found; run 'hearth firecracker install', "
                              "or put firecracker and jailer on PATH or set HEARTH_FIRECRACKER");
    /* The jailer names its directories after the file that it really is. */
    if (realpath(p.firecracker, real) && strlen(real) < sizeof(p.firecracker))
        (void)snprintf(p.firecracker, sizeof(p.firecracker), "%.255s", real);
    r = read_version(p.firecracker, p.version, sizeof(p.version), err);
    if (r < 0)
        return r;
    if (fc_version_compare(p.version, FC_VERSION_MIN) < 0)
        return error_set_code(err, ERR_BACKEND_UNAVAILABLE,
                              "'%s' is Firecracker %s; %s or newer is needed (older ones lose "
                              "vsock data after a restore); run 'hearth firecracker install'",
                              p.firecracker, p.version, FC_VERSION_MIN);
    slash = strrchr(p.firecracker, '/');
    if (!getenv("HEARTH_JAILER") && slash)
        (void)try_path(p.jailer, sizeof(p.jailer), p.firecracker, (size_t)(slash - p.firecracker),
                       "jailer");
    if (p.jailer[0] && geteuid() == 0 && fc_jail_cgroup_root())
        p.jailed = true;
    else
        decide_jail(&p);
    *ret = p;
    return 0;
}

int fc_check_kvm(struct error *err)
{
    struct kvm_facts kvm;

    kvm_look(&kvm);
    if (kvm.errnum == ENOENT)
        return error_set_code(err, ERR_BACKEND_UNAVAILABLE,
                              "this host has no /dev/kvm; enable virtualization (or nested "
                              "virtualization) or use the qemu backend");
    if (kvm.errnum)
        return error_set_code(err, ERR_BACKEND_UNAVAILABLE, "/dev/kvm cannot be opened: %s",
                              errno_text(kvm.errnum));
    if (kvm.api_version != KVM_API_VERSION)
        return error_set_code(err, ERR_BACKEND_UNAVAILABLE, "/dev/kvm is not the KVM we know");
    if (kvm_is_para_virtual(&kvm))
        return error_set_code(err, ERR_BACKEND_UNAVAILABLE,
                              "/dev/kvm is there but the CPU shows neither VMX nor SVM "
                              "(para-virtual KVM): stock guest kernels do not run on it; use the "
                              "qemu backend");
    return 0;
}
