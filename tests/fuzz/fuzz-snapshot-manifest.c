#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/fuzz.h"
#include "store/snapshot-manifest.h"

/* The bytes as a file, and as the body of one with the right digest: what is accepted survives
 * printing and reading again. */
static void try(const char *text, size_t size)
{
    struct snapshot_manifest m, again;
    struct error err = {0};
    char *printed;
    size_t printed_size;

    if (snapshot_manifest_parse(text, size, &m, &err) < 0) {
        assert(err.text[0] != '\0');
        return;
    }
    if (snapshot_manifest_print(&m, &printed, &printed_size, NULL) >= 0) {
        assert(snapshot_manifest_parse(printed, printed_size, &again, &err) >= 0);
        assert(strcmp(again.info.id, m.info.id) == 0 && strcmp(again.seal, m.seal) == 0);
        assert(memcmp(&again.info.origin, &m.info.origin, sizeof(m.info.origin)) == 0);
        assert(memcmp(again.files, m.files, sizeof(m.files)) == 0);
        assert(json_equal(again.info.meta, m.info.meta) || !m.info.meta);
        snapshot_manifest_done(&again);
        free(printed);
    }
    snapshot_manifest_done(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char digest[DIGEST_TEXT_SIZE];
    char *text;
    int head;

    if (size > 256u * 1024u)
        return 0;
    text = malloc(size + 256);
    assert(text);
    memcpy(text, data, size);
    try(text, size);
    blake_text(data, size, digest);
    head = snprintf(text, 256, "{\"digest\":\"%s\",\"snapshot\":", digest);
    memcpy(text + head, data, size);
    memcpy(text + head + size, "}\n", 2);
    try(text, (size_t)head + size + 2);
    free(text);
    return 0;
}
