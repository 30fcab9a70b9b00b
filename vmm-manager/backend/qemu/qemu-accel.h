#pragma once

#include <stdbool.h>

#include "base/error.h"

enum accel {
    ACCEL_TCG,
    ACCEL_KVM,
};
#define ACCEL_COUNT (ACCEL_KVM + 1)

/* What the host shows; apart from the decision so that tests can make hosts up. */
struct accel_facts {
    const char *forced;      /* HEARTH_ACCEL, weak; NULL or "": decide by facts */
    bool x86;                /* on x86 the CPU flags count as well */
    int kvm_errnum;          /* of opening /dev/kvm, 0: it opened */
    int kvm_api_version;     /* KVM_GET_API_VERSION, negative errno when it failed */
    bool cpu_virtualization; /* vmx or svm in /proc/cpuinfo; x86 only */
};

const char *accel_name(enum accel accel);

/* Looks at /dev/kvm, /proc/cpuinfo and the environment. */
void accel_look(struct accel_facts *ret);

/* `why` tells a person what decided. Fails only when HEARTH_ACCEL asks for what is not there. */
int accel_decide(const struct accel_facts *facts, enum accel *ret, char *why, unsigned why_size,
                 struct error *err);
