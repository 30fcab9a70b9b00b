#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/strv.h"
#include "erofs/digest.h"
#include "erofs/store.h"
#include "oci/manifest.h"

#define RECORD_MAX_BYTES ((size_t)4 * 1024 * 1024)

static void json_cleanup(json_t **json)
{
    json_decref(*json);
}

void record_done(struct record *record)
{
    record->layers = strv_free(record->layers);
    image_config_done(&record->config);
}

bool image_name_is_hidden(const char *name)
{
    return name[0] == '@' && strlen(name) == 65 && strspn(name + 1, "0123456789abcdef") == 64;
}

int record_name(const char *name, char ret[REFERENCE_SIZE], struct error *err)
{
    struct reference ref;
    int r;

    if (name_is_valid(name) || image_name_is_hidden(name)) {
        (void)snprintf(ret, REFERENCE_SIZE, "%s", name);
        return 0;
    }
    r = reference_parse(name, &ref, err);
    if (r == 0 && reference_format(&ref, ret, REFERENCE_SIZE) < 0)
        r = error_set(err, EINVAL, "'%.80s' is no name of an image: it is too long", name);
    return r;
}

/* A plain name is its file's; any other goes by its hash, because it has slashes and the like. */
int record_path(char *path, const char *name, struct error *err)
{
    char sub[128], sha256[65];

    if (name_is_valid(name)) {
        (void)snprintf(sub, sizeof(sub), "names/%s.json", name);
    } else {
        digest_bytes(name, strlen(name), sha256);
        (void)snprintf(sub, sizeof(sub), "names/@%s.json", sha256);
    }
    return store_path(path, sub, err);
}

int image_record_path(const char *name, char path[256])
{
    char full[REFERENCE_SIZE];
    int r = record_name(name, full, NULL);

    return r < 0 ? r : record_path(path, full, NULL);
}

static bool is_sha256(const char *s)
{
    return s && strlen(s) == 64 && strspn(s, "0123456789abcdef") == 64;
}

static int damaged(const char *name, struct error *err)
{
    return error_set(err, EIO, "image '%s': its record is damaged; remove it and get it again",
                     name);
}

static int take_layers(const json_t *list, struct record *record)
{
    size_t n = json_array_size(list);

    if (n > OCI_LAYERS_MAX)
        return -EINVAL;
    for (size_t i = 0; i < n; i++) {
        const char *id = json_string_value(json_array_get(list, i));

        if (!id || !digest_is_valid(id) || strv_append(&record->layers, id) < 0)
            return -EINVAL;
    }
    return 0;
}

static int take_record(const json_t *json, struct record *record)
{
    const char *name = json_string_value(json_object_get(json, "name"));
    const char *sha256 = json_string_value(json_object_get(json, "sha256"));
    const char *digest = json_string_value(json_object_get(json, "digest"));
    const char *architecture = json_string_value(json_object_get(json, "architecture"));

    if (!name || strlen(name) >= sizeof(record->name) || !is_sha256(sha256) ||
        (digest && !digest_is_valid(digest)))
        return -EINVAL;
    memcpy(record->name, name, strlen(name) + 1);
    memcpy(record->sha256, sha256, sizeof(record->sha256));
    if (digest)
        memcpy(record->digest, digest, sizeof(record->digest));
    record->size_bytes = (uint64_t)json_integer_value(json_object_get(json, "size_bytes"));
    record->created_wall_usec =
        (uint64_t)json_integer_value(json_object_get(json, "created_wall_usec"));
    if (take_layers(json_object_get(json, "layers"), record) < 0 ||
        image_config_from_json(json_object_get(json, "config"), &record->config, NULL) < 0)
        return -EINVAL;
    if (architecture && strlen(architecture) < sizeof(record->config.architecture))
        memcpy(record->config.architecture, architecture, strlen(architecture) + 1);
    return 0;
}

int record_read(const char *path, struct record *ret, struct error *err)
{
    _cleanup_(json_cleanup) json_t *json = NULL;
    _cleanup_record_ struct record record = {0};
    _cleanup_free_ char *text = NULL;
    size_t size;
    int r = file_read(path, RECORD_MAX_BYTES, &text, &size, err);

    if (r < 0)
        return r;
    json = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
    if (take_record(json, &record) < 0)
        return error_set(err, EIO, "'%s' is damaged", path);
    *ret = record;
    record = (struct record){0};
    return 0;
}

static int not_found(const char *name, struct error *err)
{
    if (strcmp(name, "base") == 0)
        return error_set_code(err, ERR_IMAGE_NOT_FOUND,
                              "image 'base': not in the cache; make it with `hearth image base`");
    return error_set_code(err, ERR_IMAGE_NOT_FOUND,
                          "image '%s': not in the cache; `hearth image ls` lists what is there, "
                          "`hearth image pull %s` gets it from a registry",
                          name, name);
}

int record_find(const char *name, struct record *ret, struct error *err)
{
    char full[REFERENCE_SIZE], path[256];
    struct reference ref;
    int r = record_name(name, full, err);

    if (r == 0)
        r = record_path(path, full, err);
    if (r < 0)
        return r;
    /* A plain word is first the name of an image of ours, then one of the default registry. */
    if (!file_exists(path) && name_is_valid(name) && reference_parse(name, &ref, NULL) == 0 &&
        reference_format(&ref, full, sizeof(full)) == 0)
        r = record_path(path, full, err);
    if (r < 0)
        return r;
    if (!file_exists(path))
        return not_found(name, err);
    r = record_read(path, ret, err);
    return r == -EIO ? damaged(name, err) : r;
}

int record_write(const struct record *record, struct error *err)
{
    _cleanup_(json_cleanup) json_t *json = json_pack(
        "{s:s, s:s, s:I, s:I}", "name", record->name, "sha256", record->sha256, "size_bytes",
        (json_int_t)record->size_bytes, "created_wall_usec", (json_int_t)record->created_wall_usec);
    _cleanup_free_ char *text = NULL;
    char path[256];
    int r = record_path(path, record->name, err);

    if (r < 0)
        return r;
    if (json && record->digest[0])
        (void)json_object_set_new(json, "digest", json_string(record->digest));
    if (json && record->config.architecture[0])
        (void)json_object_set_new(json, "architecture", json_string(record->config.architecture));
    if (json && record->layers) {
        json_t *layers = json_array();

        for (size_t i = 0; record->layers[i]; i++)
            (void)json_array_append_new(layers, json_string(record->layers[i]));
        (void)json_object_set_new(json, "layers", layers);
        (void)json_object_set_new(json, "config", image_config_to_json(&record->config));
    }
    text = json ? json_dumps(json, JSON_INDENT(1)) : NULL;
    if (!text)
        return error_set(err, ENOMEM, "image '%s': out of memory", record->name);
    return file_write_atomic(path, text, strlen(text), 0644, err);
}
