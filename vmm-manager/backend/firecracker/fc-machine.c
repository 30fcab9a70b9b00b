#include "backend/firecracker/fc-machine.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/macros.h"
#include "erofs/packs.h"

/* pci=off and the i8042 switches save probing time. */
#if defined(__x86_64__)
#define BOOT_ARGS                                                                                  \
    "console=ttyS0 quiet panic=-1 reboot=k hearth.off=reset pci=off i8042.noaux i8042.nomux "      \
    "i8042.nopnp "                                                                                 \
    "i8042.dumbkbd no_timer_check tsc=reliable random.trust_cpu=on"
#else
#define BOOT_ARGS "console=ttyS0 quiet panic=-1 reboot=k pci=off random.trust_cpu=on"
#endif

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

int fc_machine_boot(const struct vm_spec *spec, const struct fc_options *options,
                    struct fc_request requests[FC_REQUESTS_MAX])
{
    struct builder b = {.requests = requests};
    const char *cpu = options->cpu_template[0] ? options->cpu_template : NULL;

    add(&b, "PUT", "/machine-config",
        json_pack("{s:i, s:i, s:b, s:s*}", "vcpu_count", (int)spec->cpus, "mem_size_mib",
                  (int)spec->memory_mib, "smt", 0, "cpu_template", cpu));
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

void fc_pack_name(size_t number, char name[static FC_PACK_NAME_SIZE])
{
    (void)snprintf(name, FC_PACK_NAME_SIZE, "pack%zu", number);
}

/* Drives come in the order in which they are named; these after the disk, before the rest. */
int fc_machine_add_packs(struct fc_request requests[FC_REQUESTS_MAX], int *count, size_t n_packs)
{
    static const char *const paths[IMAGE_PACKS_MAX] = {
        "/drives/pack0", "/drives/pack1", "/drives/pack2", "/drives/pack3",
        "/drives/pack4", "/drives/pack5", "/drives/pack6", "/drives/pack7",
    };
    struct fc_request rest[FC_REQUESTS_MAX];
    struct builder b = {.requests = requests};
    char name[FC_PACK_NAME_SIZE];
    int n_rest;

    if (n_packs > ARRAY_SIZE(paths) || (size_t)*count + n_packs > FC_REQUESTS_MAX)
        return -E2BIG;
    while (b.count < *count && strcmp(requests[b.count].path, "/drives/disk") != 0)
        b.count++;
    b.count = MIN(b.count + 1, *count);
    n_rest = *count - b.count;
    memcpy(rest, requests + b.count, (size_t)n_rest * sizeof(rest[0]));
    for (size_t i = 0; i < n_packs; i++) {
        fc_pack_name(i, name);
        add(&b, "PUT", paths[i],
            json_pack("{s:s, s:s, s:b, s:b}", "drive_id", name, "path_on_host", name,
                      "is_root_device", 0, "is_read_only", 1));
    }
    memcpy(requests + b.count, rest, (size_t)n_rest * sizeof(rest[0]));
    *count = b.count + n_rest;
    return b.failed ? -ENOMEM : 0;
}

/*
 * A record of changed pages is kept from the load on, so that snapshots hold only those. It is not
 * part of a snapshot. On top of memory that is mapped privately it costs next to nothing: the first
 * write to a page is a fault with it and without.
 *
 * clock_realtime would let the guest's monotonic clock go on over the pause: a sleep or a time-out
 * of a hibernated command would be over at once. Wall clock is set by the thaw in any case.
 */
static json_t *load_body(const struct fc_load *load, const struct fc_options *options)
{
    json_t *body =
        json_pack("{s:s, s:{s:s, s:s}, s:b, s:b, s:{s:s}}", "snapshot_path", FC_NAME_STATE,
                  "mem_backend", "backend_type", load->pager ? "Uffd" : "File", "backend_path",
                  load->pager ? FC_NAME_PAGER : FC_NAME_MEMORY, "track_dirty_pages", 1, "resume_vm",
                  1, "vsock_override", "uds_path", "console.sock");
    int r = body ? 0 : -1;

    if (r == 0 && load->tap)
        r = json_object_set_new(
            body, "network_overrides",
            json_pack("[{s:s, s:s}]", "iface_id", "net", "host_dev_name", load->tap));
#if defined(__x86_64__)
    if (r == 0 && options->clock_realtime)
        r = json_object_set_new(body, "clock_realtime", json_true());
#else
    (void)options;
#endif
    if (r < 0) {
        json_decref(body);
        return NULL;
    }
    return body;
}

static json_t *bucket(uint64_t per_second)
{
    return per_second == 0
               ? json_null()
               : json_pack("{s:I, s:i}", "size", (json_int_t)per_second, "refill_time", 1000);
}

int fc_machine_restore(const struct fc_load *load, const struct fc_options *options,
                       struct fc_request requests[FC_REQUESTS_MAX])
{
    struct builder b = {.requests = requests};

    add(&b, "PUT", "/snapshot/load", load_body(load, options));
    if (options->disk_bytes_per_second > 0 || options->disk_ops_per_second > 0)
        add(&b, "PATCH", "/drives/disk",
            json_pack("{s:s, s:{s:o, s:o}}", "drive_id", "disk", "rate_limiter", "bandwidth",
                      bucket(options->disk_bytes_per_second), "ops",
                      bucket(options->disk_ops_per_second)));
    return finish(&b);
}

static void add_pause(struct builder *b)
{
    add(b, "PATCH", "/vm", json_pack("{s:s}", "state", "Paused"));
}

static void add_create(struct builder *b, const char *type, const char *state, const char *memory)
{
    add(b, "PUT", "/snapshot/create",
        json_pack("{s:s, s:s, s:s}", "snapshot_type", type, "snapshot_path", state, "mem_file_path",
                  memory));
}

int fc_machine_save(struct fc_request requests[FC_REQUESTS_MAX])
{
    struct builder b = {.requests = requests};

    add_pause(&b);
    add_create(&b, "Full", FC_NAME_STATE, FC_NAME_MEMORY);
    return finish(&b);
}

int fc_machine_snapshot(bool booted, struct fc_request requests[FC_REQUESTS_MAX])
{
    struct builder b = {.requests = requests};

    add_pause(&b);
    add_create(&b, booted ? "Full" : "Diff", FC_NAME_NEW_STATE, FC_NAME_CHANGED);
    return finish(&b);
}

int fc_machine_resume(struct fc_request requests[FC_REQUESTS_MAX])
{
    struct builder b = {.requests = requests};

    add(&b, "PATCH", "/vm", json_pack("{s:s}", "state", "Resumed"));
    return finish(&b);
}

int fc_machine_wake(bool booted, struct fc_request requests[FC_REQUESTS_MAX])
{
    struct builder b = {.requests = requests};

    add_create(&b, booted ? "Full" : "Diff", FC_NAME_NEW_STATE, FC_NAME_CHANGED);
    add(&b, "PATCH", "/vm", json_pack("{s:s}", "state", "Resumed"));
    return finish(&b);
}

int fc_machine_look(struct fc_request requests[FC_REQUESTS_MAX])
{
    requests[0] = (struct fc_request){.method = "GET", .path = "/"};
    return 1;
}
