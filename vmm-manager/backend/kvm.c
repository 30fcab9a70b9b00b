#include "backend/kvm.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/fd.h"

#if defined(__x86_64__)
/* The first "flags" line of /proc/cpuinfo holds " vmx" (Intel) or " svm" (AMD). */
static bool cpu_has_virtualization(void)
{
    char line[8192];
    bool found = false;
    FILE *f = fopen("/proc/cpuinfo", "re");

    if (!f)
        return false;
    while (fgets(line, sizeof(line), f)) {
        char *end;

        if (strncmp(line, "flags", 5) != 0)
            continue;
        end = strchr(line, '\n');
        if (end)
            *end = ' ';
        found = strstr(line, " vmx ") || strstr(line, " svm ");
        break;
    }
    (void)fclose(f);
    return found;
}
#endif

void kvm_look(struct kvm_facts *ret)
{
    _cleanup_close_ int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);

    *ret = (struct kvm_facts){.errnum = fd < 0 ? errno : 0, .api_version = -ENODEV};
#if defined(__x86_64__)
    ret->x86 = true;
    ret->cpu_virtualization = cpu_has_virtualization();
#endif
    if (fd >= 0) {
        int version = ioctl(fd, KVM_GET_API_VERSION, 0);

        ret->api_version = version < 0 ? -errno : version;
    }
}
