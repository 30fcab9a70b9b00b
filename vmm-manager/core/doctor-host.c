#include <fcntl.h>
#include <linux/kvm.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "backend/kvm.h"
#include "base/fd.h"
#include "core/doctor-private.h"

#define CGROUP2_MAGIC 0x63677270
#define MEMORY_MIN_MIB 1024u
#define FILES_MIN 4096u

void doctor_check_user(struct doctor *d)
{
    bool root = geteuid() == 0;

    doctor_add(d, "root", root, DOCTOR_ERROR, "run hearthd as root", "uid %u", (unsigned)geteuid());
}

void doctor_check_arch(struct doctor *d)
{
    struct utsname name = {0};
    bool known;

    (void)uname(&name);
    known = strcmp(name.machine, "x86_64") == 0 || strcmp(name.machine, "aarch64") == 0;
    doctor_add(d, "arch", known, DOCTOR_ERROR, "x86_64 and aarch64 are supported", "%s, Linux %s",
               name.machine, name.release);
}

void doctor_check_kvm(struct doctor *d)
{
    const char *slow = "software emulation is used: works everywhere, several times slower";
    struct kvm_facts kvm;

    kvm_look(&kvm);
    if (kvm.errnum) {
        doctor_add(d, "kvm", false, DOCTOR_WARNING,
                   "use a host with virtualisation, or enable it in the firmware or hypervisor",
                   "/dev/kvm: %s; %s", errno_text(kvm.errnum), slow);
        return;
    }
    if (kvm.api_version != KVM_API_VERSION) {
        doctor_add(d, "kvm", false, DOCTOR_WARNING, "use a host with a current KVM",
                   "/dev/kvm speaks another version; %s", slow);
        return;
    }
    if (kvm_is_para_virtual(&kvm)) {
        doctor_add(d, "kvm", false, DOCTOR_WARNING, "use a host with hardware virtualisation",
                   "/dev/kvm is para-virtual and cannot run stock guest kernels; %s", slow);
        return;
    }
    doctor_add(d, "kvm", true, DOCTOR_INFO, NULL, "/dev/kvm is there");
}

void doctor_check_memory(struct doctor *d)
{
    struct sysinfo info = {0};
    uint64_t total_mib;

    (void)sysinfo(&info);
    total_mib = (uint64_t)info.totalram * info.mem_unit >> 20;
    doctor_add(d, "memory", total_mib >= MEMORY_MIN_MIB, DOCTOR_WARNING,
               "1 GiB is the least that is sensible", "%llu MiB, %ld CPUs",
               (unsigned long long)total_mib, sysconf(_SC_NPROCESSORS_ONLN));
}

void doctor_check_cgroup(struct doctor *d)
{
    static const char *const places[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    struct statfs fs;

    for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
        if (statfs(places[i], &fs) == 0 && fs.f_type == CGROUP2_MAGIC) {
            doctor_add(d, "cgroup", true, DOCTOR_INFO, NULL, "version 2 at %s", places[i]);
            return;
        }
    }
    doctor_add(d, "cgroup", false, DOCTOR_INFO, "boot the host with cgroup version 2",
               "version 2 is not mounted; limits of VMs on this host cannot be set");
}

void doctor_check_userfaultfd(struct doctor *d)
{
    _cleanup_close_ int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

    doctor_add(d, "userfaultfd", fd >= 0 || access("/dev/userfaultfd", R_OK) == 0, DOCTOR_INFO,
               "needed for lazy restore of hibernated sandboxes only", "%s",
               fd >= 0 ? "available" : errno_text(errno));
}

void doctor_check_files(struct doctor *d)
{
    struct rlimit limit = {0};

    (void)getrlimit(RLIMIT_NOFILE, &limit);
    doctor_add(d, "files", limit.rlim_cur >= FILES_MIN, DOCTOR_WARNING,
               "raise the limit of open files (ulimit -n)", "%llu open files",
               (unsigned long long)limit.rlim_cur);
}
