#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "api/native/code-request.h"
#include "harness/fuzz.h"

/* What is accepted has a program, and every file lies below the directory. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct code_request req = {0};
    struct error err = {0};
    json_t *json =
        json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);

    if (!json)
        return 0;
    if (code_request_from_json(json, &req, &err) >= 0) {
        assert(req.n_files >= 1 && req.n_files <= CODE_FILES_MAX + 1);
        assert(req.timeout_msec >= 1 && req.timeout_msec <= CODE_TIMEOUT_MSEC_MAX);
        assert(code_language_argv(req.language)[0]);
        for (size_t i = 0; i < req.n_files; i++) {
            assert(strncmp(req.files[i].path, CODE_DIR "/", strlen(CODE_DIR "/")) == 0);
            assert(!strstr(req.files[i].path, "/../"));
            assert(req.files[i].data);
        }
    } else {
        assert(err.text[0] != '\0');
    }
    code_request_done(&req);
    json_decref(json);
    return 0;
}
