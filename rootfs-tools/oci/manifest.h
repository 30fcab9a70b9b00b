#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "oci/reference.h"

/*
 * Documents of a registry or an image layout: an index (also Docker's manifest list), which chooses
 * by platform, or a manifest, which names configuration and layers. Foreign bytes: everything that
 * is not as the standards say is ERR_IMAGE_INVALID.
 */
#define OCI_MANIFEST_BYTES_MAX ((size_t)4 * 1024 * 1024)
#define OCI_CONFIG_BYTES_MAX ((size_t)8 * 1024 * 1024)
#define OCI_LAYERS_MAX 512u
#define OCI_INDEX_MAX 1024u
#define OCI_INDEX_DEPTH_MAX 4u /* indexes in indexes */
#define OCI_BLOB_BYTES_MAX (UINT64_C(64) * 1024 * 1024 * 1024)

enum oci_kind {
    OCI_KIND_UNKNOWN, /* something we do not use: an attestation, an artifact */
    OCI_KIND_INDEX,
    OCI_KIND_MANIFEST,
    OCI_KIND_CONFIG,
    OCI_KIND_LAYER,
};

struct oci_descriptor {
    enum oci_kind kind;
    char digest[DIGEST_SIZE];
    uint64_t size;
    char os[32], architecture[32], variant[16]; /* "" when absent */
    char ref_name[REFERENCE_SIZE];              /* annotation of layouts, "" when absent */
};

struct oci_document {
    enum oci_kind kind;             /* INDEX or MANIFEST */
    struct oci_descriptor config;   /* of a manifest */
    struct oci_descriptor *entries; /* owned: manifests of an index, layers of a manifest */
    size_t n_entries;
};

void oci_document_done(struct oci_document *doc);
#define _cleanup_oci_document_ _cleanup_(oci_document_done)

/* `media_type` is what the transport said of it, or NULL. */
int oci_document_parse(const char *data, size_t size, const char *media_type,
                       struct oci_document *ret, struct error *err);

/* os/architecture[/variant]; NULL: of this machine. */
struct oci_platform {
    char os[32], architecture[32], variant[16];
};
int oci_platform_parse(const char *text, struct oci_platform *ret, struct error *err);

/* The entry of an index that fits best; NULL and err that lists what there is. Weak. */
const struct oci_descriptor *oci_index_choose(const struct oci_document *doc,
                                              const struct oci_platform *platform,
                                              struct error *err);

/* What a client asks a registry for. */
extern const char *const oci_accept[];
