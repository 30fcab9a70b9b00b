#include "backend/qemu/qemu-accel.h"

#include <assert.h>
#include <linux/kvm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/kvm.h"
#include "base/macros.h"

static const char *const accel_names[] = {
    [ACCEL_TCG] = "tcg",
    [ACCEL_KVM] = "kvm",
};
static_assert(ARRAY_SIZE(accel_names) == ACCEL_COUNT, "a name for every accelerator");

const char *accel_name(enum accel accel)
{
    return accel_names[accel];
}

void accel_look(struct accel_facts *ret)
{
    struct kvm_facts kvm;

    kvm_look(&kvm);
    *ret = (struct accel_facts){
        .forced = getenv("HEARTH_ACCEL"),
        .x86 = kvm.x86,
        .kvm_errnum = kvm.errnum,
        .kvm_api_version = kvm.api_version,
        .cpu_virtualization = kvm.cpu_virtualization,
    };
}

int accel_decide(const struct accel_facts *facts, enum accel *ret, char *why, unsigned why_size,
                 struct error *err)
{
    const char *forced = facts->forced && *facts->forced ? facts->forced : NULL;
    bool usable = false;
    char what[128];

    if (facts->kvm_errnum)
        (void)snprintf(what, sizeof(what), "/dev/kvm cannot be opened (%s)",
                       errno_text(facts->kvm_errnum));
    else if (facts->kvm_api_version != KVM_API_VERSION)
        (void)snprintf(what, sizeof(what), "/dev/kvm does not speak KVM API version 12");
    else if (facts->x86 && !facts->cpu_virtualization && !forced)
        /* A para-virtual KVM runs kernels made for it only: a stock kernel hangs. */
        (void)snprintf(what, sizeof(what), "/dev/kvm opens, but the CPU shows neither vmx nor svm");
    else
        usable = true;

    if (forced && strcmp(forced, "tcg") == 0) {
        *ret = ACCEL_TCG;
        (void)snprintf(why, why_size, "software emulation: HEARTH_ACCEL=tcg");
        return 0;
    }
    if (forced && strcmp(forced, "kvm") != 0)
        return error_set(err, EINVAL, "HEARTH_ACCEL is '%s', expected kvm or tcg", forced);
    if (forced && !usable)
        return error_set_code(err, ERR_BACKEND_UNAVAILABLE, "HEARTH_ACCEL=kvm, but %s", what);
    *ret = usable ? ACCEL_KVM : ACCEL_TCG;
    if (usable)
        (void)snprintf(why, why_size, "KVM%s", forced ? ": HEARTH_ACCEL=kvm" : "");
    else
        (void)snprintf(why, why_size, "software emulation: %s", what);
    return 0;
}
