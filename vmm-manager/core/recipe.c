#include "core/recipe.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/macros.h"
#include "base/strv.h"
#include "core/tree.h"
#include "model/fields.h"

static void step_done(struct recipe_step *step)
{
    free(step->run);
    free(step->from);
    free(step->to);
}

void recipe_done(struct recipe *recipe)
{
    for (size_t i = 0; i < recipe->n_steps; i++)
        step_done(&recipe->steps[i]);
    free(recipe->steps);
    free(recipe->ready);
    (void)strv_free(recipe->warm);
    free(recipe->user);
    free(recipe->workdir);
    (void)strv_free(recipe->env);
    *recipe = (struct recipe){0};
}

bool recipe_is_empty(const struct recipe *recipe)
{
    return recipe->n_steps == 0 && !recipe->ready && !recipe->warm && !recipe->user &&
           !recipe->workdir && !recipe->env;
}

int recipe_copy(const struct recipe *from, struct recipe *to)
{
    struct recipe copy = {.ready_sec = from->ready_sec};
    int r = 0;

    copy.steps = calloc(MAX(from->n_steps, (size_t)1), sizeof(copy.steps[0]));
    if (!copy.steps)
        return -ENOMEM;
    for (size_t i = 0; r >= 0 && i < from->n_steps; i++) {
        const struct recipe_step *step = &from->steps[i];

        copy.n_steps++;
        r = string_set(&copy.steps[i].run, step->run);
        if (r >= 0)
            r = string_set(&copy.steps[i].from, step->from);
        if (r >= 0)
            r = string_set(&copy.steps[i].to, step->to);
    }
    if (r >= 0)
        r = string_set(&copy.ready, from->ready);
    if (r >= 0 && from->warm)
        r = strv_copy(from->warm, &copy.warm);
    if (r >= 0)
        r = string_set(&copy.user, from->user);
    if (r >= 0)
        r = string_set(&copy.workdir, from->workdir);
    if (r >= 0 && from->env)
        r = strv_copy(from->env, &copy.env);
    if (r < 0) {
        recipe_done(&copy);
        return r;
    }
    *to = copy;
    return 0;
}

/* ---- JSON ---- */

struct step_body {
    char *run;          /* owned */
    const json_t *copy; /* borrowed */
};

static int step_from_json(const json_t *json, struct recipe_step *step, struct error *err)
{
    struct step_body body = {0};
    static const struct field fields[] = {
        {"run", FIELD_STRING, offsetof(struct step_body, run), 1, RECIPE_COMMAND_MAX, false},
        {"copy", FIELD_JSON, offsetof(struct step_body, copy), 0, 0, false},
    };
    static const struct field copy_fields[] = {
        {"from", FIELD_PATH, offsetof(struct recipe_step, from), 1, 4095, true},
        {"to", FIELD_PATH, offsetof(struct recipe_step, to), 1, 4095, true},
    };
    int r;

    r = fields_decode(json, fields, ARRAY_SIZE(fields), &body, err);
    step->run = body.run;
    if (r < 0)
        return r;
    if (!body.run == !body.copy)
        return error_set(err, EINVAL, "'steps': each has either 'run' or 'copy'");
    return body.copy ? fields_decode(body.copy, copy_fields, ARRAY_SIZE(copy_fields), step, err)
                     : 0;
}

static int steps_from_json(const json_t *json, struct recipe *recipe, struct error *err)
{
    size_t n = json_array_size(json);
    int r = 0;

    if (!json || json_is_null(json))
        return 0;
    if (!json_is_array(json) || n > RECIPE_STEPS_MAX)
        return error_set(err, EINVAL, "'steps': expected an array of at most %u", RECIPE_STEPS_MAX);
    recipe->steps = calloc(MAX(n, (size_t)1), sizeof(recipe->steps[0]));
    if (!recipe->steps)
        return error_set(err, ENOMEM, "out of memory");
    for (size_t i = 0; r >= 0 && i < n; i++) {
        recipe->n_steps++;
        r = step_from_json(json_array_get(json, i), &recipe->steps[i], err);
    }
    return r;
}

int recipe_from_json(const json_t *json, struct recipe *ret, struct error *err)
{
    struct recipe recipe = {.ready_sec = RECIPE_READY_SEC};
    static const struct field fields[] = {
        {"ready", FIELD_STRING, offsetof(struct recipe, ready), 1, RECIPE_COMMAND_MAX, false},
        {"ready_timeout_sec", FIELD_U32, offsetof(struct recipe, ready_sec), 1,
         RECIPE_READY_SEC_MAX, false},
        {"warm", FIELD_STRV, offsetof(struct recipe, warm), 0, RECIPE_WARM_MAX, false},
        {"user", FIELD_STRING, offsetof(struct recipe, user), 1, 128, false},
        {"workdir", FIELD_PATH, offsetof(struct recipe, workdir), 1, 4095, false},
        {"env", FIELD_ENV, offsetof(struct recipe, env), 0, 0, false},
    };
    json_t *rest = json_object();
    int r = rest ? 0 : error_set(err, ENOMEM, "out of memory");

    for (size_t i = 0; r >= 0 && i < ARRAY_SIZE(fields); i++) {
        json_t *value = json_object_get(json, fields[i].key);

        if (value && json_object_set(rest, fields[i].key, value) < 0)
            r = error_set(err, ENOMEM, "out of memory");
    }
    if (r >= 0)
        r = fields_decode(rest, fields, ARRAY_SIZE(fields), &recipe, err);
    if (r >= 0)
        r = steps_from_json(json_object_get(json, "steps"), &recipe, err);
    json_decref(rest);
    if (r >= 0 && recipe.warm && !recipe.warm[0])
        recipe.warm = strv_free(recipe.warm);
    if (r >= 0 && recipe.env && !recipe.env[0])
        recipe.env = strv_free(recipe.env);
    if (r < 0) {
        recipe_done(&recipe);
        return r;
    }
    *ret = recipe;
    return 0;
}

static json_t *env_to_json(char *const *env)
{
    json_t *o = json_object();

    for (size_t i = 0; o && env[i]; i++) {
        size_t n = strcspn(env[i], "=");
        _cleanup_free_ char *key = strndup(env[i], n);

        if (key && env[i][n])
            (void)json_object_set_new(o, key, json_string(env[i] + n + 1));
    }
    return o;
}

json_t *recipe_to_json(const struct recipe *recipe)
{
    json_t *steps = json_array(), *warm = json_array(), *json;

    for (size_t i = 0; i < recipe->n_steps; i++) {
        const struct recipe_step *step = &recipe->steps[i];

        (void)json_array_append_new(steps, step->run ? json_pack("{s:s}", "run", step->run)
                                                     : json_pack("{s:{s:s, s:s}}", "copy", "from",
                                                                 step->from, "to", step->to));
    }
    for (size_t i = 0; recipe->warm && recipe->warm[i]; i++)
        (void)json_array_append_new(warm, json_string(recipe->warm[i]));
    json = json_pack("{s:o, s:s?, s:i, s:o}", "steps", steps, "ready", recipe->ready,
                     "ready_timeout_sec", (int)recipe->ready_sec, "warm", warm);
    if (json && recipe->user)
        (void)json_object_set_new(json, "user", json_string(recipe->user));
    if (json && recipe->workdir)
        (void)json_object_set_new(json, "workdir", json_string(recipe->workdir));
    if (json && recipe->env)
        (void)json_object_set_new(json, "env", env_to_json(recipe->env));
    return json;
}

/* ---- digest ---- */

static void add_text(crypto_generichash_blake2b_state *state, const char *kind, const char *text)
{
    (void)crypto_generichash_blake2b_update(state, (const unsigned char *)kind, strlen(kind) + 1);
    (void)crypto_generichash_blake2b_update(state, (const unsigned char *)text, strlen(text) + 1);
}

static int add_copy(crypto_generichash_blake2b_state *state, const struct recipe_step *step,
                    struct error *err)
{
    struct tree tree = {0};
    int r;

    add_text(state, "copy", step->to);
    r = tree_scan(step->from, &tree, err);
    if (r >= 0)
        r = tree_digest(&tree, state, err);
    tree_done(&tree);
    return r;
}

/* Where a copy came from is no part of it, only what it holds. */
int recipe_digest(const struct recipe *recipe, char ret[RECIPE_DIGEST_SIZE], struct error *err)
{
    crypto_generichash_blake2b_state state;
    unsigned char hash[32];
    int r = 0;

    (void)crypto_generichash_blake2b_init(&state, NULL, 0, sizeof(hash));
    for (size_t i = 0; r >= 0 && i < recipe->n_steps; i++) {
        if (recipe->steps[i].run)
            add_text(&state, "run", recipe->steps[i].run);
        else
            r = add_copy(&state, &recipe->steps[i], err);
        if (r < 0)
            error_wrap(err, "step %zu", i + 1);
    }
    add_text(&state, "ready", recipe->ready ? recipe->ready : "");
    for (size_t i = 0; recipe->warm && recipe->warm[i]; i++)
        add_text(&state, "warm", recipe->warm[i]);
    if (recipe->user)
        add_text(&state, "user", recipe->user);
    if (recipe->workdir)
        add_text(&state, "workdir", recipe->workdir);
    for (size_t i = 0; recipe->env && recipe->env[i]; i++)
        add_text(&state, "env", recipe->env[i]);
    (void)crypto_generichash_blake2b_final(&state, hash, sizeof(hash));
    if (r >= 0)
        hex_encode(hash, sizeof(hash), ret);
    return r;
}
