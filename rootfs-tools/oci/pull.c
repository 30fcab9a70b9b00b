#include "oci/pull.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"
#include "erofs/store.h"
#include "oci/manifest.h"
#include "oci/registry.h"
#include "oci/unpackers.h"

/* Progress: 0 to 5 looking, to 90 downloading, then the rest of the unpacking. */
#define PERCENT_LOOKED 5
#define PERCENT_LOADED 90

struct pull {
    const struct pull_options *options; /* weak */
    struct reference ref;
    struct oci_platform platform;
    struct registry *registry; /* owned */
    _Atomic bool stop;
    struct oci_document manifest;
    struct record record;
    struct unpackers *unpackers;        /* owned */
    struct registry_transfer *transfer; /* owned */
    char (*paths)[256];                 /* owned */
    size_t *claims;                     /* owned */
    int hold_fd;                        /* owned */
    int percent;
    struct error err; /* from inside of callbacks */
};

static void pull_done(struct pull *p)
{
    atomic_store(&p->stop, true);
    (void)unpackers_free(p->unpackers);
    (void)registry_close(p->registry);
    oci_document_done(&p->manifest);
    record_done(&p->record);
    free(p->transfer);
    free(p->paths);
    free(p->claims);
    p->hold_fd = fd_close(p->hold_fd);
}

static void progress(struct pull *p, int percent, const char *what)
{
    if (p->options->cancel && atomic_load(p->options->cancel))
        atomic_store(&p->stop, true);
    if (percent <= p->percent && percent < 100)
        return;
    p->percent = percent;
    if (p->options->progress)
        p->options->progress(percent, what, p->options->userdata);
}

/* ---- manifest and configuration ---- */

/* From a tag or digest through indexes to the manifest of this platform. */
static int get_manifest(struct pull *p, struct error *err)
{
    char wanted[129], media_type[256], digest[DIGEST_SIZE];

    (void)snprintf(wanted, sizeof(wanted), "%s", p->ref.digest[0] ? p->ref.digest : p->ref.tag);
    for (unsigned depth = 0; depth <= OCI_INDEX_DEPTH_MAX; depth++) {
        _cleanup_buf_ struct buf text = {.max = OCI_MANIFEST_BYTES_MAX};
        _cleanup_oci_document_ struct oci_document doc = {0};
        const struct oci_descriptor *chosen;
        int r = registry_manifest(p->registry, wanted, &text, media_type, digest, err);

        if (r == 0)
            r = oci_document_parse(buf_string(&text), text.size, media_type, &doc, err);
        if (r < 0)
            return r;
        if (depth == 0) /* what the reference means, for all platforms */
            memcpy(p->record.digest, digest, sizeof(p->record.digest));
        if (doc.kind == OCI_KIND_MANIFEST) {
            p->manifest = doc;
            doc = (struct oci_document){0};
            return 0;
        }
        chosen = oci_index_choose(&doc, &p->platform, err);
        if (!chosen)
            return -ENOENT;
        (void)snprintf(wanted, sizeof(wanted), "%s", chosen->digest);
    }
    return error_set_code(err, ERR_IMAGE_INVALID, "indexes are nested more than %u deep",
                          OCI_INDEX_DEPTH_MAX);
}

static int get_config(struct pull *p, struct error *err)
{
    _cleanup_buf_ struct buf text = {.max = OCI_CONFIG_BYTES_MAX};
    struct image_config *config = &p->record.config;
    int r = registry_blob(p->registry, &p->manifest.config, &text, err);

    if (r == 0)
        r = image_config_parse(buf_string(&text), text.size, config, &p->record.layers, err);
    if (r < 0)
        return r;
    if (strv_length(p->record.layers) != p->manifest.n_entries)
        return error_set_code(err, ERR_IMAGE_INVALID,
                              "the manifest has %zu layers and the configuration %zu",
                              p->manifest.n_entries, strv_length(p->record.layers));
    if (p->manifest.n_entries == 0)
        return error_set_code(err, ERR_IMAGE_INVALID, "the image has no layers");
    if (config->architecture[0] && strcmp(config->architecture, p->platform.architecture) != 0)
        return error_set_code(err, ERR_IMAGE_INVALID, "the image is for %s/%s, not for %s/%s",
                              config->os, config->architecture, p->platform.os,
                              p->platform.architecture);
    return 0;
}

/* ---- layers ---- */

static int on_begin(size_t i, void *userdata)
{
    struct pull *p = userdata;

    if (unpackers_failed(p->unpackers))
        return -ECANCELED;
    return unpackers_claim(p->unpackers, p->record.layers[i], &p->claims[i], &p->err);
}

static int on_blob(size_t i, void *userdata)
{
    struct pull *p = userdata;

    return unpackers_add(p->unpackers, p->claims[i], p->paths[i], -EBADF, &p->err);
}

static void on_bytes(uint64_t bytes, uint64_t total, void *userdata)
{
    struct pull *p = userdata;
    char what[96];

    if (unpackers_failed(p->unpackers))
        atomic_store(&p->stop, true);
    (void)snprintf(what, sizeof(what), "downloading %.1f of %.1f MB", (double)bytes / 1e6,
                   (double)total / 1e6);
    progress(p,
             PERCENT_LOOKED + (int)(total ? bytes * (PERCENT_LOADED - PERCENT_LOOKED) / total
                                          : PERCENT_LOADED - PERCENT_LOOKED),
             what);
}

static int prepare_transfers(struct pull *p, struct error *err)
{
    size_t n = p->manifest.n_entries;
    uint64_t total = 0;
    char dir[256];
    int r = store_path(dir, "download", err);

    if (r == 0)
        r = dir_create(dir, 0700, err);
    if (r < 0)
        return r;
    p->transfer = calloc(n, sizeof(p->transfer[0]));
    p->paths = calloc(n, sizeof(p->paths[0]));
    p->claims = calloc(n, sizeof(p->claims[0]));
    if (!p->transfer || !p->paths || !p->claims)
        return error_set(err, ENOMEM, "out of memory");
    for (size_t i = 0; r == 0 && i < n; i++) {
        const struct oci_descriptor *blob = &p->manifest.entries[i];

        r = store_hash_path(p->paths[i], "download", blob->digest + 7, "", err);
        p->transfer[i] = (struct registry_transfer){.blob = blob, .path = p->paths[i]};
        total += blob->size;
    }
    if (r == 0)
        r = unpackers_new(n, total, &p->unpackers, err);
    return r;
}

static int get_layers(struct pull *p, struct error *err)
{
    static const struct registry_callbacks callbacks = {on_begin, on_blob, on_bytes};
    int r = prepare_transfers(p, err), waited;

    if (r < 0)
        return r;
    r = registry_transfers(p->registry, p->transfer, p->manifest.n_entries, &callbacks, p, err);
    if (r < 0 && p->err.errnum)
        error_copy(err, &p->err);
    if (r < 0 && !unpackers_failed(p->unpackers))
        return r;
    progress(p, PERCENT_LOADED, "unpacking");
    /* The reason why an unpacker failed says more than that the download was stopped for it. */
    waited = unpackers_wait(p->unpackers, p->options->cancel, err);
    return waited < 0 ? waited : r;
}

static int pull(struct pull *p, struct image *ret, struct error *err)
{
    int r = registry_open(&p->ref, &p->stop, &p->registry, err);
    int lock;

    progress(p, 0, "asking the registry");
    if (r == 0)
        r = store_lock(&lock, err); /* makes the directories */
    if (r < 0)
        return r;
    (void)fd_close(lock);
    r = store_hold(&p->hold_fd, err);
    if (r == 0)
        r = get_manifest(p, err);
    if (r == 0)
        r = get_config(p, err);
    if (r < 0)
        return r;
    progress(p, PERCENT_LOOKED, "downloading");
    r = get_layers(p, err);
    if (r < 0)
        return r;
    p->record.size_bytes = store_layers_bytes(p->record.layers);
    return store_publish_layers(&p->record, ret, err);
}

int image_pull(const struct pull_options *options, struct image *ret, struct error *err)
{
    _cleanup_(pull_done) struct pull p = {.options = options, .hold_fd = -EBADF, .percent = -1};
    int r = reference_parse(options->reference, &p.ref, err);

    if (r == 0)
        r = oci_platform_parse(options->platform, &p.platform, err);
    if (r == 0 && reference_format(&p.ref, p.record.name, sizeof(p.record.name)) < 0)
        r = error_set(err, EINVAL, "'%.80s': the name is too long", options->reference);
    if (r < 0)
        return r;
    r = pull(&p, ret, err);
    p.hold_fd = fd_close(p.hold_fd);
    if (r >= 0)
        store_tidy(); /* the name may have pointed to other layers before */
    if (r < 0) {
        error_fill(err, r, "pull failed");
        error_wrap(err, "pull '%s'", options->reference);
        return r;
    }
    progress(&p, 100, "done");
    return 0;
}

int registry_login(const char *host, const char *user, const char *password, struct error *err)
{
    struct credentials c = {0};
    int r;

    if (!host_is_valid(host))
        return error_set(err, EINVAL, "'%.80s' is no host of a registry", host);
    if (strlen(user) >= sizeof(c.user) || strlen(password) >= sizeof(c.password) || !*user)
        return error_set(err, EINVAL, "user name or password are empty or too long");
    (void)snprintf(c.user, sizeof(c.user), "%s", user);
    (void)snprintf(c.password, sizeof(c.password), "%s", password);
    r = registry_check_login(host, &c, err);
    if (r == 0)
        r = credentials_store(host, &c, err);
    explicit_bzero(&c, sizeof(c));
    return r;
}

int registry_logout(const char *host, struct error *err)
{
    return credentials_remove(host, err);
}
