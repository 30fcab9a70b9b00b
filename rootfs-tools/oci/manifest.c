#include "oci/manifest.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#define OCI "application/vnd.oci.image."
#define DOCKER "application/vnd.docker."

#define TYPE_OCI_INDEX OCI "index.v1+json"
#define TYPE_OCI_MANIFEST OCI "manifest.v1+json"
#define TYPE_DOCKER_LIST DOCKER "distribution.manifest.list.v2+json"
#define TYPE_DOCKER_MANIFEST DOCKER "distribution.manifest.v2+json"

const char *const oci_accept[] = {TYPE_OCI_INDEX, TYPE_OCI_MANIFEST, TYPE_DOCKER_LIST,
                                  TYPE_DOCKER_MANIFEST, NULL};

static const struct {
    const char *name;
    enum oci_kind kind;
} media_types[] = {
    {TYPE_OCI_INDEX, OCI_KIND_INDEX},
    {TYPE_DOCKER_LIST, OCI_KIND_INDEX},
    {TYPE_OCI_MANIFEST, OCI_KIND_MANIFEST},
    {TYPE_DOCKER_MANIFEST, OCI_KIND_MANIFEST},
    {OCI "config.v1+json", OCI_KIND_CONFIG},
    {DOCKER "container.image.v1+json", OCI_KIND_CONFIG},
    {OCI "layer.v1.tar", OCI_KIND_LAYER},
    {OCI "layer.v1.tar+gzip", OCI_KIND_LAYER},
    {OCI "layer.v1.tar+zstd", OCI_KIND_LAYER},
    {DOCKER "image.rootfs.diff.tar", OCI_KIND_LAYER},
    {DOCKER "image.rootfs.diff.tar.gzip", OCI_KIND_LAYER},
    {DOCKER "image.rootfs.diff.tar.zstd", OCI_KIND_LAYER},
};

static enum oci_kind kind_of(const char *media_type)
{
    for (size_t i = 0; i < sizeof(media_types) / sizeof(media_types[0]); i++)
        if (strcmp(media_type, media_types[i].name) == 0)
            return media_types[i].kind;
    return OCI_KIND_UNKNOWN;
}

static void json_cleanup(json_t **json)
{
    json_decref(*json);
}

void oci_document_done(struct oci_document *doc)
{
    free(doc->entries);
    *doc = (struct oci_document){0};
}

static int invalid(struct error *err, const char *what)
{
    return error_set_code(err, ERR_IMAGE_INVALID, "the manifest is not valid: %s", what);
}

/* Copies a string member; one that is too long or no string is an error, an absent one "". */
static int take_string(const json_t *object, const char *key, char *to, size_t size)
{
    const json_t *value = json_object_get(object, key);

    to[0] = '\0';
    if (!value)
        return 0;
    if (!json_is_string(value) || json_string_length(value) >= size ||
        strlen(json_string_value(value)) != json_string_length(value))
        return -EINVAL;
    memcpy(to, json_string_value(value), json_string_length(value) + 1);
    return 0;
}

static int take_descriptor(const json_t *json, struct oci_descriptor *d, struct error *err)
{
    const json_t *size = json_object_get(json, "size");
    const json_t *platform = json_object_get(json, "platform");
    char media_type[256];

    if (!json_is_object(json) || take_string(json, "mediaType", media_type, 256) < 0 ||
        take_string(json, "digest", d->digest, sizeof(d->digest)) < 0)
        return invalid(err, "an entry is no descriptor");
    if (!digest_is_valid(d->digest))
        return invalid(err, "an entry has no sha256 digest");
    if (!json_is_integer(size) || json_integer_value(size) < 0 ||
        (uint64_t)json_integer_value(size) > OCI_BLOB_BYTES_MAX)
        return invalid(err, "an entry has no sensible size");
    d->size = (uint64_t)json_integer_value(size);
    d->kind = kind_of(media_type);
    if (platform &&
        (take_string(platform, "os", d->os, sizeof(d->os)) < 0 ||
         take_string(platform, "architecture", d->architecture, sizeof(d->architecture)) < 0 ||
         take_string(platform, "variant", d->variant, sizeof(d->variant)) < 0))
        return invalid(err, "an entry has no sensible platform");
    (void)take_string(json_object_get(json, "annotations"), "org.opencontainers.image.ref.name",
                      d->ref_name, sizeof(d->ref_name));
    return 0;
}

static int take_entries(const json_t *list, size_t max, struct oci_document *doc, struct error *err)
{
    size_t n = json_array_size(list);

    if (!json_is_array(list))
        return invalid(err, "its list of entries is missing");
    if (n > max)
        return error_set_code(err, ERR_LIMIT_EXCEEDED,
                              "the manifest has %zu entries, more than %zu", n, max);
    doc->entries = calloc(n + 1, sizeof(doc->entries[0]));
    if (!doc->entries)
        return error_set(err, ENOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) {
        int r = take_descriptor(json_array_get(list, i), &doc->entries[i], err);

        if (r < 0)
            return r;
        doc->n_entries++;
    }
    return 0;
}

static int take_manifest(const json_t *json, struct oci_document *doc, struct error *err)
{
    int r = take_descriptor(json_object_get(json, "config"), &doc->config, err);

    if (r < 0)
        return r;
    if (doc->config.kind != OCI_KIND_CONFIG)
        return error_set_code(err, ERR_IMAGE_INVALID,
                              "the manifest describes no container image but another artifact");
    if (doc->config.size > OCI_CONFIG_BYTES_MAX)
        return error_set_code(err, ERR_LIMIT_EXCEEDED, "the image's configuration is too large");
    r = take_entries(json_object_get(json, "layers"), OCI_LAYERS_MAX, doc, err);
    for (size_t i = 0; r == 0 && i < doc->n_entries; i++)
        if (doc->entries[i].kind != OCI_KIND_LAYER)
            r = error_set_code(err, ERR_IMAGE_INVALID,
                               "layer %zu is of a type that is not known (foreign layers and "
                               "encrypted ones are not supported)",
                               i + 1);
    return r;
}

static int take_document(const json_t *json, const char *media_type, struct oci_document *doc,
                         struct error *err)
{
    const json_t *version = json_object_get(json, "schemaVersion");
    char own[256];

    if (!json_is_object(json))
        return invalid(err, "it is no JSON object");
    if (!json_is_integer(version) || json_integer_value(version) != 2)
        return invalid(err, "schemaVersion is not 2 (images of schema 1 are not supported)");
    if (take_string(json, "mediaType", own, sizeof(own)) < 0)
        return invalid(err, "mediaType is no string");
    /* Layouts may leave the type out; then the members tell. A contradiction is an attack. */
    doc->kind = own[0] ? kind_of(own) : OCI_KIND_UNKNOWN;
    if (!own[0] && media_type)
        doc->kind = kind_of(media_type);
    if (doc->kind == OCI_KIND_UNKNOWN && !own[0])
        doc->kind = json_object_get(json, "manifests") ? OCI_KIND_INDEX : OCI_KIND_MANIFEST;
    if (own[0] && media_type && kind_of(media_type) != OCI_KIND_UNKNOWN &&
        kind_of(media_type) != doc->kind)
        return invalid(err, "it is of another type than the registry said");
    if (json_object_get(json, "manifests") && json_object_get(json, "layers"))
        return invalid(err, "it is both an index and a manifest");
    if (doc->kind == OCI_KIND_INDEX)
        return take_entries(json_object_get(json, "manifests"), OCI_INDEX_MAX, doc, err);
    if (doc->kind == OCI_KIND_MANIFEST)
        return take_manifest(json, doc, err);
    return invalid(err, "its type is not known");
}

int oci_document_parse(const char *data, size_t size, const char *media_type,
                       struct oci_document *ret, struct error *err)
{
    _cleanup_oci_document_ struct oci_document doc = {0};
    _cleanup_(json_cleanup) json_t *json = NULL;
    json_error_t why;
    int r;

    if (size > OCI_MANIFEST_BYTES_MAX)
        return error_set_code(err, ERR_LIMIT_EXCEEDED, "the manifest has %zu bytes, more than %zu",
                              size, OCI_MANIFEST_BYTES_MAX);
    json = json_loadb(data, size, JSON_REJECT_DUPLICATES, &why);
    if (!json)
        return error_set_code(err, ERR_IMAGE_INVALID, "the manifest is no JSON: %s", why.text);
    r = take_document(json, media_type, &doc, err);
    if (r < 0)
        return r;
    *ret = doc;
    doc = (struct oci_document){0};
    return 0;
}

static void own_platform(struct oci_platform *p)
{
    struct utsname name = {0};

    (void)uname(&name);
    *p = (struct oci_platform){.os = "linux", .architecture = "amd64"};
    if (strcmp(name.machine, "aarch64") == 0)
        (void)snprintf(p->architecture, sizeof(p->architecture), "arm64");
    else if (strcmp(name.machine, "x86_64") != 0)
        (void)snprintf(p->architecture, sizeof(p->architecture), "%.31s", name.machine);
}

/* One word of a platform; false when it is empty, too long or has other characters. */
static bool take_word(const char **text, char *to, size_t size)
{
    size_t n = strspn(*text, "abcdefghijklmnopqrstuvwxyz0123456789_");

    if (n == 0 || n >= size || ((*text)[n] != '\0' && (*text)[n] != '/'))
        return false;
    memcpy(to, *text, n);
    to[n] = '\0';
    *text += n + ((*text)[n] == '/');
    return true;
}

int oci_platform_parse(const char *text, struct oci_platform *ret, struct error *err)
{
    struct oci_platform p = {.os = "linux"};
    const char *rest = text;
    bool good = true;

    if (!text) {
        own_platform(ret);
        return 0;
    }
    if (strchr(text, '/'))
        good = take_word(&rest, p.os, sizeof(p.os));
    good = good && take_word(&rest, p.architecture, sizeof(p.architecture));
    if (good && *rest)
        good = take_word(&rest, p.variant, sizeof(p.variant));
    if (!good || *rest || text[strlen(text) - 1] == '/')
        return error_set(err, EINVAL, "platform '%.64s': expected OS/ARCHITECTURE[/VARIANT]", text);
    *ret = p;
    return 0;
}

static bool fits(const struct oci_descriptor *d, const struct oci_platform *p, bool exact)
{
    if (d->kind != OCI_KIND_MANIFEST && d->kind != OCI_KIND_INDEX)
        return false;
    if (strcmp(d->os, p->os) != 0 || strcmp(d->architecture, p->architecture) != 0)
        return false;
    return !exact || strcmp(d->variant, p->variant) == 0;
}

const struct oci_descriptor *oci_index_choose(const struct oci_document *doc,
                                              const struct oci_platform *platform,
                                              struct error *err)
{
    char list[256] = "";
    size_t used = 0;

    for (int exact = 1; exact >= (platform->variant[0] ? 1 : 0); exact--)
        for (size_t i = 0; i < doc->n_entries; i++)
            if (fits(&doc->entries[i], platform, exact))
                return &doc->entries[i];
    /* A single entry without a platform is the image; so are nested indexes of that kind. */
    for (size_t i = 0; i < doc->n_entries; i++)
        if (doc->entries[i].kind != OCI_KIND_UNKNOWN && !doc->entries[i].architecture[0])
            return &doc->entries[i];
    for (size_t i = 0; i < doc->n_entries && used + 80 < sizeof(list); i++) {
        const struct oci_descriptor *d = &doc->entries[i];

        if (d->architecture[0] && strcmp(d->architecture, "unknown") != 0)
            used +=
                (size_t)snprintf(list + used, sizeof(list) - used, "%s%s/%s%s%s", used ? ", " : "",
                                 d->os, d->architecture, d->variant[0] ? "/" : "", d->variant);
    }
    (void)error_set_code(err, ERR_IMAGE_NOT_FOUND, "there is no image for %s/%s%s%s; there are: %s",
                         platform->os, platform->architecture, platform->variant[0] ? "/" : "",
                         platform->variant, used ? list : "none");
    return NULL;
}
