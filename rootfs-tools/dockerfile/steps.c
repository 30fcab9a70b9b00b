#include "dockerfile/steps.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/strv.h"
#include "oci/manifest.h"

int step_find(const char key[65], char ***ret_layers)
{
    _cleanup_record_ struct record record = {0};
    char name[REFERENCE_SIZE];

    (void)snprintf(name, sizeof(name), "@%.64s", key);
    if (record_find(name, &record, NULL) < 0)
        return 0;
    for (size_t i = 0; record.layers && record.layers[i]; i++)
        if (!store_has_layer(record.layers[i]))
            return 0;
    image_note_use(record.sha256);
    *ret_layers = TAKE_PTR(record.layers);
    return 1;
}

/* With layers, configuration and name of its own. */
static int publish(const char *name, const struct stage_state *s, struct image *ret,
                   struct error *err)
{
    _cleanup_record_ struct record record = {0};

    if ((size_t)snprintf(record.name, sizeof(record.name), "%s", name) >= sizeof(record.name))
        return error_set(err, EINVAL, "image '%.80s': the name is too long", name);
    if (strv_length(s->layers) > OCI_LAYERS_MAX)
        return error_set_code(err, ERR_LIMIT_EXCEEDED, "an image has at most %u layers",
                              OCI_LAYERS_MAX);
    if (strv_copy(s->layers, &record.layers) < 0 ||
        image_config_copy(&s->config, &record.config) < 0)
        return error_set(err, ENOMEM, "image '%s': out of memory", name);
    record.size_bytes = store_layers_bytes(record.layers);
    return store_publish_layers(&record, ret, err);
}

int step_publish(const char key[65], const struct stage_state *s, char ret_name[REFERENCE_SIZE],
                 struct error *err)
{
    struct image image;

    (void)snprintf(ret_name, REFERENCE_SIZE, "@%.64s", key);
    return publish(ret_name, s, &image, err);
}

void step_state_key(const struct stage_state *s, char ret[65])
{
    state_files_key(s, "state", NULL, ret);
}

int step_publish_image(const char *name, const struct stage_state *s, struct image *ret,
                       struct error *err)
{
    char full[REFERENCE_SIZE];
    int r = record_name(name, full, err);

    return r < 0 ? r : publish(full, s, ret, err);
}

static int unpack(const char *tar_path, const char *name, const char *pack, const char *index,
                  const _Atomic bool *cancel, char ret_diff_id[DIGEST_SIZE], struct error *err)
{
    struct layer_budget budget = {0};
    struct layer_unpack u = {.blob = tar_path,
                             .name = name,
                             .pack = pack,
                             .index = index,
                             .budget = &budget,
                             .cancel = cancel};
    struct stat st;
    int r;

    if (stat(tar_path, &st) < 0)
        return error_set(err, errno, "%s: %s", name, errno_text(errno));
    budget.packed = (uint64_t)MAX(st.st_size, 1);
    r = layer_unpack(&u, err);
    if (r == 0 && ret_diff_id)
        memcpy(ret_diff_id, u.ret_diff_id, DIGEST_SIZE);
    return r;
}

int step_add_layer(const char *dir, const char *tar_path, const char *name,
                   const _Atomic bool *cancel, char ret_diff_id[DIGEST_SIZE], struct error *err)
{
    char made_pack[288], made_index[288], layers[256];
    struct layer layer;
    size_t n;
    int r;

    (void)snprintf(made_pack, sizeof(made_pack), "%s/layer.pack", dir);
    (void)snprintf(made_index, sizeof(made_index), "%s/layer.index", dir);
    r = store_path(layers, "layers", err);
    if (r == 0)
        r = dir_create(layers, 0755, err);
    if (r == 0)
        r = unpack(tar_path, name, made_pack, made_index, cancel, ret_diff_id, err);
    if (r == 0)
        r = layer_open(made_pack, made_index, &layer, err);
    if (r < 0)
        return r;
    n = layer.n_entries;
    layer_close(&layer);
    if (n > 0 && !store_has_layer(ret_diff_id))
        r = store_add_layer(made_pack, made_index, ret_diff_id, err);
    if (n == 0)
        ret_diff_id[0] = '\0';
    (void)unlink(made_pack);
    (void)unlink(made_index);
    return r;
}

int step_open_context(const char *dir, const char *tar_path, const _Atomic bool *cancel,
                      struct stack *ret, struct error *err)
{
    _cleanup_stack_ struct stack s = {0};
    char pack[288], index[288];
    int r;

    (void)snprintf(pack, sizeof(pack), "%s/context.pack", dir);
    (void)snprintf(index, sizeof(index), "%s/context.index", dir);
    s.layers = calloc(1, sizeof(s.layers[0]));
    if (!s.layers || tree_new(&s.tree) < 0)
        return error_set(err, ENOMEM, "out of memory");
    r = unpack(tar_path, "the context", pack, index, cancel, NULL, err);
    if (r == 0)
        r = layer_open(pack, index, &s.layers[0], err);
    if (r < 0)
        return r;
    s.n = 1;
    r = tree_apply(s.tree, &s.layers[0], "the context", err);
    if (r < 0)
        return r;
    *ret = s;
    s = (struct stack){0};
    return 0;
}
