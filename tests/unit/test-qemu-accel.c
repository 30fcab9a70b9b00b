#include <stdio.h>

#include "backend/qemu/qemu-accel.h"
#include "backend/qemu/qemu-machine.h"
#include "harness/test.h"

static enum accel decide(struct accel_facts facts, char why[160])
{
    enum accel accel = ACCEL_TCG;

    ASSERT_OK(accel_decide(&facts, &accel, why, 160, NULL));
    return accel;
}

TEST(chooses_kvm_where_the_cpu_has_virtualization)
{
    char why[160];

    ASSERT_EQ(
        decide((struct accel_facts){.x86 = true, .kvm_api_version = 12, .cpu_virtualization = true},
               why),
        ACCEL_KVM);
    ASSERT_STREQ(why, "KVM");
}

TEST(chooses_emulation_on_para_virtual_kvm)
{
    char why[160];

    ASSERT_EQ(decide((struct accel_facts){.x86 = true, .kvm_api_version = 12}, why), ACCEL_TCG);
    ASSERT_STREQ(why, "software emulation: /dev/kvm opens, but the CPU shows neither vmx nor svm");
}

TEST(needs_no_cpu_flag_on_arm)
{
    char why[160];

    ASSERT_EQ(decide((struct accel_facts){.kvm_api_version = 12}, why), ACCEL_KVM);
}

TEST(chooses_emulation_without_a_device)
{
    char why[160];

    ASSERT_EQ(decide((struct accel_facts){.kvm_errnum = ENOENT, .kvm_api_version = -ENODEV}, why),
              ACCEL_TCG);
    ASSERT_TRUE(strstr(why, "/dev/kvm cannot be opened"));
}

TEST(chooses_emulation_on_a_strange_api_version)
{
    char why[160];

    ASSERT_EQ(decide((struct accel_facts){.kvm_api_version = 11}, why), ACCEL_TCG);
    ASSERT_TRUE(strstr(why, "version 12"));
}

TEST(obeys_the_environment)
{
    char why[160];

    ASSERT_EQ(decide((struct accel_facts){.forced = "tcg", .kvm_api_version = 12}, why), ACCEL_TCG);
    ASSERT_EQ(
        decide((struct accel_facts){.forced = "kvm", .x86 = true, .kvm_api_version = 12}, why),
        ACCEL_KVM);
    ASSERT_EQ(decide((struct accel_facts){.forced = "", .kvm_errnum = EACCES}, why), ACCEL_TCG);
}

TEST(refuses_what_the_environment_asks_in_vain)
{
    struct accel_facts facts = {.forced = "kvm", .kvm_errnum = EACCES};
    struct error err = {0};
    enum accel accel;
    char why[160];

    ASSERT_ERR(accel_decide(&facts, &accel, why, sizeof(why), &err), ENODEV);
    ASSERT_EQ(err.code, ERR_BACKEND_UNAVAILABLE);
    error_clear(&err);
    facts.forced = "xen";
    ASSERT_ERR(accel_decide(&facts, &accel, why, sizeof(why), &err), EINVAL);
    ASSERT_TRUE(strstr(err.text, "'xen'"));
}

TEST(looks_at_this_host)
{
    struct accel_facts facts;

    accel_look(&facts);
    ASSERT_TRUE(facts.kvm_errnum > 0 || facts.kvm_api_version != 0);
}

TEST(knows_both_architectures)
{
    char name[64];
    const struct machine *x86 = machine_find("x86_64"), *arm = machine_find("aarch64");

    ASSERT_TRUE(x86 && arm && !machine_find("riscv64"));
    ASSERT_FALSE(x86->mmio);
    ASSERT_TRUE(arm->mmio);
    machine_cpu_name(x86, ACCEL_TCG, name, sizeof(name));
    ASSERT_STREQ(name, "Nehalem+rdrand");
    machine_cpu_name(arm, ACCEL_TCG, name, sizeof(name));
    ASSERT_STREQ(name, "cortex-a57");
    machine_cpu_name(x86, ACCEL_KVM, name, sizeof(name));
    ASSERT_TRUE(strncmp(name, "host", 4) == 0);
}
