#include "harness/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "oci/manifest.h"

/* Manifests and indexes of a registry. What is accepted keeps to its limits. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct oci_document doc = {0};
    struct oci_platform platform;
    struct error err = {0};

    if (oci_platform_parse("linux/amd64", &platform, NULL) < 0)
        abort();
    if (oci_document_parse((const char *)data, size, NULL, &doc, &err) < 0) {
        if (err.text[0] == '\0')
            abort();
        return 0;
    }
    if (doc.kind != OCI_KIND_INDEX && doc.kind != OCI_KIND_MANIFEST)
        abort();
    for (size_t i = 0; i < doc.n_entries; i++)
        if (!digest_is_valid(doc.entries[i].digest) || doc.entries[i].size > OCI_BLOB_BYTES_MAX)
            abort();
    if (doc.kind == OCI_KIND_INDEX)
        (void)oci_index_choose(&doc, &platform, &err);
    oci_document_done(&doc);
    return 0;
}
