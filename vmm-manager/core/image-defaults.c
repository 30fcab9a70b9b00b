#include "core/image-defaults.h"

#include <string.h>

#include "base/strv.h"

static bool has_variable(char *const *env, const char *pair)
{
    size_t n = strcspn(pair, "=") + 1;

    for (size_t i = 0; env && env[i]; i++)
        if (strncmp(env[i], pair, n) == 0)
            return true;
    return false;
}

static int merge_env(struct sandbox_spec *spec, char *const *env)
{
    _cleanup_strv_ char **merged = NULL;
    size_t count = 0;

    for (size_t i = 0; env && env[i] && count < SPEC_ENV_MAX; i++)
        if (!has_variable(spec->env, env[i]) && !has_variable(env + i + 1, env[i])) {
            if (strv_append(&merged, env[i]) < 0)
                return -ENOMEM;
            count++;
        }
    for (size_t i = 0; spec->env && spec->env[i]; i++)
        if (strv_append(&merged, spec->env[i]) < 0)
            return -ENOMEM;
    (void)strv_free(spec->env);
    spec->env = TAKE_PTR(merged);
    return 0;
}

int image_defaults(struct sandbox_spec *spec, const struct image_config *config)
{
    int r = merge_env(spec, config->env);

    if (r == 0 && !spec->user && config->user)
        r = string_set(&spec->user, config->user);
    if (r == 0 && !spec->workdir && config->workdir)
        r = string_set(&spec->workdir, config->workdir);
    if (r == 0 && !spec->cmd && !spec->entrypoint && config->cmd)
        r = strv_copy(config->cmd, &spec->cmd);
    if (r == 0 && !spec->entrypoint && config->entrypoint)
        r = strv_copy(config->entrypoint, &spec->entrypoint);
    return r;
}
