#include "harness/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "oci/reference.h"

/* Names of images. What is accepted, written and read again is the same. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = strndup((const char *)data, size);
    char written[2 * REFERENCE_SIZE], again[2 * REFERENCE_SIZE];
    struct reference ref, same;

    if (!text)
        return 0;
    if (reference_parse(text, &ref, NULL) == 0 &&
        reference_format(&ref, written, REFERENCE_SIZE) == 0) {
        if (reference_parse(written, &same, NULL) < 0 ||
            reference_format(&same, again, sizeof(again)) < 0 || strcmp(written, again) != 0 ||
            strcmp(ref.host, same.host) != 0 || strcmp(ref.repository, same.repository) != 0)
            abort();
    }
    free(text);
    return 0;
}
