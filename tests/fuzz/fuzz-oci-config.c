#include "harness/fuzz.h"

#include <stdlib.h>

#include "base/strv.h"
#include "oci/config.h"

/* Configurations of images: what is accepted survives being written and read. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct image_config config = {0}, again = {0};
    char **ids = NULL;
    json_t *json;

    if (image_config_parse((const char *)data, size, &config, &ids, NULL) < 0)
        return 0;
    json = image_config_to_json(&config);
    if (!json || image_config_from_json(json, &again, NULL) < 0 ||
        strv_length(again.env) != strv_length(config.env) ||
        strv_length(again.cmd) != strv_length(config.cmd))
        abort();
    json_decref(json);
    image_config_done(&config);
    image_config_done(&again);
    (void)strv_free(ids);
    return 0;
}
