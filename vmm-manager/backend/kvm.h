#pragma once

#include <stdbool.h>

/*
 * What this host shows of KVM: one look for all backends and for `hearth doctor`, so that they
 * agree. On x86 a /dev/kvm without VMX or SVM is para-virtual: it opens, but a stock kernel hangs
 * on it.
 */
struct kvm_facts {
    int errnum;              /* of opening /dev/kvm, 0: it opened */
    int api_version;         /* KVM_GET_API_VERSION, negative errno when it failed */
    bool x86;                /* the CPU flags count as well */
    bool cpu_virtualization; /* vmx or svm in /proc/cpuinfo; x86 only */
};

void kvm_look(struct kvm_facts *ret);

/* It opened and speaks the version we know, but runs only kernels made for it. */
static inline bool kvm_is_para_virtual(const struct kvm_facts *facts)
{
    return facts->x86 && !facts->cpu_virtualization;
}
