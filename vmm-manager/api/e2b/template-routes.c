#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/e2b/handlers.h"
#include "api/e2b/template-build.h"
#include "api/front/access.h"
#include "base/strv.h"
#include "erofs/image.h"
#include "model/text.h"

/* E2B's template routes: builds, what they tell, names and tags. */
#define STATUS_ENTRIES_MAX 100u /* in one answer */
#define TAGS_MAX 16u

/* The images that E2B's own names mean here. */
#define BASE_E2B "e2bdev/base"
#define BASE_HERE "base"

static const char *text_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    const char *text = json_string_value(value);

    return text && strlen(text) == json_string_length(value) && text[0] ? text : NULL;
}

/* ---- what there is ---- */

typedef int (*each_tag_fn)(const char *tag, const json_t *template, void *userdata);

/* Calls fn for each tag that the name has; its first result that is not 0. name NULL: of all. */
static int each_tag(struct api_e2b *e2b, const char *name, each_tag_fn fn, void *userdata)
{
    json_t *templates = core_templates_to_json(e2b->core), *template, *called;
    size_t i, j, prefix = strlen(E2B_TEMPLATE_PREFIX);
    int r = 0;

    json_array_foreach(templates, i, template)
    {
        json_array_foreach(json_object_get(template, "names"), j, called)
        {
            const char *full = json_string_value(called);
            char shown[E2B_NAME_SIZE];

            if (r != 0 || !full || !e2b_name_shown(full, shown))
                continue;
            shown[strcspn(shown, ":")] = '\0';
            if (!name || strcmp(shown, name) == 0)
                r = fn(name ? full + prefix + strlen(name) + 1 : full, template, userdata);
        }
    }
    json_decref(templates);
    return r;
}

static int found(const char *tag, const json_t *template, void *userdata)
{
    (void)tag;
    (void)template;
    (void)userdata;
    return 1;
}

static void answer_no_template(struct request *req)
{
    e2b_answer_status(req, 404, "the template was not found");
}

/* ---- a build is asked for ---- */

static int take_tags(struct e2b_build *b, const char *first, const json_t *tags, struct error *err)
{
    char full[E2B_NAME_SIZE];
    json_t *tag;
    size_t i;

    if (tags && !json_is_null(tags) && (!json_is_array(tags) || json_array_size(tags) > TAGS_MAX))
        return error_set(err, EINVAL, "'tags': not a list of at most %u", TAGS_MAX);
    if (first[0] && strv_append(&b->tags, first) < 0)
        return error_set(err, ENOMEM, "out of memory");
    json_array_foreach((json_t *)(uintptr_t)tags, i, tag)
    {
        const char *text = json_string_value(tag);
        int r = e2b_name_full(b->name, text ? text : "", full, err);

        if (r < 0)
            return r;
        if (strv_append(&b->tags, text) < 0)
            return error_set(err, ENOMEM, "out of memory");
    }
    if (!b->tags && strv_append(&b->tags, E2B_TAG_DEFAULT) < 0)
        return error_set(err, ENOMEM, "out of memory");
    return 0;
}

static int take_size(const json_t *body, const char *key, uint32_t min, uint32_t max, uint32_t *ret,
                     struct error *err)
{
    const json_t *value = json_object_get(body, key);

    if (!value || json_is_null(value))
        return 0;
    if (!json_is_integer(value) || json_integer_value(value) < min ||
        json_integer_value(value) > max)
        return error_set(err, EINVAL, "'%s': not a number of %u to %u", key, min, max);
    *ret = (uint32_t)json_integer_value(value);
    return 0;
}

static json_t *strv_json(char *const *list)
{
    json_t *array = json_array();

    for (size_t i = 0; list && list[i]; i++)
        (void)json_array_append_new(array, json_string(list[i]));
    return array;
}

void handle_e2b_template_request(struct request *req)
{
    struct api_e2b *e2b = e2b_of(req);
    const json_t *body = request_json(req);
    const char *asked = text_of(body, "name") ? text_of(body, "name") : text_of(body, "alias");
    char name[E2B_NAME_SIZE], tag[E2B_NAME_SIZE];
    struct error err = {0};
    struct e2b_build *b;
    int r;

    r = asked ? e2b_name_parse(asked, name, tag, &err)
              : error_set(&err, EINVAL, "'name': is missing");
    if (r < 0) {
        e2b_answer_error(req, &err);
        return;
    }
    b = e2b_build_new(e2b, name);
    if (!b) {
        e2b_answer_status(req, 429, "too many builds");
        return;
    }
    r = take_tags(b, tag, json_object_get(body, "tags"), &err);
    if (r >= 0)
        r = take_size(body, "cpuCount", 1, SPEC_CPUS_MAX, &b->machine.cpus, &err);
    if (r >= 0)
        r = take_size(body, "memoryMB", SPEC_MEMORY_MIB_MIN, SPEC_MEMORY_MIB_MAX,
                      &b->machine.memory_mib, &err);
    if (r >= 0)
        r = access_admit(req, e2b->core, &b->machine, 1, &err);
    if (r < 0) {
        b->state = E2B_BUILD_FAILED;
        e2b_answer_error(req, &err);
        return;
    }
    request_answer(req, 202,
                   json_pack("{s:s, s:s, s:[s], s:[s], s:o, s:b}", "templateID", b->name, "buildID",
                             b->id, "names", b->name, "aliases", b->name, "tags",
                             strv_json(b->tags), "public", 0));
}

/* ---- it begins ---- */

struct base {
    char image[REFERENCE_SIZE];
    struct image_config config; /* owned */
    bool built;                 /* by a build of this API */
};

/* A template of this API's stands on its image; one of the host's is an image by its name. */
static int base_of_template(struct api_e2b *e2b, const char *text, struct base *base,
                            struct error *err)
{
    char full[E2B_NAME_SIZE];
    struct image image;
    json_t *json;
    int r;

    if (e2b_template_find(e2b, text, full)) {
        json = core_template_to_json(e2b->core, full, err);
        (void)snprintf(base->image, sizeof(base->image), "%s",
                       json_string_value(json_object_get(json, "image")));
        json_decref(json);
        base->built = true;
        r = image_get_config(base->image, &base->config, err);
        return r < 0 ? r : 0;
    }
    (void)snprintf(base->image, sizeof(base->image), "%s", text);
    if (image_find(text, &image, NULL) >= 0)
        return 0;
    json = core_template_to_json(e2b->core, text, NULL);
    json_decref(json);
    return json ? error_set_code(err, ERR_UNSUPPORTED,
                                 "template '%.64s' was made by a recipe of this host: it has no "
                                 "layers to build on",
                                 text)
                : error_set_code(err, ERR_TEMPLATE_NOT_FOUND, "template '%.64s': no such template",
                                 text);
}

static int base_find(struct api_e2b *e2b, const json_t *body, struct base *base, struct error *err)
{
    const char *image = text_of(body, "fromImage"), *template = text_of(body, "fromTemplate");
    const json_t *registry = json_object_get(body, "fromImageRegistry");
    size_t e2b_base = strlen(BASE_E2B);

    if (registry && !json_is_null(registry))
        return error_set_code(
            err, ERR_UNSUPPORTED,
            "'fromImageRegistry': credentials of registries are kept on the host, "
            "not given with a build");
    if (template)
        return base_of_template(e2b, template, base, err);
    if (!image || (strncmp(image, BASE_E2B, e2b_base) == 0 &&
                   (image[e2b_base] == '\0' || image[e2b_base] == ':')))
        image = BASE_HERE;
    if (strlen(image) >= sizeof(base->image))
        return error_set(err, EINVAL, "'fromImage': is too long");
    (void)snprintf(base->image, sizeof(base->image), "%s", image);
    return 0;
}

static int build_take(struct e2b_build *b, const json_t *body, struct error *err)
{
    struct base base = {0};
    struct script_base on = {.image = base.image};
    const json_t *steps = json_object_get(body, "steps");
    int r = base_find(b->e2b, body, &base, err);

    if (base.built) {
        on.user = base.config.user ? base.config.user : "root";
        on.workdir = base.config.workdir;
    }
    if (r >= 0)
        r = template_script_make(steps, &on, &b->script, err);
    image_config_done(&base.config);
    if (r >= 0)
        r = e2b_files_check(b->e2b, &b->script, err);
    if (r < 0)
        return r;
    b->force = json_is_true(json_object_get(body, "force"));
    for (size_t i = 0; i < json_array_size(steps); i++) /* the cache is used by all or by none */
        b->force = b->force || json_is_true(json_object_get(json_array_get(steps, i), "force"));
    json_decref(b->steps);
    b->steps = steps ? json_deep_copy(steps) : json_array();
    if (!b->steps || string_set(&b->start, text_of(body, "startCmd")) < 0 ||
        string_set(&b->ready, text_of(body, "readyCmd")) < 0)
        return error_set(err, ENOMEM, "out of memory");
    return 0;
}

static struct e2b_build *asked_build(struct request *req)
{
    struct e2b_build *b = e2b_build_find(e2b_of(req), request_param(req, 0), request_param(req, 1));

    if (!b)
        e2b_answer_status(req, 404, "the build was not found");
    return b;
}

void handle_e2b_template_build(struct request *req)
{
    struct e2b_build *b = asked_build(req);
    struct error err = {0};

    if (!b)
        return;
    if (b->state != E2B_BUILD_WAITING) {
        e2b_answer_status(req, 409, "the build has begun already");
        return;
    }
    template_script_done(&b->script);
    if (build_take(b, request_json(req), &err) < 0 || e2b_build_start(b, &err) < 0)
        e2b_answer_error(req, &err);
    else
        request_answer_empty(req, 202);
}

/* ---- how it goes ---- */

static json_t *reason_json(const struct e2b_build *b)
{
    char step[16];

    e2b_build_step(b, step);
    return json_pack("{s:o, s:s, s:[]}", "message", json_text(b->reason), "step", step,
                     "logEntries");
}

void handle_e2b_template_status(struct request *req)
{
    static const char *const names[] = {
        [E2B_BUILD_WAITING] = "waiting",
        [E2B_BUILD_RUNNING] = "building",
        [E2B_BUILD_READY] = "ready",
        [E2B_BUILD_FAILED] = "error",
    };
    struct e2b_build *b = asked_build(req);
    const char *text = NULL;
    uint64_t offset = 0;
    json_t *entries, *json;

    if (!b || !e2b_query(req, "logsOffset", &text))
        return;
    if (text && parse_u64(text, 0, UINT32_MAX, &offset) < 0) {
        e2b_answer_status(req, 400, "'logsOffset': not a number");
        return;
    }
    entries = json_array();
    offset = offset > b->log_dropped ? offset - b->log_dropped : 0;
    for (size_t i = (size_t)offset;
         i < json_array_size(b->log) && json_array_size(entries) < STATUS_ENTRIES_MAX; i++)
        (void)json_array_append(entries, json_array_get(b->log, i));
    json = json_pack("{s:s, s:s, s:s, s:[], s:o}", "templateID", b->name, "buildID", b->id,
                     "status", names[b->state], "logs", "logEntries", entries);
    if (json && b->state == E2B_BUILD_FAILED)
        (void)json_object_set_new(json, "reason", reason_json(b));
    request_answer(req, 200, json);
}

/* ---- names ---- */

void handle_e2b_template_alias(struct request *req)
{
    char name[E2B_NAME_SIZE], tag[E2B_NAME_SIZE], full[E2B_NAME_SIZE];
    const char *text = request_param(req, 0);
    struct error err = {0};
    bool there;

    if (e2b_name_parse(text, name, tag, &err) < 0) {
        answer_no_template(req);
        return;
    }
    there = tag[0] ? e2b_template_find(e2b_of(req), text, full)
                   : each_tag(e2b_of(req), name, found, NULL) == 1;
    if (there)
        request_answer(req, 200, json_pack("{s:s, s:b}", "templateID", name, "public", 0));
    else
        answer_no_template(req);
}

static int add_tag(const char *tag, const json_t *template, void *userdata)
{
    (void)json_array_append_new(userdata, json_pack("{s:s, s:O, s:O}", "tag", tag, "buildID",
                                                    json_object_get(template, "id"), "createdAt",
                                                    json_object_get(template, "created")));
    return 0;
}

void handle_e2b_template_tags(struct request *req)
{
    json_t *list = json_array();

    (void)each_tag(e2b_of(req), request_param(req, 0), add_tag, list);
    if (json_array_size(list) > 0) {
        request_answer(req, 200, list);
        return;
    }
    json_decref(list);
    answer_no_template(req);
}

void handle_e2b_tags_assign(struct request *req)
{
    struct api_e2b *e2b = e2b_of(req);
    const json_t *body = request_json(req), *tags = json_object_get(body, "tags");
    const char *target = text_of(body, "target");
    char name[E2B_NAME_SIZE], tag[E2B_NAME_SIZE], full[E2B_NAME_SIZE], to[E2B_NAME_SIZE];
    struct error err = {0};
    json_t *json;
    size_t n = json_array_size(tags);
    int r = 0;

    if (!target || n == 0 || n > TAGS_MAX) {
        e2b_answer_status(req, 400, "'target' and a list of 'tags' are needed");
        return;
    }
    if (!e2b_template_find(e2b, target, full) || e2b_name_parse(target, name, tag, &err) < 0) {
        answer_no_template(req);
        return;
    }
    for (size_t i = 0; r >= 0 && i < n; i++) {
        const char *text = json_string_value(json_array_get(tags, i));

        r = e2b_name_full(name, text ? text : "", to, &err);
        if (r >= 0)
            r = core_template_name(e2b->core, full, to, &err);
    }
    json = r < 0 ? NULL : core_template_to_json(e2b->core, full, &err);
    if (!json) {
        e2b_answer_error(req, &err);
        return;
    }
    request_answer(req, 201,
                   json_pack("{s:O, s:O}", "buildID", json_object_get(json, "id"), "tags", tags));
    json_decref(json);
    e2b_images_sweep(e2b);
}

void handle_e2b_tags_remove(struct request *req)
{
    struct api_e2b *e2b = e2b_of(req);
    const json_t *body = request_json(req), *tags = json_object_get(body, "tags");
    const char *name = text_of(body, "name");
    char word[E2B_NAME_SIZE], tag[E2B_NAME_SIZE], full[E2B_NAME_SIZE];
    struct error err = {0};
    int r;

    if (!name || json_array_size(tags) == 0) {
        e2b_answer_status(req, 400, "'name' and a list of 'tags' are needed");
        return;
    }
    r = e2b_name_parse(name, word, tag, &err);
    for (size_t i = 0; r >= 0 && i < json_array_size(tags); i++) {
        const char *text = json_string_value(json_array_get(tags, i));

        r = e2b_name_full(word, text ? text : "", full, &err);
        if (r >= 0)
            r = core_template_remove(e2b->core, full, &err);
    }
    if (r < 0)
        e2b_answer_error(req, &err);
    else
        request_answer_empty(req, 204);
    e2b_images_sweep(e2b);
}

/* ---- lists ---- */

static json_t *template_json(const char *name, const json_t *template)
{
    return json_pack(
        "{s:s, s:O, s:O, s:O, s:O, s:b, s:[s], s:[s], s:O, s:O, s:n, s:n, s:i, s:i, "
        "s:s, s:s}",
        "templateID", name, "buildID", json_object_get(template, "id"), "cpuCount",
        json_object_get(template, "cpus"), "memoryMB", json_object_get(template, "memory_mib"),
        "diskSizeMB", json_object_get(template, "disk_mib"), "public", 0, "aliases", name, "names",
        name, "createdAt", json_object_get(template, "created"), "updatedAt",
        json_object_get(template, "created"), "createdBy", "lastSpawnedAt", "spawnCount", 0,
        "buildCount", 1, "envdVersion", E2B_ENVD_VERSION, "buildStatus", "ready");
}

/* One row a name: of its default, else of the first tag that there is. */
static int add_template(const char *full, const json_t *template, void *userdata)
{
    json_t *list = userdata, *row;
    char shown[E2B_NAME_SIZE];
    bool fallback;
    size_t i;

    (void)e2b_name_shown(full, shown);
    fallback = strchr(shown, ':') != NULL;
    shown[strcspn(shown, ":")] = '\0';
    json_array_foreach(list, i, row)
    {
        if (strcmp(json_string_value(json_object_get(row, "templateID")), shown) != 0)
            continue;
        if (!fallback)
            (void)json_array_set_new(list, i, template_json(shown, template));
        return 0;
    }
    (void)json_array_append_new(list, template_json(shown, template));
    return 0;
}

void handle_e2b_templates(struct request *req)
{
    json_t *list = json_array();

    (void)each_tag(e2b_of(req), NULL, add_template, list);
    request_answer(req, 200, list);
}

/* Nothing of it can be changed: it is not public, and stays so. */
void handle_e2b_template_patch(struct request *req)
{
    const char *name = request_param(req, 0);

    if (each_tag(e2b_of(req), name, found, NULL) == 0)
        answer_no_template(req);
    else if (json_is_true(json_object_get(request_json(req), "public")))
        e2b_answer_status(req, 400, "templates cannot be made public here");
    else
        request_answer(req, 200, json_pack("{s:[s]}", "names", name));
}

static int add_name(const char *tag, const json_t *template, void *userdata)
{
    (void)template;
    return strv_append(userdata, tag);
}

int e2b_template_delete(struct api_e2b *e2b, const char *name, struct error *err)
{
    _cleanup_strv_ char **tags = NULL;
    char full[E2B_NAME_SIZE];
    int r = each_tag(e2b, name, add_name, &tags);

    if (r < 0)
        return error_set(err, ENOMEM, "out of memory");
    for (size_t i = 0; tags && tags[i] && r >= 0; i++) {
        r = e2b_name_full(name, tags[i], full, err);
        if (r >= 0)
            r = core_template_remove(e2b->core, full, err);
    }
    if (tags)
        e2b_images_sweep(e2b);
    return r < 0 ? r : tags != NULL;
}
