#include "dockerfile/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/utsname.h>

#include "base/strv.h"
#include "dockerfile/expand.h"

#define ARGS_MAX 256u

const char *pairs_get(char *const *pairs, const char *key)
{
    size_t n = strlen(key);

    for (size_t i = 0; pairs && pairs[i]; i++)
        if (strncmp(pairs[i], key, n) == 0 && pairs[i][n] == '=')
            return pairs[i] + n + 1;
    return NULL;
}

int pairs_set(char ***pairs, const char *key, const char *value)
{
    _cleanup_free_ char *pair = string_printf("%s=%s", key, value);
    size_t n = strlen(key);

    if (!pair)
        return -ENOMEM;
    for (size_t i = 0; *pairs && (*pairs)[i]; i++)
        if (strncmp((*pairs)[i], key, n) == 0 && (*pairs)[i][n] == '=') {
            free((*pairs)[i]);
            (*pairs)[i] = TAKE_PTR(pair);
            return 0;
        }
    return strv_append(pairs, pair);
}

void plan_done(struct build_plan *plan)
{
    for (size_t i = 0; i < plan->n_stages; i++) {
        free(plan->stages[i].name);
        free(plan->stages[i].base);
        free(plan->stages[i].platform);
    }
    free(plan->stages);
    free(plan->file);
    (void)strv_free(plan->build_args);
    (void)strv_free(plan->globals);
    dockerfile_done(&plan->dockerfile);
    *plan = (struct build_plan){0};
}

void plan_wrap(const struct build_plan *plan, const struct instruction *in, struct error *err)
{
    error_wrap(err, "%s:%u: %s", plan->file, in->line, instruction_name(in->type));
}

size_t plan_find_stage(const struct build_plan *plan, const char *name, size_t before)
{
    uint64_t number;

    for (size_t i = before; i-- > 0;)
        if (plan->stages[i].name && strcasecmp(plan->stages[i].name, name) == 0)
            return i;
    if (before > 0 && parse_u64(name, 0, before - 1, &number) == 0)
        return (size_t)number;
    return STAGE_NONE;
}

/* ---- before the first FROM ---- */

static const char *lookup_global(const char *name, void *userdata)
{
    const struct build_plan *plan = userdata;

    return pairs_get(plan->globals, name);
}

static int set_platform(struct build_plan *plan)
{
    static const char *const sides[] = {"TARGET", "BUILD"};
    struct utsname u;
    const char *arch;
    int r = 0;

    if (uname(&u) < 0)
        return -errno;
    arch = strcmp(u.machine, "x86_64") == 0    ? "amd64"
           : strcmp(u.machine, "aarch64") == 0 ? "arm64"
                                               : u.machine;
    for (size_t i = 0; i < ARRAY_SIZE(sides) && r == 0; i++) {
        char key[32], value[128];

        (void)snprintf(key, sizeof(key), "%sPLATFORM", sides[i]);
        (void)snprintf(value, sizeof(value), "linux/%s", arch);
        r = pairs_set(&plan->globals, key, value);
        (void)snprintf(key, sizeof(key), "%sOS", sides[i]);
        r = r < 0 ? r : pairs_set(&plan->globals, key, "linux");
        (void)snprintf(key, sizeof(key), "%sARCH", sides[i]);
        r = r < 0 ? r : pairs_set(&plan->globals, key, arch);
    }
    return r;
}

static int take_global(struct build_plan *plan, const struct instruction *in, struct error *err)
{
    _cleanup_strv_ char **words = NULL;
    int r = expand_split(in->text, plan->dockerfile.escape, &words, err);

    for (size_t i = 0; r == 0 && words[i]; i++) {
        char *equals = strchr(words[i], '=');
        _cleanup_free_ char *value = NULL;
        const char *given;

        if (equals)
            *equals = '\0';
        given = pairs_get(plan->build_args, words[i]);
        if (given)
            r = (value = strdup(given)) ? 0 : -ENOMEM;
        else if (equals)
            r = expand_word(equals + 1, plan->dockerfile.escape, false, lookup_global, plan, &value,
                            err);
        if (r == 0 && value)
            r = pairs_set(&plan->globals, words[i], value);
    }
    return error_fill(err, r, "ARG");
}

/* ---- stages ---- */

static bool stage_name_is_valid(const char *s)
{
    if (!((*s | 32) >= 'a' && (*s | 32) <= 'z'))
        return false;
    return strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") ==
           strlen(s);
}

static int expand_global(struct build_plan *plan, const char *word, char **ret, struct error *err)
{
    return expand_word(word, plan->dockerfile.escape, false, lookup_global, plan, ret, err);
}

/* FROM [--platform=P] BASE [AS NAME] */
static int take_from(struct build_plan *plan, const struct instruction *in,
                     struct build_stage *stage, struct error *err)
{
    static const char *const known[] = {"platform", NULL};
    const char *unknown = instruction_unknown_flag(in, known);
    const char *platform = instruction_flag(in, "platform");
    _cleanup_strv_ char **words = NULL;
    _cleanup_free_ char *base = NULL;
    size_t n;
    int r;

    stage->parent = STAGE_NONE;
    if (unknown)
        return error_set(err, EINVAL, "unknown option '--%.40s'", unknown);
    r = expand_split(in->text, plan->dockerfile.escape, &words, err);
    if (r < 0)
        return r;
    n = strv_length(words);
    if (n != 1 && !(n == 3 && strcasecmp(words[1], "AS") == 0))
        return error_set(err, EINVAL, "expected IMAGE or IMAGE AS NAME, not '%.80s'", in->text);
    if (n == 3 && !stage_name_is_valid(words[2]))
        return error_set(err, EINVAL, "'%.40s' is no name of a stage", words[2]);
    if (n == 3 && plan_find_stage(plan, words[2], plan->n_stages) != STAGE_NONE)
        return error_set(err, EINVAL, "there is a stage '%.40s' already", words[2]);
    r = expand_global(plan, words[0], &base, err);
    if (r == 0 && platform)
        r = expand_global(plan, platform, &stage->platform, err);
    if (r < 0)
        return r;
    if (base[0] == '\0')
        return error_set(err, EINVAL, "'%.80s' is empty", words[0]);
    stage->parent = plan_find_stage(plan, base, plan->n_stages);
    if (stage->parent != STAGE_NONE && strspn(base, "0123456789") == strlen(base))
        stage->parent = STAGE_NONE; /* numbers are for COPY --from */
    if (stage->parent == STAGE_NONE && strcmp(base, "scratch") != 0)
        stage->base = TAKE_PTR(base);
    if (n == 3 && !(stage->name = strdup(words[2])))
        return error_set(err, ENOMEM, "out of memory");
    return 0;
}

static int add_stage(struct build_plan *plan, size_t index, struct error *err)
{
    struct build_stage stage = {
        .line = plan->dockerfile.instructions[index].line, .first = index + 1, .end = index + 1};
    int r = take_from(plan, &plan->dockerfile.instructions[index], &stage, err);

    if (r < 0) {
        free(stage.name);
        free(stage.base);
        free(stage.platform);
        return r;
    }
    plan->stages[plan->n_stages++] = stage;
    return 0;
}

static int arrange(struct build_plan *plan, struct error *err)
{
    const struct dockerfile *d = &plan->dockerfile;
    int r = 0;

    plan->stages = calloc(d->n, sizeof(plan->stages[0]));
    if (!plan->stages || set_platform(plan) < 0)
        return error_set(err, ENOMEM, "out of memory");
    for (size_t i = 0; i < d->n && r == 0; i++) {
        const struct instruction *in = &d->instructions[i];

        if (in->type == INSTRUCTION_FROM)
            r = add_stage(plan, i, err);
        else if (plan->n_stages > 0)
            plan->stages[plan->n_stages - 1].end = i + 1;
        else if (in->type == INSTRUCTION_ARG)
            r = take_global(plan, in, err);
        else
            r = error_set(err, EINVAL, "comes before the first FROM");
        if (r < 0)
            plan_wrap(plan, in, err);
    }
    if (r == 0 && plan->n_stages == 0)
        r = error_set_code(err, ERR_INVALID_ARGUMENT, "%s: there is no FROM in it", plan->file);
    return r;
}

/* From the last to the first: a stage can only need earlier ones. */
static void mark_needed(struct build_plan *plan)
{
    plan->stages[plan->target].needed = true;
    for (size_t i = plan->target + 1; i-- > 0;) {
        const struct build_stage *stage = &plan->stages[i];

        if (!stage->needed)
            continue;
        plan->n_steps += stage->end - stage->first + 1;
        if (stage->parent != STAGE_NONE)
            plan->stages[stage->parent].needed = true;
        for (size_t k = stage->first; k < stage->end; k++) {
            const char *from = instruction_flag(&plan->dockerfile.instructions[k], "from");
            size_t other = from ? plan_find_stage(plan, from, i) : STAGE_NONE;

            if (other != STAGE_NONE)
                plan->stages[other].needed = true;
        }
    }
}

int plan_make(const char *data, size_t size, const char *file, char *const *build_args,
              const char *target, struct build_plan *ret, struct error *err)
{
    _cleanup_plan_ struct build_plan plan = {.file = strdup(file)};
    int r;

    if (!plan.file || strv_copy(build_args, &plan.build_args) < 0)
        return error_set(err, ENOMEM, "%s: out of memory", file);
    if (strv_length(plan.build_args) > ARGS_MAX)
        return error_set_code(err, ERR_LIMIT_EXCEEDED, "more than %u build arguments", ARGS_MAX);
    r = dockerfile_parse(data, size, file, &plan.dockerfile, err);
    if (r == 0)
        r = arrange(&plan, err);
    if (r < 0)
        return r;
    plan.target = target ? plan_find_stage(&plan, target, plan.n_stages) : plan.n_stages - 1;
    if (plan.target == STAGE_NONE)
        return error_set_code(err, ERR_INVALID_ARGUMENT, "%s: there is no stage '%.80s'", file,
                              target);
    mark_needed(&plan);
    *ret = plan;
    plan = (struct build_plan){0};
    return 0;
}
