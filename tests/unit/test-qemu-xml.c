#include <stdlib.h>

#include "backend/qemu/qemu-xml.h"
#include "harness/test.h"

static const struct vm_spec vm = {
    .id = "sb-1",
    .dir = "/vm",
    .cpus = 2,
    .memory_mib = 512,
    .kernel = "/k/bzImage",
    .initramfs = "/k/init.cpio",
    .image = "/i/base.erofs",
    .disk = "/vm/disk",
};

static struct xml_spec spec_of(const char *arch)
{
    return (struct xml_spec){
        .vm = &vm,
        .machine = machine_find(arch),
        .accel = ACCEL_TCG,
        .emulator = "/usr/bin/qemu",
        .type = "pc-q35-7.2",
        .console_path = "/vm/console.sock",
        .log_path = "/vm/serial.log",
    };
}

/* The text of the domain, valid until the next call. */
static const char *build(const struct xml_spec *spec)
{
    static struct buf out;
    struct error err = {0};

    buf_done(&out);
    buf_init(&out, XML_SIZE_MAX);
    ASSERT_OK(xml_build(spec, &out, &err));
    return buf_string(&out);
}

#define ASSERT_HAS(text, part) ASSERT_TRUE(strstr(text, part) != NULL)
#define ASSERT_LACKS(text, part) ASSERT_TRUE(strstr(text, part) == NULL)

TEST(boots_a_template_on_shared_memory)
{
    struct xml_spec spec = spec_of("x86_64");
    const char *xml;

    spec.memory_file = "/t/memory";
    xml = build(&spec);
    ASSERT_HAS(xml, "<domain type='qemu'");
    ASSERT_HAS(xml, "<name>sb-1</name><memory unit='MiB'>512</memory><vcpu>2</vcpu>");
    ASSERT_HAS(xml, "machine='pc-q35-7.2'");
    ASSERT_HAS(xml, "<kernel>/k/bzImage</kernel><initrd>/k/init.cpio</initrd>");
    ASSERT_HAS(xml, "console=ttyS0");
    ASSERT_HAS(xml, "tsc=reliable");
    ASSERT_HAS(xml, "id=hearth.ram,size=512M,share=on,mem-path=/t/memory'");
    ASSERT_HAS(xml, "memory-backend=hearth.ram");
    ASSERT_HAS(xml, "<source file='/i/base.erofs'/><target dev='vda' bus='virtio'/><readonly/>");
    ASSERT_HAS(xml, "name='hearth.console'");
    ASSERT_HAS(xml, "<on_reboot>destroy</on_reboot>");
    ASSERT_LACKS(xml, "-incoming");
}

TEST(restores_a_clone_on_private_memory)
{
    struct xml_spec spec = spec_of("x86_64");
    const char *xml;

    spec.memory_file = "/t/memory";
    spec.incoming = true;
    xml = build(&spec);
    ASSERT_HAS(xml, "share=off,mem-path=/t/memory'");
    ASSERT_HAS(xml, "<qemu:arg value='-incoming'/><qemu:arg value='defer'/>");
    ASSERT_LACKS(xml, "<kernel>");
    ASSERT_LACKS(xml, "send-configuration");
    spec.bare_state = true;
    ASSERT_HAS(build(&spec), "migration.send-configuration=off");
}

TEST(boots_without_a_memory_file)
{
    struct xml_spec spec = spec_of("x86_64");
    const char *xml = build(&spec);

    ASSERT_LACKS(xml, "memory-backend-file");
    ASSERT_HAS(xml, "memory-backend-ram,id=hearth.ram,size=512M,share=off'");
}

TEST(uses_mmio_and_gic_on_arm)
{
    struct xml_spec spec = spec_of("aarch64");
    const char *xml = build(&spec);

    ASSERT_HAS(xml, "<gic version='3'/>");
    ASSERT_HAS(xml, "<address type='virtio-mmio'/>");
    ASSERT_HAS(xml, "virtio-mmio.force-legacy=false");
    ASSERT_HAS(xml, "<model fallback='forbid'>cortex-a57</model></cpu>");
    ASSERT_HAS(xml, "console=ttyAMA0");
    ASSERT_LACKS(xml, "type='pci'");
}

TEST(packs_of_the_image_come_after_the_disk)
{
    static char one[] = "/l/1.pack", two[] = "/l/2.pack";
    char *packs[] = {one, two, NULL};
    struct xml_spec spec = spec_of("x86_64");
    const char *xml, *disk, *first, *second;

    spec.packs = packs;
    xml = build(&spec);
    disk = strstr(xml, "<target dev='vdb'");
    first = strstr(xml, "<source file='/l/1.pack'/><target dev='vdc' bus='virtio'/><readonly/>"
                        "<address type='pci' domain='0' bus='0' slot='6'");
    second = strstr(xml, "<source file='/l/2.pack'/><target dev='vdd' bus='virtio'/><readonly/>"
                         "<address type='pci' domain='0' bus='0' slot='7'");
    ASSERT_TRUE(disk && first && second && disk < first && first < second);
}

TEST(gives_the_host_cpu_under_kvm)
{
    struct xml_spec spec = spec_of("x86_64");
    const char *xml;

    spec.accel = ACCEL_KVM;
    xml = build(&spec);
    ASSERT_HAS(xml, "<domain type='kvm'");
    ASSERT_HAS(xml, "<cpu mode='host-passthrough'");
    ASSERT_LACKS(xml, "tb-cache");
    ASSERT_LACKS(xml, "no_timer_check");
}

TEST(escapes_names_for_xml_and_for_option_lists)
{
    struct vm_spec odd = vm;
    struct xml_spec spec = spec_of("x86_64");
    const char *xml;

    odd.image = "/i/<a>&'b\".erofs";
    spec.vm = &odd;
    spec.memory_file = "/t/a,b'c";
    xml = build(&spec);
    ASSERT_HAS(xml, "<source file='/i/&lt;a&gt;&amp;&apos;b&quot;.erofs'/>");
    ASSERT_HAS(xml, "mem-path=/t/a,,b&apos;c'");
}

TEST(refuses_control_characters)
{
    struct vm_spec odd = vm;
    struct xml_spec spec = spec_of("x86_64");
    struct error err = {0};
    _cleanup_buf_ struct buf out;

    buf_init(&out, XML_SIZE_MAX);
    odd.disk = "/vm/a\nb";
    spec.vm = &odd;
    ASSERT_ERR(xml_build(&spec, &out, &err), EINVAL);
}

TEST(stops_at_its_limit)
{
    struct xml_spec spec = spec_of("x86_64");
    struct error err = {0};
    _cleanup_buf_ struct buf out;

    buf_init(&out, 512);
    ASSERT_ERR(xml_build(&spec, &out, &err), ENOBUFS);
    ASSERT_TRUE(err.errnum == ENOBUFS);
}
