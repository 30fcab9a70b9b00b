#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api/e2b/template-script.h"
#include "dockerfile/parse.h"
#include "harness/fuzz.h"

/* The steps of a build: what becomes of them is a Dockerfile, with a line for each instruction. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct script_base base = {.image = "base"};
    json_t *steps = json_loadb((const char *)data, size, JSON_ALLOW_NUL, NULL);
    struct template_script script = {0};
    struct dockerfile parsed = {0};
    struct error err = {0};

    if (!steps)
        return 0;
    if (template_script_make(steps, &base, &script, &err) >= 0) {
        const char *text = buf_string(&script.dockerfile);

        assert(strlen(text) == script.dockerfile.size);
        assert(dockerfile_parse(text, script.dockerfile.size, "Dockerfile", &parsed, &err) >= 0);
        assert(parsed.n == script.n_lines);
        for (size_t i = 0; i < parsed.n; i++)
            assert(parsed.instructions[i].line == i + 1 && parsed.instructions[i].n_heredocs == 0);
        dockerfile_done(&parsed);
    } else {
        assert(err.text[0]);
    }
    template_script_done(&script);
    json_decref(steps);
    return 0;
}
