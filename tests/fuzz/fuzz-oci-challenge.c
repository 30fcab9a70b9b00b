#include "harness/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "oci/auth.h"

/* What registries say when they want to know who asks, and what token servers and docker write. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = strndup((const char *)data, size), *token;
    struct credentials *found = calloc(1, sizeof(*found));
    struct challenge c;

    if (text && challenge_parse(text, &c) == 0 && c.bearer && c.realm[0] == '\0')
        abort();
    token = token_parse((const char *)data, size);
    if (token && strpbrk(token, " \r\n"))
        abort();
    if (found)
        (void)credentials_parse((const char *)data, size, "host:5000", found, NULL);
    free(token);
    free(text);
    free(found);
    return 0;
}
