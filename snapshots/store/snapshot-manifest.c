#include "store/snapshot-manifest.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/strv.h"
#include "store/map.h"

#define HEAD "{\"digest\":\""
#define MIDDLE "\",\"snapshot\":"
#define TAIL "}\n"
#define BODY_OFFSET (sizeof(HEAD) - 1 + DIGEST_TEXT_SIZE - 1 + sizeof(MIDDLE) - 1)

static const char *const kind_names[] = {
    [SNAPSHOT_CHECKPOINT] = "checkpoint",
    [SNAPSHOT_HIBERNATED] = "hibernated",
    [SNAPSHOT_FORK] = "fork",
};
static_assert(ARRAY_SIZE(kind_names) == SNAPSHOT_FORK + 1, "a kind has no name");

static const char *const file_names[][2] = {
    [SNAPSHOT_FILE_STATE] = {SNAPSHOT_STATE, SNAPSHOT_STATE},
    [SNAPSHOT_FILE_MEMORY] = {SNAPSHOT_MEMORY, SNAPSHOT_MEMORY ".zst"},
    [SNAPSHOT_FILE_MEMORY_MAP] = {SNAPSHOT_MEMORY ".map", SNAPSHOT_MEMORY ".map"},
    [SNAPSHOT_FILE_DISK] = {SNAPSHOT_DISK, SNAPSHOT_DISK ".zst"},
    [SNAPSHOT_FILE_DISK_MAP] = {SNAPSHOT_DISK ".map", SNAPSHOT_DISK ".map"},
};
static_assert(ARRAY_SIZE(file_names) == SNAPSHOT_FILE_COUNT, "a file has no name");

void snapshot_info_done(struct snapshot_info *info)
{
    json_decref(info->meta);
    info->meta = NULL;
}

void snapshot_manifest_done(struct snapshot_manifest *m)
{
    snapshot_info_done(&m->info);
}

const char *snapshot_file_name(enum snapshot_file file, bool compressed)
{
    return file_names[file][compressed];
}

const char *snapshot_kind_name(enum snapshot_kind kind)
{
    return kind_names[kind];
}

/* ---- write ---- */

static json_t *files_to_json(const struct snapshot_manifest *m)
{
    json_t *array = json_array();

    for (size_t i = 0; array && i < SNAPSHOT_FILE_COUNT; i++) {
        const struct manifest_file *f = &m->files[i];
        json_t *file = json_pack("{s:s, s:I, s:s}", "name", f->name, "size",
                                 (json_int_t)f->size_bytes, "blake2b", f->digest);

        if (json_array_append_new(array, file) < 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

static json_t *body_to_json(const struct snapshot_manifest *m)
{
    const struct snapshot_info *info = &m->info;
    const bool over_template = info->parent.template_id[0] != '\0';
    json_t *parent =
        json_pack("{s:s, s:s, s:s}", "kind", over_template ? "template" : "snapshot", "id",
                  over_template ? info->parent.template_id : info->parent.snapshot_id, "seal",
                  m->parent_digest);

    return json_pack("{s:i, s:s, s:s, s:s, s:s, s:o, s:o, s:I, s:s, s:I, s:I, s:b, s:s, s:o, s:O?}",
                     "version", SNAPSHOT_MANIFEST_VERSION, "id", info->id, "kind",
                     kind_names[info->kind], "name", info->name, "sandbox", info->sandbox, "parent",
                     parent, "origin", origin_to_json(&info->origin), "created_usec",
                     (json_int_t)info->created_wall_usec, "host_kernel", info->host_kernel,
                     "memory_bytes", (json_int_t)info->memory_bytes, "stored_bytes",
                     (json_int_t)info->stored_bytes, "compressed", (int)info->compressed, "seal",
                     m->seal, "files", files_to_json(m), "meta", info->meta);
}

/* What no reader would take must not be written: a snapshot that cannot be read is a loss. */
static int must_read_back(const char *text, size_t size, struct error *err)
{
    struct snapshot_manifest back = {0};
    int r = snapshot_manifest_parse(text, size, &back, err);

    if (r < 0)
        error_wrap(err, "snapshot manifest would not be readable");
    snapshot_manifest_done(&back);
    return r;
}

int snapshot_manifest_print(struct snapshot_manifest *m, char **ret, size_t *ret_size,
                            struct error *err)
{
    json_t *json = body_to_json(m);
    _cleanup_free_ char *body = json ? json_dumps(json, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    _cleanup_free_ char *text = NULL;
    char digest[DIGEST_TEXT_SIZE];
    int r;

    json_decref(json);
    if (!body)
        return error_set(err, ENOMEM, "snapshot manifest: out of memory, or a text is not UTF-8");
    if (strlen(body) + BODY_OFFSET + sizeof(TAIL) > SNAPSHOT_MANIFEST_MAX)
        return error_set(err, E2BIG, "snapshot manifest: larger than %u bytes",
                         SNAPSHOT_MANIFEST_MAX);
    blake_text(body, strlen(body), digest);
    text = string_printf(HEAD "%s" MIDDLE "%s" TAIL, digest, body);
    if (!text)
        return error_set(err, ENOMEM, "snapshot manifest: out of memory");
    r = must_read_back(text, strlen(text), err);
    if (r < 0)
        return r;
    if (m->seal[0] == '\0')
        memcpy(m->seal, digest, sizeof(m->seal));
    *ret_size = strlen(text);
    *ret = TAKE_PTR(text);
    return 0;
}

/* ---- read ---- */

static int bad(struct error *err, const char *what)
{
    return error_set_code(err, ERR_SNAPSHOT_INVALID, "%s", what);
}

static bool is_hex(const char *s, size_t digits)
{
    return strlen(s) == digits && strspn(s, "0123456789abcdef") == digits;
}

static int copy_text(const char *from, char *to, size_t room)
{
    if (strlen(from) >= room)
        return -E2BIG;
    memcpy(to, from, strlen(from) + 1);
    return 0;
}

static int kind_from_name(const char *name, enum snapshot_kind *ret)
{
    for (size_t i = 0; i < ARRAY_SIZE(kind_names); i++)
        if (strcmp(name, kind_names[i]) == 0) {
            *ret = (enum snapshot_kind)i;
            return 0;
        }
    return -EINVAL;
}

static int parent_from_json(json_t *json, struct snapshot_manifest *m, struct error *err)
{
    const char *kind, *id, *seal;
    bool over_template;

    if (json_unpack(json, "{s:s, s:s, s:s !}", "kind", &kind, "id", &id, "seal", &seal) < 0)
        return bad(err, "parent: expected kind, id, seal");
    over_template = strcmp(kind, "template") == 0;
    if ((!over_template && strcmp(kind, "snapshot") != 0) || strlen(id) != MANIFEST_ID_SIZE - 1 ||
        !name_is_valid(id) || !is_hex(seal, DIGEST_TEXT_SIZE - 1))
        return bad(err, "parent: bad value");
    memcpy(over_template ? m->info.parent.template_id : m->info.parent.snapshot_id, id,
           MANIFEST_ID_SIZE);
    memcpy(m->parent_digest, seal, DIGEST_TEXT_SIZE);
    return 0;
}

static int files_from_json(const json_t *array, struct snapshot_manifest *m, struct error *err)
{
    if (json_array_size(array) != SNAPSHOT_FILE_COUNT)
        return bad(err, "files: not those of a snapshot");
    for (size_t i = 0; i < SNAPSHOT_FILE_COUNT; i++) {
        const bool has_map = i == SNAPSHOT_FILE_MEMORY || i == SNAPSHOT_FILE_DISK;
        struct manifest_file *f = &m->files[i];
        const char *name, *digest;
        json_int_t size;

        if (json_unpack(json_array_get(array, i), "{s:s, s:I, s:s !}", "name", &name, "size", &size,
                        "blake2b", &digest) < 0)
            return error_set_code(err, ERR_SNAPSHOT_INVALID,
                                  "files[%zu]: expected name, size, blake2b", i);
        if (strcmp(name, snapshot_file_name((enum snapshot_file)i, m->info.compressed)) != 0 ||
            size < 0 || (uint64_t)size > MAP_SIZE_MAX ||
            (has_map ? digest[0] != '\0' : !is_hex(digest, DIGEST_TEXT_SIZE - 1)))
            return error_set_code(err, ERR_SNAPSHOT_INVALID, "files[%zu]: bad value", i);
        memcpy(f->name, name, strlen(name) + 1);
        memcpy(f->digest, digest, strlen(digest) + 1);
        f->size_bytes = (uint64_t)size;
    }
    return 0;
}

static int body_from_json(json_t *json, struct snapshot_manifest *m, struct error *err)
{
    const char *id, *kind, *name, *sandbox, *host_kernel, *seal;
    json_int_t created, memory, stored;
    json_t *parent, *origin, *files, *meta;
    struct snapshot_info *info = &m->info;
    int version, compressed, r;

    if (json_unpack(json, "{s:i}", "version", &version) < 0)
        return bad(err, "no version");
    if (version != SNAPSHOT_MANIFEST_VERSION)
        return error_set_code(err, ERR_SNAPSHOT_INVALID, "version %d, this program knows %d",
                              version, SNAPSHOT_MANIFEST_VERSION);
    if (json_unpack(json,
                    "{s:i, s:s, s:s, s:s, s:s, s:o, s:o, s:I, s:s, s:I, s:I, s:b, s:s, s:o, s:o !}",
                    "version", &version, "id", &id, "kind", &kind, "name", &name, "sandbox",
                    &sandbox, "parent", &parent, "origin", &origin, "created_usec", &created,
                    "host_kernel", &host_kernel, "memory_bytes", &memory, "stored_bytes", &stored,
                    "compressed", &compressed, "seal", &seal, "files", &files, "meta", &meta) < 0)
        return bad(err, "a key is missing, unknown or ill-typed");
    if (strlen(id) != MANIFEST_ID_SIZE - 1 || !name_is_valid(id) || created < 0 || memory <= 0 ||
        (uint64_t)memory > MAP_SIZE_MAX || memory % MAP_PAGE_BYTES != 0 || stored < 0 ||
        kind_from_name(kind, &info->kind) < 0 ||
        copy_text(name, info->name, sizeof(info->name)) < 0 ||
        copy_text(sandbox, info->sandbox, sizeof(info->sandbox)) < 0 ||
        copy_text(host_kernel, info->host_kernel, sizeof(info->host_kernel)) < 0 ||
        (seal[0] && !is_hex(seal, DIGEST_TEXT_SIZE - 1)))
        return bad(err, "a value is out of its range");
    memcpy(info->id, id, MANIFEST_ID_SIZE);
    memcpy(m->seal, seal, strlen(seal) + 1);
    info->created_wall_usec = (uint64_t)created;
    info->memory_bytes = (uint64_t)memory;
    info->stored_bytes = (uint64_t)stored;
    info->compressed = compressed;
    r = parent_from_json(parent, m, err);
    if (r >= 0)
        r = origin_from_json(origin, &info->origin, err);
    if (r >= 0)
        r = files_from_json(files, m, err);
    if (r < 0)
        return r;
    info->meta = json_is_null(meta) ? NULL : json_incref(meta);
    return 0;
}

int snapshot_manifest_parse(const char *text, size_t size, struct snapshot_manifest *ret,
                            struct error *err)
{
    struct snapshot_manifest m = {0};
    const char *body = text + BODY_OFFSET;
    size_t body_size = size - BODY_OFFSET - (sizeof(TAIL) - 1);
    char digest[DIGEST_TEXT_SIZE];
    json_error_t why;
    json_t *json;
    int r;

    if (size < BODY_OFFSET + sizeof(TAIL) || size > SNAPSHOT_MANIFEST_MAX ||
        memcmp(text, HEAD, sizeof(HEAD) - 1) != 0 ||
        memcmp(body - (sizeof(MIDDLE) - 1), MIDDLE, sizeof(MIDDLE) - 1) != 0 ||
        memcmp(body + body_size, TAIL, sizeof(TAIL) - 1) != 0)
        return bad(err, "not the manifest of a snapshot, or truncated");
    blake_text(body, body_size, digest);
    if (memcmp(text + sizeof(HEAD) - 1, digest, DIGEST_TEXT_SIZE - 1) != 0)
        return bad(err, "it does not have its own digest");
    json = json_loadb(body, body_size, JSON_REJECT_DUPLICATES, &why);
    if (!json)
        return error_set_code(err, ERR_SNAPSHOT_INVALID, "not JSON: line %d: %s", why.line,
                              why.text);
    r = body_from_json(json, &m, err);
    json_decref(json);
    if (r < 0) {
        struct error text_only = {0};

        error_copy(&text_only, err);
        snapshot_manifest_done(&m);
        /* The origin is read by code that serves templates too. */
        return r == -ENOMEM ? r : error_set_code(err, ERR_SNAPSHOT_INVALID, "%s", text_only.text);
    }
    if (m.seal[0] == '\0')
        memcpy(m.seal, digest, sizeof(m.seal));
    *ret = m;
    return 0;
}

int snapshot_manifest_read(const char *dir, const char *id, struct snapshot_manifest *ret,
                           struct error *err)
{
    _cleanup_free_ char *path = string_printf("%s/" SNAPSHOT_MANIFEST, dir);
    _cleanup_free_ char *text = NULL;
    struct snapshot_manifest m = {0};
    size_t size;
    int r;

    if (!path)
        return error_set(err, ENOMEM, "out of memory");
    r = file_read(path, SNAPSHOT_MANIFEST_MAX, &text, &size, err);
    if (r == -ENOENT && !file_exists(dir))
        return error_set_code(err, ERR_SNAPSHOT_NOT_FOUND, "no snapshot '%s'", id);
    if (r == -ENOENT)
        return error_set_code(err, ERR_SNAPSHOT_INVALID, "'%s' is missing", path);
    if (r < 0)
        return r;
    r = snapshot_manifest_parse(text, size, &m, err);
    if (r >= 0 && strcmp(m.info.id, id) != 0) {
        r = error_set_code(err, ERR_SNAPSHOT_INVALID, "it is that of '%s'", m.info.id);
        snapshot_manifest_done(&m);
    }
    if (r < 0) {
        error_wrap(err, "manifest '%s'", path);
        return r;
    }
    *ret = m;
    return 0;
}
