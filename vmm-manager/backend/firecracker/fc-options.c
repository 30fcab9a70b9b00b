#include "backend/firecracker/fc-options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strv.h"

#define POOL_DEFAULT 2u
#define POOL_MAX 64u
#define RATE_MIN (64u * 1024u) /* less, and a guest does not get through its own start */
#define IOPS_MIN 10u

static const char *value_of(const char *name)
{
    const char *value = getenv(name);

    return value && value[0] ? value : NULL;
}

static int wrong(const char *name, const char *what, struct error *err)
{
    return error_set(err, EINVAL, "%s='%.64s' is not %s", name, getenv(name), what);
}

static int read_disk(struct fc_options *o, struct error *err)
{
    const char *rate = value_of("HEARTH_FC_DISK_RATE"), *ops = value_of("HEARTH_FC_DISK_IOPS");

    if (rate && (parse_size(rate, /* unit_bytes= */ 1, &o->disk_bytes_per_second) < 0 ||
                 o->disk_bytes_per_second < RATE_MIN || o->disk_bytes_per_second > INT64_MAX))
        return wrong("HEARTH_FC_DISK_RATE", "a number of bytes per second, 64K or more", err);
    if (ops && parse_u64(ops, IOPS_MIN, UINT32_MAX, &o->disk_ops_per_second) < 0)
        return wrong("HEARTH_FC_DISK_IOPS", "a number of operations per second, 10 or more", err);
    return 0;
}

static int read_switch(const char *name, bool *ret, struct error *err)
{
    const char *value = value_of(name);

    if (!value)
        return 0;
    if (strcmp(value, "0") != 0 && strcmp(value, "1") != 0)
        return wrong(name, "0 or 1", err);
    *ret = value[0] == '1';
    return 0;
}

int fc_options_read(struct fc_options *ret, struct error *err)
{
    struct fc_options o = {.pool_size = POOL_DEFAULT};
    const char *pool = value_of("HEARTH_FC_POOL"), *cpu = value_of("HEARTH_FC_CPU_TEMPLATE");
    uint64_t n;
    int r;

    if (pool) {
        if (parse_u64(pool, 0, POOL_MAX, &n) < 0)
            return wrong("HEARTH_FC_POOL", "a number from 0 to 64", err);
        o.pool_size = (unsigned)n;
    }
    if (cpu) {
        if (strlen(cpu) >= sizeof(o.cpu_template) ||
            cpu[strspn(cpu, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")])
            return wrong("HEARTH_FC_CPU_TEMPLATE", "the name of a CPU template", err);
        (void)snprintf(o.cpu_template, sizeof(o.cpu_template), "%s", cpu);
    }
    r = read_switch("HEARTH_FC_CLOCK_REALTIME", &o.clock_realtime, err);
    if (r >= 0)
        r = read_switch("HEARTH_FC_PAGER", &o.pager, err);
    if (r >= 0)
        r = read_disk(&o, err);
    if (r < 0)
        return r;
    *ret = o;
    return 0;
}
