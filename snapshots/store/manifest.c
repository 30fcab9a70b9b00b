#include "store/manifest.h"

#include <fcntl.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"
#include "store/sparse-digest.h"
#include "store/verified.h"

#define MANIFEST_BYTES_MAX (64u * 1024u)

enum field_kind {
    FIELD_TEXT,
    FIELD_NUMBER,
};

/* One table drives writing, reading, comparing and hashing, so that none can forget a field. */
struct field {
    const char *key;
    enum field_kind kind;
    size_t offset;
    size_t size;
    bool identity;
};

#define TEXT(name, identity)                                                                       \
    {                                                                                              \
#name, FIELD_TEXT, offsetof(struct origin, name), sizeof(((struct origin *)0)->name),      \
            identity                                                                               \
    }
#define NUMBER(name)                                                                               \
    {                                                                                              \
#name, FIELD_NUMBER, offsetof(struct origin, name), sizeof(uint32_t), true                 \
    }

static const struct field fields[] = {
    TEXT(backend, true),
    TEXT(backend_version, true),
    TEXT(accelerator, true),
    TEXT(cpu_model, true),
    TEXT(kernel_version, false),
    TEXT(kernel_sha256, true),
    TEXT(initramfs_sha256, true),
    TEXT(image_name, false),
    TEXT(image_path, false),
    TEXT(image_sha256, true),
    NUMBER(cpus),
    NUMBER(memory_mib),
    NUMBER(disk_mib),
};

static const char *field_text(const struct origin *o, const struct field *f)
{
    return (const char *)o + f->offset;
}

static uint32_t field_number(const struct origin *o, const struct field *f)
{
    uint32_t value;

    memcpy(&value, (const char *)o + f->offset, sizeof(value));
    return value;
}

/* Both kinds as text; numbers use `scratch`. */
static const char *field_print(const struct origin *o, const struct field *f, char scratch[16])
{
    if (f->kind == FIELD_TEXT)
        return field_text(o, f);
    (void)snprintf(scratch, 16, "%u", field_number(o, f));
    return scratch;
}

static void hash_text(crypto_generichash_state *state, const char *s)
{
    /* The NUL goes in too: "a" + "bc" is not "ab" + "c". */
    (void)crypto_generichash_update(state, (const unsigned char *)s, strlen(s) + 1);
}

void origin_id(const struct origin *origin, char ret[MANIFEST_ID_SIZE])
{
    crypto_generichash_state state;
    unsigned char digest[16];
    char scratch[16];

    (void)crypto_generichash_init(&state, NULL, 0, sizeof(digest));
    (void)snprintf(scratch, sizeof(scratch), "%d", MANIFEST_VERSION);
    hash_text(&state, scratch);
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
        if (!fields[i].identity)
            continue;
        hash_text(&state, fields[i].key);
        hash_text(&state, field_print(origin, &fields[i], scratch));
    }
    (void)crypto_generichash_final(&state, digest, sizeof(digest));
    hex_encode(digest, sizeof(digest), ret);
}

int origin_compare(const struct origin *have, const struct origin *want, struct error *err)
{
    char a[16], b[16];

    for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
        const struct field *f = &fields[i];

        if (!f->identity)
            continue;
        const char *has = field_print(have, f, a), *wants = field_print(want, f, b);
        if (strcmp(has, wants) != 0)
            return error_set_code(err, ERR_TEMPLATE_INVALID, "%s is '%s', wanted is '%s'", f->key,
                                  has, wants);
    }
    return 0;
}

json_t *origin_to_json(const struct origin *origin)
{
    json_t *json = json_object();

    if (!json)
        return NULL;
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
        const struct field *f = &fields[i];
        json_t *value = f->kind == FIELD_TEXT ? json_string(field_text(origin, f))
                                              : json_integer(field_number(origin, f));

        if (json_object_set_new(json, f->key, value) < 0) {
            json_decref(json);
            return NULL;
        }
    }
    return json;
}

int origin_from_json(const json_t *json, struct origin *ret, struct error *err)
{
    if (!json_is_object(json) || json_object_size(json) != ARRAY_SIZE(fields))
        return error_set_code(err, ERR_TEMPLATE_INVALID, "origin: expected %zu known keys",
                              ARRAY_SIZE(fields));
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
        const struct field *f = &fields[i];
        const json_t *value = json_object_get(json, f->key);

        if (f->kind == FIELD_TEXT) {
            const char *text = json_string_value(value);

            if (!text || strlen(text) >= f->size)
                return error_set_code(err, ERR_TEMPLATE_INVALID,
                                      "origin.%s: expected a text of less than %zu bytes", f->key,
                                      f->size);
            memcpy((char *)ret + f->offset, text, strlen(text) + 1);
        } else {
            json_int_t number = json_integer_value(value);
            uint32_t stored = (uint32_t)number;

            if (!json_is_integer(value) || number < 0 || number > UINT32_MAX)
                return error_set_code(err, ERR_TEMPLATE_INVALID,
                                      "origin.%s: expected a 32-bit number", f->key);
            memcpy((char *)ret + f->offset, &stored, sizeof(stored));
        }
    }
    return 0;
}

int origin_parse(const char *text, struct origin *ret, struct error *err)
{
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    struct origin origin = {0};
    int r;

    if (!json)
        return error_set_code(err, ERR_TEMPLATE_INVALID, "origin: not JSON");
    r = origin_from_json(json, &origin, err);
    json_decref(json);
    if (r < 0)
        return r;
    *ret = origin;
    return 0;
}

/*
 * Opens DIR/NAME and measures it. `digest` NULL: only the size. `known`: the digest that it should
 * have, which is taken over when this file was found to have it before; NULL: not yet known.
 */
static int file_measure(const char *dir, const char *name, uint64_t *ret_size, char *digest,
                        const char *known, struct error *err)
{
    char path[PATH_MAX];
    _cleanup_close_ int fd = -EBADF;
    struct stat st, after;
    int r;

    if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, name) >= sizeof(path))
        return error_set(err, ENAMETOOLONG, "snapshot file '%s/%s': path too long", dir, name);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return error_set(err, errno, "snapshot file '%s': %s", path, errno_text(errno));
    if (!known && fsync(fd) < 0)
        return error_set(err, errno, "snapshot file '%s': fsync: %s", path, errno_text(errno));
    if (fstat(fd, &st) < 0)
        return error_set(err, errno, "snapshot file '%s': %s", path, errno_text(errno));
    if (!S_ISREG(st.st_mode))
        return error_set(err, EINVAL, "snapshot file '%s': not a regular file", path);
    *ret_size = (uint64_t)st.st_size;
    if (!digest)
        return 0;
    if (known && verified_has(&st, known)) {
        memcpy(digest, known, MANIFEST_DIGEST_SIZE);
        return 0;
    }
    r = sparse_digest(fd, digest);
    if (r >= 0 && fstat(fd, &after) < 0)
        r = -errno;
    if (r < 0)
        return error_set(err, -r, "snapshot file '%s': %s", path, errno_text(-r));
    if (verified_same(&st, &after))
        verified_add(&st, digest);
    return 0;
}

int manifest_add_file(struct manifest *m, const char *dir, const char *name, bool digest,
                      struct error *err)
{
    struct manifest_file *file;
    int r;

    if (m->n_files == MANIFEST_FILES_MAX || strlen(name) >= sizeof(file->name))
        return error_set(err, E2BIG, "snapshot file '%s': too many files or name too long", name);
    file = &m->files[m->n_files];
    memset(file, 0, sizeof(*file));
    r = file_measure(dir, name, &file->size_bytes, digest ? file->digest : NULL, NULL, err);
    if (r < 0)
        return r;
    memcpy(file->name, name, strlen(name) + 1);
    m->n_files++;
    return 0;
}

static json_t *files_to_json(const struct manifest *m)
{
    json_t *array = json_array();

    for (size_t i = 0; array && i < m->n_files; i++) {
        json_t *file = json_pack("{s:s, s:I, s:s}", "name", m->files[i].name, "size",
                                 (json_int_t)m->files[i].size_bytes, "blake2b", m->files[i].digest);

        if (json_array_append_new(array, file) < 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

int manifest_write(const struct manifest *m, const char *dir, struct error *err)
{
    char path[PATH_MAX];
    json_t *json = json_pack("{s:i, s:s, s:I, s:o, s:o}", "version", MANIFEST_VERSION, "id", m->id,
                             "created_usec", (json_int_t)m->created_wall_usec, "origin",
                             origin_to_json(&m->origin), "files", files_to_json(m));
    _cleanup_free_ char *text = json ? json_dumps(json, JSON_INDENT(2)) : NULL;

    json_decref(json);
    if (!text)
        return error_set(err, ENOMEM, "snapshot manifest: out of memory");
    if ((size_t)snprintf(path, sizeof(path), "%s/manifest.json", dir) >= sizeof(path))
        return error_set(err, ENAMETOOLONG, "snapshot manifest in '%s': path too long", dir);
    return file_write_atomic(path, text, strlen(text), 0644, err);
}

static int files_from_json(json_t *array, struct manifest *ret, struct error *err)
{
    size_t count = json_array_size(array);

    if (!json_is_array(array) || count > MANIFEST_FILES_MAX)
        return error_set_code(err, ERR_TEMPLATE_INVALID, "files: expected at most %u entries",
                              MANIFEST_FILES_MAX);
    for (size_t i = 0; i < count; i++) {
        struct manifest_file *file = &ret->files[i];
        const char *name, *digest;
        json_int_t size;

        if (json_unpack(json_array_get(array, i), "{s:s, s:I, s:s !}", "name", &name, "size", &size,
                        "blake2b", &digest) < 0)
            return error_set_code(err, ERR_TEMPLATE_INVALID,
                                  "files[%zu]: expected name, size, blake2b", i);
        if (!name_is_valid(name) || strlen(name) >= sizeof(file->name) || size < 0 ||
            (digest[0] && strlen(digest) != MANIFEST_DIGEST_SIZE - 1))
            return error_set_code(err, ERR_TEMPLATE_INVALID, "files[%zu]: bad value", i);
        memcpy(file->name, name, strlen(name) + 1);
        memcpy(file->digest, digest, strlen(digest) + 1);
        file->size_bytes = (uint64_t)size;
    }
    ret->n_files = count;
    return 0;
}

static int manifest_from_json(json_t *json, struct manifest *ret, struct error *err)
{
    const char *id;
    json_int_t created;
    json_t *origin, *files;
    int version, r;

    if (json_unpack(json, "{s:i}", "version", &version) < 0)
        return error_set_code(err, ERR_TEMPLATE_INVALID, "no version");
    if (version != MANIFEST_VERSION)
        return error_set_code(err, ERR_TEMPLATE_INVALID, "version %d, this program knows %d",
                              version, MANIFEST_VERSION);
    if (json_unpack(json, "{s:i, s:s, s:I, s:o, s:o !}", "version", &version, "id", &id,
                    "created_usec", &created, "origin", &origin, "files", &files) < 0)
        return error_set_code(err, ERR_TEMPLATE_INVALID, "a key is missing, unknown or ill-typed");
    if (strlen(id) != MANIFEST_ID_SIZE - 1 || !name_is_valid(id) || created < 0)
        return error_set_code(err, ERR_TEMPLATE_INVALID, "bad id or time");
    memcpy(ret->id, id, MANIFEST_ID_SIZE);
    ret->created_wall_usec = (uint64_t)created;
    r = origin_from_json(origin, &ret->origin, err);
    if (r < 0)
        return r;
    return files_from_json(files, ret, err);
}

int manifest_parse(const char *text, size_t size, struct manifest *ret, struct error *err)
{
    struct manifest m = {0};
    json_error_t bad;
    json_t *json = json_loadb(text, size, JSON_REJECT_DUPLICATES, &bad);
    int r;

    if (!json)
        return error_set_code(err, ERR_TEMPLATE_INVALID, "not JSON: line %d: %s", bad.line,
                              bad.text);
    r = manifest_from_json(json, &m, err);
    json_decref(json);
    if (r < 0)
        return r;
    *ret = m;
    return 0;
}

int manifest_read(const char *dir, struct manifest *ret, struct error *err)
{
    char path[PATH_MAX];
    _cleanup_free_ char *text = NULL;
    size_t size;
    int r;

    if ((size_t)snprintf(path, sizeof(path), "%s/manifest.json", dir) >= sizeof(path))
        return error_set(err, ENAMETOOLONG, "snapshot manifest in '%s': path too long", dir);
    r = file_read(path, MANIFEST_BYTES_MAX, &text, &size, err);
    if (r == -ENOENT)
        return error_set_code(err, ERR_TEMPLATE_NOT_FOUND, "no snapshot manifest in '%s'", dir);
    if (r < 0)
        return r;
    r = manifest_parse(text, size, ret, err);
    if (r < 0)
        error_wrap(err, "'%s'", path);
    return r;
}

int manifest_verify(const struct manifest *m, const char *dir, struct error *err)
{
    for (size_t i = 0; i < m->n_files; i++) {
        const struct manifest_file *file = &m->files[i];
        char digest[MANIFEST_DIGEST_SIZE] = "";
        struct error why = {0};
        uint64_t size;

        if (file_measure(dir, file->name, &size, file->digest[0] ? digest : NULL, file->digest,
                         &why) < 0)
            return error_set_code(err, ERR_TEMPLATE_INVALID, "%s", why.text);
        if (size != file->size_bytes)
            return error_set_code(err, ERR_TEMPLATE_INVALID,
                                  "'%s/%s' has %llu bytes, its manifest says %llu", dir, file->name,
                                  (unsigned long long)size, (unsigned long long)file->size_bytes);
        if (strcmp(digest, file->digest) != 0)
            return error_set_code(err, ERR_TEMPLATE_INVALID,
                                  "'%s/%s' does not have the digest of its manifest", dir,
                                  file->name);
    }
    return 0;
}
