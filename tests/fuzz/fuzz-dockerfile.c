#include "harness/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "base/strv.h"
#include "dockerfile/ignore.h"
#include "dockerfile/state.h"

static void warn(const char *text, void *userdata)
{
    (void)text;
    (void)userdata;
}

/* A Dockerfile, and the same bytes as a .dockerignore. Every instruction is taken as far as it goes
 * without files. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_plan_ struct build_plan plan = {0};
    _cleanup_state_ struct stage_state s = {0};
    _cleanup_ignore_ struct ignore ignore = {0};

    if (ignore_parse((const char *)data, size, &ignore, NULL) == 0)
        (void)ignore_match(&ignore, "a/b.c");
    if (plan_make((const char *)data, size, "Dockerfile", NULL, NULL, &plan, NULL) < 0)
        return 0;
    for (size_t i = plan.stages[0].first; i < plan.dockerfile.n; i++) {
        const struct instruction *in = &plan.dockerfile.instructions[i];
        _cleanup_strv_ char **words = NULL;

        if (in->line == 0)
            abort();
        (void)state_apply(&s, &plan, in, warn, NULL, NULL);
        if (in->type == INSTRUCTION_RUN)
            (void)state_run_argv(&s, in, &words, NULL);
        else
            (void)state_words(&s, &plan, in, &words, NULL);
        if (s.config.workdir && s.config.workdir[0] != '/')
            abort();
    }
    return 0;
}
