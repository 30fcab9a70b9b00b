#include "api/native/code-request.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/macros.h"
#include "base/strv.h"
#include "model/fields.h"
#include "model/text.h"

/*
 * TypeScript: esbuild takes the types away and what it imports of `files` in. CommonJS first, since
 * there `import` and `require` both work; what cannot be said in it (await outside of a function)
 * is tried as a module, whose messages are the ones that count.
 */
#define ESBUILD                                                                                    \
    "esbuild main.ts --bundle --platform=node --target=node18 --packages=external "                \
    "--sourcemap=inline --log-level=error "

static const struct {
    const char *name, *file;
    const char *argv[4];
} languages[] = {
    [CODE_PYTHON] = {"python", "main.py", {"python3", "main.py"}},
    [CODE_JAVASCRIPT] = {"javascript", "main.js", {"node", "main.js"}},
    [CODE_TYPESCRIPT] = {"typescript",
                         "main.ts",
                         {"sh", "-c",
                          "m=.main.cjs; " ESBUILD "--format=cjs --outfile=$m 2>/dev/null || "
                          "{ m=.main.mjs; " ESBUILD "--format=esm --outfile=$m; } || exit; "
                          "exec node --enable-source-maps $m"}},
    [CODE_BASH] = {"bash", "main.sh", {"bash", "main.sh"}},
};
static_assert(ARRAY_SIZE(languages) == CODE_LANGUAGE_COUNT, "a language without its command");

char *const *code_language_argv(enum code_language language)
{
    union {
        const char *const *in;
        char *const *out;
    } u = {.in = languages[language].argv};

    return u.out;
}

const char *code_language_name(enum code_language language)
{
    return languages[language].name;
}

static void file_done(struct code_file *file)
{
    free(file->path);
    free(file->data);
    *file = (struct code_file){0};
}

void code_request_done(struct code_request *req)
{
    for (size_t i = 0; i < req->n_files; i++)
        file_done(&req->files[i]);
    req->n_files = 0;
    file_done(&req->input);
}

static int take_language(const char *name, enum code_language *ret, struct error *err)
{
    for (size_t i = 0; i < ARRAY_SIZE(languages); i++) {
        if (strcmp(languages[i].name, name) == 0) {
            *ret = (enum code_language)i;
            return 0;
        }
    }
    return error_set(err, EINVAL,
                     "'language': '%.32s' is none of python, javascript, typescript, bash", name);
}

/* A copy of a string or {"base64"}. */
static int take_bytes(const json_t *json, const char *key, struct code_file *ret, struct error *err)
{
    _cleanup_free_ char *owned = NULL;
    const char *data;
    size_t size;

    if (json_bytes_get(json, &data, &size, &owned) < 0)
        return error_set(err, EINVAL, "'%.64s': is neither text nor {\"base64\": …}", key);
    ret->data = malloc(size + 1);
    if (!ret->data)
        return error_set(err, ENOMEM, "out of memory");
    memcpy(ret->data, data, size);
    ret->size = size;
    return 0;
}

/* Below CODE_DIR, and nowhere else: no empty part, no "." and no "..". */
static bool path_is_good(const char *path)
{
    size_t size = strlen(path);

    if (size == 0 || size > CODE_PATH_MAX)
        return false;
    for (const char *p = path;; p++) {
        size_t part = strcspn(p, "/");

        if (part == 0 || (part == 1 && p[0] == '.') || (part == 2 && p[0] == '.' && p[1] == '.'))
            return false;
        p += part;
        if (*p == '\0')
            return true;
    }
}

static int add_file(struct code_request *req, const char *path, const json_t *content,
                    struct error *err)
{
    struct code_file *file = &req->files[req->n_files];
    int r;

    if (!path_is_good(path))
        return error_set(err, EINVAL,
                         "'files': '%.64s' is no path below " CODE_DIR " of at most %u bytes", path,
                         CODE_PATH_MAX);
    r = take_bytes(content, path, file, err);
    if (r < 0)
        return r;
    req->n_files++;
    file->path = string_printf(CODE_DIR "/%s", path);
    return file->path ? 0 : error_set(err, ENOMEM, "out of memory");
}

static int take_files(struct code_request *req, const json_t *files, struct error *err)
{
    const char *program = languages[req->language].file, *path;
    union {
        const json_t *in;
        json_t *out;
    } object = {.in = files};
    json_t *content;

    if (!files)
        return 0;
    if (!json_is_object(files))
        return error_set(err, EINVAL, "'files': is not an object of names and contents");
    if (json_object_size(files) > CODE_FILES_MAX)
        return error_set(err, EINVAL, "'files': %zu, at most %u are possible",
                         json_object_size(files), CODE_FILES_MAX);
    json_object_foreach(object.out, path, content)
    {
        if (strcmp(path, program) == 0)
            return error_set(err, EINVAL, "'files': '%s' is where the code itself goes", program);
        int r = add_file(req, path, content, err);
        if (r < 0)
            return r;
    }
    return 0;
}

int code_request_from_json(const json_t *json, struct code_request *req, struct error *err)
{
    struct body {
        char *language;
        const json_t *code, *input, *files;
        uint32_t timeout_msec;
    } body = {.timeout_msec = CODE_TIMEOUT_MSEC_DEFAULT};
    static const struct field fields[] = {
        {"language", FIELD_STRING, offsetof(struct body, language), 1, 32, true},
        {"code", FIELD_JSON, offsetof(struct body, code), 0, 0, true},
        {"timeout_ms", FIELD_U32, offsetof(struct body, timeout_msec), 1, CODE_TIMEOUT_MSEC_MAX,
         false},
        {"stdin", FIELD_JSON, offsetof(struct body, input), 0, 0, false},
        {"files", FIELD_JSON, offsetof(struct body, files), 0, 0, false},
    };
    int r = fields_decode(json, fields, ARRAY_SIZE(fields), &body, err);

    if (r >= 0)
        r = take_language(body.language, &req->language, err);
    free(body.language);
    req->timeout_msec = body.timeout_msec;
    if (r >= 0 && body.input)
        r = take_bytes(body.input, "stdin", &req->input, err);
    if (r >= 0)
        r = add_file(req, languages[req->language].file, body.code, err);
    if (r >= 0)
        r = take_files(req, body.files, err);
    return r;
}
