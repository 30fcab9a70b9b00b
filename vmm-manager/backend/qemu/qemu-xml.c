#include "backend/qemu/qemu-xml.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/strv.h"

/*
 * Translated code kept per VM, in MiB. It is touched as it fills, so it bounds memory per VM under
 * software emulation: a shell and its tools fit in 32, a big one only translates again.
 */
#define TB_CACHE_MIB 32
#define FIRST_PACK 4 /* device; those before have kept their places since there are snapshots */

int xml_escape(struct buf *out, const char *text, bool comma, struct error *err)
{
    int r = 0;

    for (const char *p = text; *p && r >= 0; p++) {
        unsigned char c = (unsigned char)*p;

        if (c < 0x20 || c == 0x7f)
            return error_set(err, EINVAL, "a control character in a name or path");
        switch (c) {
        case '&':
            r = buf_append_string(out, "&amp;");
            break;
        case '<':
            r = buf_append_string(out, "&lt;");
            break;
        case '>':
            r = buf_append_string(out, "&gt;");
            break;
        case '\'':
            r = buf_append_string(out, "&apos;");
            break;
        case '"':
            r = buf_append_string(out, "&quot;");
            break;
        case ',':
            r = buf_append_string(out, comma ? ",," : ",");
            break;
        default:
            r = buf_append(out, p, 1);
        }
    }
    return error_fill(err, r, "domain description");
}

/* Writes format with every '@' replaced by the next escaped string. */
static int put(struct buf *out, struct error *err, const char *format, const char *const *values)
{
    int r = 0;

    for (const char *p = format; *p && r >= 0; p++) {
        if (*p == '@')
            r = xml_escape(out, *values++, /* comma= */ false, err);
        else
            r = error_fill(err, buf_append(out, p, 1), "domain description");
    }
    return r;
}
#define PUT(format, ...) put(out, err, format, (const char *const[]){__VA_ARGS__})

/* Where the n-th device sits. On PCI they are plain functions of the root bus: no bridge to scan.
 */
static const char *address(const struct xml_spec *s, unsigned n, char text[96])
{
    if (s->machine->mmio)
        (void)snprintf(text, 96, "<address type='virtio-mmio'/>");
    else
        (void)snprintf(text, 96, "<address type='pci' domain='0' bus='0' slot='%u' function='0'/>",
                       n + 2);
    return text;
}

static int put_cpu(const struct xml_spec *s, struct buf *out)
{
    char flags[128], *next = flags, *flag;
    int r;

    if (s->accel == ACCEL_KVM)
        return buf_append_string(out, "<cpu mode='host-passthrough' check='none'/>");
    r = buf_printf(out,
                   "<cpu mode='custom' match='exact' check='none'>"
                   "<model fallback='forbid'>%s</model>",
                   s->machine->tcg_cpu);
    (void)snprintf(flags, sizeof(flags), "%s", s->machine->tcg_flags);
    while (r >= 0 && (flag = strsep(&next, ",")) != NULL)
        if (*flag)
            r = buf_printf(out, "<feature policy='require' name='%s'/>", flag);
    return r < 0 ? r : buf_append_string(out, "</cpu>");
}

static int put_head(const struct xml_spec *s, struct buf *out, struct error *err)
{
    int r;

    r = PUT("<domain type='@' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>"
            "<name>@</name>",
            s->accel == ACCEL_KVM ? "kvm" : "qemu", s->vm->id);
    if (r < 0)
        return r;
    r = buf_printf(out, "<memory unit='MiB'>%" PRIu32 "</memory><vcpu>%" PRIu32 "</vcpu>",
                   s->vm->memory_mib, s->vm->cpus);
    if (r < 0)
        return error_fill(err, r, "domain description");
    r = PUT("<os><type arch='@' machine='@'>hvm</type>", s->machine->arch, s->type);
    if (r >= 0 && !s->incoming)
        r = PUT("<kernel>@</kernel><initrd>@</initrd><cmdline>@@@</cmdline>", s->vm->kernel,
                s->vm->initramfs, s->machine->boot_args, s->accel == ACCEL_TCG ? " " : "",
                s->accel == ACCEL_TCG ? s->machine->tcg_args : "");
    if (r < 0)
        return r;
    r = buf_printf(out, "</os><features>%s", s->machine->features);
    if (r >= 0 && s->accel == ACCEL_TCG)
        r = buf_printf(out, "<tcg><tb-cache unit='MiB'>%d</tb-cache></tcg>", TB_CACHE_MIB);
    if (r >= 0)
        r = buf_append_string(out, "</features>");
    if (r >= 0)
        r = put_cpu(s, out);
    return error_fill(err, r, "domain description");
}

/* What the image is made of beside itself; read-only, shared by many VMs. */
static int put_packs(const struct xml_spec *s, struct buf *out, struct error *err)
{
    char a[96], target[] = "vdc";
    int r = 0;

    for (unsigned i = 0; r >= 0 && s->packs && s->packs[i]; i++, target[2]++) {
        if (target[2] > 'z')
            return error_set(err, E2BIG, "the image has too many layers of its own");
        r = PUT("<disk type='file' device='disk'><driver name='qemu' type='raw'/>"
                "<source file='@'/><target dev='@' bus='virtio'/><readonly/>",
                s->packs[i], target);
        if (r >= 0)
            r = error_fill(err, buf_printf(out, "%s</disk>", address(s, FIRST_PACK + i, a)),
                           "domain description");
    }
    return r;
}

static int put_devices(const struct xml_spec *s, struct buf *out, struct error *err)
{
    char a[4][96];
    int r;

    r = PUT("<on_poweroff>destroy</on_poweroff><on_reboot>destroy</on_reboot>"
            "<on_crash>destroy</on_crash><devices><emulator>@</emulator>",
            s->emulator);
    if (r < 0)
        return r;
    r = PUT("<disk type='file' device='disk'><driver name='qemu' type='raw'/>"
            "<source file='@'/><target dev='vda' bus='virtio'/><readonly/>",
            s->vm->image);
    if (r >= 0)
        r = buf_printf(out, "%s</disk>", address(s, 0, a[0]));
    /* unsafe: a flush of the guest need not reach the disk of the host; the sandbox does not
     * outlive a crash of the host anyway, and what is kept is synced when it is kept. */
    if (r >= 0)
        r = PUT("<disk type='file' device='disk'>"
                "<driver name='qemu' type='raw' cache='unsafe' discard='unmap'/>"
                "<source file='@'/><target dev='vdb' bus='virtio'/>",
                s->vm->disk);
    if (r >= 0)
        r = buf_printf(out, "%s</disk>", address(s, 1, a[1]));
    if (r >= 0)
        r = put_packs(s, out, err);
    if (r >= 0)
        r = buf_printf(out,
                       "<controller type='virtio-serial' index='0'>%s</controller>"
                       "<controller type='usb' model='none'/>",
                       address(s, 2, a[2]));
    if (r >= 0)
        r = PUT("<serial type='file'><source path='@' append='on'/></serial>"
                "<channel type='unix'><source mode='bind' path='@'/>"
                "<target type='virtio' name='hearth.console'/></channel>",
                s->log_path, s->console_path);
    if (r >= 0)
        r = buf_printf(out,
                       "<rng model='virtio'><backend model='random'>/dev/urandom</backend>%s</rng>"
                       "<memballoon model='none'/></devices>",
                       address(s, 3, a[3]));
    return error_fill(err, r, "domain description");
}

/*
 * The guest's memory is an object of ours in any case, so that it can be found from outside: see
 * process_ram(), which reads this.
 */
static int put_memory(const struct xml_spec *s, struct buf *out, struct error *err)
{
    int r;

    r = buf_printf(out,
                   "<qemu:arg value='-object'/><qemu:arg value='memory-backend-%s,"
                   "id=" XML_RAM_ID ",size=%" PRIu32 "M,share=%s",
                   s->memory_file ? "file" : "ram", s->vm->memory_mib,
                   s->memory_file && !s->incoming ? "on" : "off");
    if (r >= 0 && s->memory_file)
        r = buf_append_string(out, ",mem-path=");
    if (r >= 0 && s->memory_file)
        r = xml_escape(out, s->memory_file, /* comma= */ true, err);
    if (r >= 0)
        r = buf_append_string(out, "'/><qemu:arg value='-machine'/>"
                                   "<qemu:arg value='memory-backend=" XML_RAM_ID "'/>");
    return r;
}

/* What libvirt has no element for goes to QEMU's command line as it is. */
static int put_commandline(const struct xml_spec *s, struct buf *out, struct error *err)
{
    int r;

    r = buf_append_string(out, "<qemu:commandline>");
    if (r >= 0)
        r = put_memory(s, out, err);
    if (r >= 0 && s->machine->options)
        r = buf_printf(out, "<qemu:arg value='-machine'/><qemu:arg value='%s'/>",
                       s->machine->options);
    if (r >= 0 && s->machine->mmio)
        r = buf_append_string(out, "<qemu:arg value='-global'/>"
                                   "<qemu:arg value='virtio-mmio.force-legacy=false'/>");
    if (r >= 0 && s->incoming)
        r = buf_append_string(out, "<qemu:arg value='-incoming'/><qemu:arg value='defer'/>");
    if (r >= 0 && s->incoming && s->bare_state)
        r = buf_append_string(out, "<qemu:arg value='-global'/>"
                                   "<qemu:arg value='migration.send-configuration=off'/>");
    if (r >= 0)
        r = buf_append_string(out, "</qemu:commandline></domain>");
    return error_fill(err, r, "domain description");
}

int xml_build(const struct xml_spec *spec, struct buf *out, struct error *err)
{
    int r;

    r = put_head(spec, out, err);
    if (r >= 0)
        r = put_devices(spec, out, err);
    if (r >= 0)
        r = put_commandline(spec, out, err);
    return r;
}
