#include "backend/qemu/qemu-machine.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/macros.h"

/*
 * x86_64: q35 without the parts that nobody uses. microvm starts 10 ms faster, but needs kernel
 * options (virtio-mmio on the command line, or ACPI without a PIT) that distribution kernels lack.
 * Nehalem is the x86-64-v2 level, which current distributions ask for; `max` is slower to emulate
 * and its meaning changes with QEMU.
 *
 * norandmaps: the emulator keeps translated code by virtual address, so with address randomisation
 * every program is translated anew at each start (37 ms for /bin/true, 4.4 ms without). The wall
 * around the guest is the VM, and with KVM the guest keeps its randomisation.
 *
 * aarch64: cortex-a57 boots several times faster than `max`, whose pointer authentication is
 * emulated.
 */
static const struct machine machines[] = {
    {
        .arch = "x86_64",
        .emulator = "qemu-system-x86_64",
        .type = "q35",
        .options = "sata=off,smbus=off",
        .features = "<acpi/><apic/><vmport state='off'/>",
        .tcg_cpu = "Nehalem",
        .tcg_flags = "rdrand",
        .boot_args = "console=ttyS0 quiet panic=-1 reboot=t,f random.trust_cpu=on",
        .tcg_args = "mitigations=off no_timer_check tsc=reliable norandmaps",
    },
    {
        .arch = "aarch64",
        .emulator = "qemu-system-aarch64",
        .type = "virt",
        .features = "<gic version='3'/>",
        .tcg_cpu = "cortex-a57",
        .tcg_flags = "",
        .boot_args = "console=ttyAMA0 quiet panic=-1 random.trust_cpu=on",
        .tcg_args = "mitigations=off norandmaps",
        .mmio = true,
    },
};

const struct machine *machine_find(const char *arch)
{
    for (size_t i = 0; i < ARRAY_SIZE(machines); i++)
        if (strcmp(machines[i].arch, arch) == 0)
            return &machines[i];
    return NULL;
}

const struct machine *machine_native(void)
{
    struct utsname u;

    return uname(&u) < 0 ? NULL : machine_find(u.machine);
}

/* x86 has a model name; arm64 only numbers, of which implementer and part tell cores apart. */
static void host_cpu_name(char *name, unsigned size)
{
    char line[512], implementer[32] = "", part[32] = "";
    FILE *f = fopen("/proc/cpuinfo", "re");

    (void)snprintf(name, size, "host");
    if (!f)
        return;
    while (fgets(line, sizeof(line), f)) {
        char *value = strchr(line, ':');

        line[strcspn(line, "\n")] = '\0';
        if (!value)
            continue;
        value += strspn(value, ": ");
        if (strncmp(line, "model name", 10) == 0) {
            (void)snprintf(name, size, "host %s", value);
            break;
        }
        if (strncmp(line, "CPU implementer", 15) == 0)
            (void)snprintf(implementer, sizeof(implementer), "%.31s", value);
        if (strncmp(line, "CPU part", 8) == 0)
            (void)snprintf(part, sizeof(part), "%.31s", value);
        if (*implementer && *part) {
            (void)snprintf(name, size, "host %s/%s", implementer, part);
            break;
        }
    }
    (void)fclose(f);
}

void machine_cpu_name(const struct machine *m, enum accel accel, char *name, unsigned size)
{
    switch (accel) {
    case ACCEL_KVM:
        host_cpu_name(name, size);
        return;
    case ACCEL_TCG:
        (void)snprintf(name, size, "%s%s%s", m->tcg_cpu, *m->tcg_flags ? "+" : "", m->tcg_flags);
        return;
    }
}
