#include "harness/fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "erofs/writer.h"
#include "layers/layer.h"
#include "layers/tree.h"

/*
 * Layer tars, all the way: taken apart, put together with themselves, written as EROFS. No name in
 * the index leads out, and what was written is as long as it says.
 */
static void check_name(const char *path)
{
    for (const char *s = path; *s; s += strspn(s, "/")) {
        size_t n = strcspn(s, "/");

        if (n == 0 || (n == 1 && *s == '.') || (n == 2 && memcmp(s, "..", 2) == 0))
            abort();
        s += n;
    }
}

static void use(const char *pack, const char *index, const char *image)
{
    struct layer layers[2] = {{0}, {0}};
    struct layer_entry entry;
    struct tree *tree = NULL;
    size_t position = 0;
    uint64_t size;

    if (layer_open(pack, index, &layers[0], NULL) < 0 ||
        layer_open(pack, index, &layers[1], NULL) < 0 || !layer_is_whole(&layers[0]))
        abort();
    while (layer_next(&layers[0], &position, &entry))
        check_name(entry.path);
    if (tree_new(&tree) == 0 && tree_apply(tree, &layers[0], "first", NULL) == 0) {
        (void)tree_apply(tree, &layers[1], "second", NULL);
        if (erofs_write(tree, layers, 2, NULL, image, &size, NULL) == 0 && size % 4096 != 0)
            abort();
        (void)unlink(image);
    }
    (void)tree_free(tree);
    layer_close(&layers[0]);
    layer_close(&layers[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char dir[] = "/tmp/fuzz-layer-XXXXXX", blob[64], pack[64], index[64], image[64];
    struct layer_budget budget = {0};
    struct layer_unpack u = {
        .blob = blob, .name = "layer", .pack = pack, .index = index, .budget = &budget};
    int fd;

    if (!mkdtemp(dir))
        return 0;
    (void)snprintf(blob, sizeof(blob), "%s/blob", dir);
    (void)snprintf(pack, sizeof(pack), "%s/pack", dir);
    (void)snprintf(index, sizeof(index), "%s/index", dir);
    (void)snprintf(image, sizeof(image), "%s/image", dir);
    fd = open(blob, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0 && fd_write_full(fd, data, size) == 0 && layer_unpack(&u, NULL) == 0)
        use(pack, index, image);
    (void)fd_close(fd);
    (void)unlink(blob);
    (void)unlink(pack);
    (void)unlink(index);
    (void)rmdir(dir);
    return 0;
}
