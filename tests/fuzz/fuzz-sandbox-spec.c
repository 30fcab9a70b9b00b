#include <assert.h>
#include <stdint.h>

#include "harness/fuzz.h"
#include "model/spec.h"

/* What is accepted survives printing and reading again. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sandbox_spec spec, again;
    struct error err = {0};
    json_t *json =
        json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);

    if (!json)
        return 0;
    sandbox_spec_init(&spec);
    if (sandbox_spec_from_json(json, &spec, &err) >= 0) {
        json_t *first = sandbox_spec_to_json(&spec);
        assert(first);
        sandbox_spec_init(&again);
        int r = sandbox_spec_from_json(first, &again, &err);
        assert(r >= 0);
        json_t *second = sandbox_spec_to_json(&again);
        assert(json_equal(first, second));
        json_decref(first);
        json_decref(second);
        sandbox_spec_done(&again);
    } else {
        assert(err.text[0] != '\0');
    }
    sandbox_spec_done(&spec);
    json_decref(json);
    return 0;
}
