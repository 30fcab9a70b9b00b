#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "harness/fuzz.h"
#include "model/spec.h"

/* Whatever the JSON: decoded with a command to run, or refused with a reason. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct exec_request req = {0};
    struct error err = {0};
    json_t *json =
        json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);

    if (!json)
        return 0;
    int r = exec_request_from_json(json, &req, &err);
    if (r >= 0)
        assert(req.argv && req.argv[0] && req.argv[0][0] != '\0');
    else
        assert(err.errnum == -r && err.text[0] != '\0');
    for (size_t i = 0; r >= 0 && req.env && req.env[i]; i++)
        assert(strchr(req.env[i], '=') > req.env[i]);
    exec_request_done(&req);
    json_decref(json);
    return 0;
}
