#include "backend/firecracker/fc-machine.h"

#include <stdbool.h>

/*
 * The serial line is for kernel messages and last words only: rate limited, so that a guest that
 * prints without end costs neither CPU nor disk. pci=off and the i8042 switches save probing time.
 */
#if defined(__x86_64__)
#define BOOT_ARGS                                                                                  \
    "console=ttyS0 quiet panic=-1 reboot=k hearth.off=reset pci=off i8042.noaux i8042.nomux "      \
    "i8042.nopnp "                                                                                 \
    "i8042.dumbkbd no_timer_check tsc=reliable random.trust_cpu=on"
#else
#define BOOT_ARGS "console=ttyS0 quiet panic=-1 reboot=k pci=off random.trust_cpu=on"
#endif

#define SERIAL_BYTES_PER_SECOND (64 * 1024)
#define SERIAL_BURST_BYTES (256 * 1024)

struct builder {
    struct fc_request *requests;
    int count;
    bool failed;
};

/* Steals body. */
static void add(struct builder *b, const char *method, const char *path, json_t *body)
{
    if (!body || b->count == FC_REQUESTS_MAX) {
        b->failed = true;
        json_decref(body);
        return;
    }
    b->requests[b->count++] = (struct fc_request){.method = method, .path = path, .body = body};
}

static int finish(struct builder *b)
{
    if (b->failed) {
        fc_requests_done(b->requests, b->count);
        return -ENOMEM;
    }
    return b->count;
}

void fc_requests_done(struct fc_request *requests, int count)
{
    for (int i = 0; i < count; i++) {
        json_decref(requests[i].body);
        requests[i].body = NULL;
    }
}

static void add_serial(struct builder *b)
{
    add(b, "PUT", "/serial",
        json_pack("{s:{s:i, s:i, s:i}}", "rate_limiter", "size", SERIAL_BYTES_PER_SECOND,
                  "one_time_burst", SERIAL_BURST_BYTES, "refill_time", 1000));
}

int fc_machine_boot(const struct vm_spec *spec, struct fc_request requests[FC_REQUESTS_MAX])
{
    struct builder b = {.requests = requests};

    add_serial(&b);
    add(&b, "PUT", "/machine-config",
        json_pack("{s:i, s:i, s:b}", "vcpu_count", (int)spec->cpus, "mem_size_mib",
                  (int)spec->memory_mib, "smt", 0));
    add(&b, "PUT", "/boot-source",
        json_pack("{s:s, s:s, s:s}", "kernel_image_path", "kernel", "initrd_path", "initramfs",
                  "boot_args", BOOT_ARGS));
    add(&b, "PUT", "/drives/image",
        json_pack("{s:s, s:s, s:b, s:b}", "drive_id", "image", "path_on_host", "image",
                  "is_root_device", 0, "is_read_only", 1));
    add(&b, "PUT", "/drives/disk",
        json_pack("{s:s, s:s, s:b, s:b, s:s}", "drive_id", "disk", "path_on_host", "disk",
                  "is_root_device", 0, "is_read_only", 0, "cache_type", "Unsafe"));
    add(&b, "PUT", "/vsock", json_pack("{s:i, s:s}", "guest_cid", 3, "uds_path", "console.sock"));
    add(&b, "PUT", "/entropy", json_object());
    add(&b, "PUT", "/balloon",
        json_pack("{s:i, s:b, s:i}", "amount_mib", 0, "deflate_on_oom", 1,
                  "stats_polling_interval_s", 0));
    add(&b, "PUT", "/actions", json_pack("{s:s}", "action_type", "InstanceStart"));
    return finish(&b);
}

int fc_machine_restore(struct fc_request requests[FC_REQUESTS_MAX])
{
    struct builder b = {.requests = requests};
    json_t *body = json_pack("{s:s, s:{s:s, s:s}, s:b}", "snapshot_path", "state", "mem_backend",
                             "backend_type", "File", "backend_path", "memory", "resume_vm", 1);

    add_serial(&b);
    add(&b, "PUT", "/snapshot/load", body);
    return finish(&b);
}

int fc_machine_save(struct fc_request requests[FC_REQUESTS_MAX])
{
    struct builder b = {.requests = requests};

    add(&b, "PATCH", "/vm", json_pack("{s:s}", "state", "Paused"));
    add(&b, "PUT", "/snapshot/create",
        json_pack("{s:s, s:s, s:s}", "snapshot_type", "Full", "snapshot_path", "state",
                  "mem_file_path", "memory"));
    return finish(&b);
}
