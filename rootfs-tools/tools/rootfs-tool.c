#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/paths.h"
#include "base/strv.h"
#include "erofs/disk.h"
#include "erofs/image.h"
#include "initramfs/initramfs.h"
#include "kernel/kernel.h"
#include "oci/pull.h"

/* Images, kernels and disks without a daemon, for the scripts beside it and for tests. */

static void show_progress(int percent, const char *what, void *userdata)
{
    int *last = userdata;

    /* A terminal gets each step, a log only the big ones. */
    if (percent == *last || (!isatty(STDERR_FILENO) && percent % 50 != 0))
        return;
    *last = percent;
    fprintf(stderr, isatty(STDERR_FILENO) ? "\r%3d %% %-12s" : "%d %% %s\n", percent, what);
    if (percent == 100 && isatty(STDERR_FILENO))
        fputc('\n', stderr);
}

static int tool_import(char **args, struct error *err)
{
    struct image image;
    int last = -1;
    int r = image_import(args[0], args[1], show_progress, &last, &image, err);

    if (r == 0)
        printf("%s %s\n", image.name, image.path);
    return r;
}

static int tool_pull(char **args, struct error *err)
{
    int last = -1;
    const struct pull_options options = {
        .reference = args[0], .progress = show_progress, .userdata = &last};
    struct image image;
    int r = image_pull(&options, &image, err);

    if (r == 0)
        printf("%s %s\n", image.name, image.digest);
    return r;
}

/* Makes the EROFS file, as the first sandbox would. */
static int tool_ready(char **args, struct error *err)
{
    struct image image;
    int r = image_ready(args[0], &image, err);

    if (r == 0)
        printf("%s %s\n", image.name, image.path);
    return r;
}

static int tool_remove(char **args, struct error *err)
{
    return image_remove(args[0], /* in_use= */ NULL, err);
}

static int tool_list(char **args, struct error *err)
{
    _cleanup_free_ struct image *images = NULL;
    struct kernel kernels[8];
    size_t n_images = 0;
    int n_kernels, r;

    (void)args;
    r = image_list(&images, &n_images, err);
    if (r < 0)
        return r;
    n_kernels = kernel_list(kernels, ARRAY_SIZE(kernels), err);
    for (size_t i = 0; i < n_images; i++)
        printf("image %s %s\n", images[i].name, images[i].path);
    for (int i = 0; i < n_kernels; i++)
        printf("kernel %s %s %s\n", kernels[i].name, kernels[i].version, kernels[i].path);
    return n_kernels < 0 ? n_kernels : 0;
}

static int tool_initramfs(char **args, struct error *err)
{
    _cleanup_free_ char *init = string_printf("%s/../../bin/hearth-init", paths_program_dir());
    struct kernel kernel;
    char path[256], sha256[65];
    int r = kernel_find(args[0] && *args[0] ? args[0] : NULL, &kernel, err);

    if (r == 0)
        r = initramfs_make(&kernel, args[0] && args[1] ? args[1] : init, path, sha256, err);
    if (r == 0)
        puts(path);
    return r;
}

static int tool_disk(char **args, struct error *err)
{
    uint64_t size_mib;
    int r = parse_u64(args[1], 1, UINT32_MAX, &size_mib);

    if (r < 0)
        return error_set(err, -r, "'%s' is no number of MiB", args[1]);
    return disk_make(args[0], (uint32_t)size_mib, err);
}

static const struct command {
    const char *name;
    int min, max;
    int (*run)(char **args, struct error *err);
    const char *usage;
} commands[] = {
    {"import", 2, 2, tool_import, "import NAME PATH"},
    {"pull", 1, 1, tool_pull, "pull REFERENCE"},
    {"ready", 1, 1, tool_ready, "ready NAME"},
    {"remove", 1, 1, tool_remove, "remove NAME"},
    {"list", 0, 0, tool_list, "list"},
    {"initramfs", 0, 2, tool_initramfs, "initramfs [KERNEL [INIT]]"},
    {"disk", 2, 2, tool_disk, "disk PATH MIB"},
};

int main(int argc, char **argv)
{
    struct error err = {0};

    for (size_t i = 0; argc > 1 && i < ARRAY_SIZE(commands); i++) {
        const struct command *c = &commands[i];

        if (strcmp(argv[1], c->name) != 0 || argc - 2 < c->min || argc - 2 > c->max)
            continue;
        if (c->run(argv + 2, &err) == 0)
            return 0;
        fprintf(stderr, "rootfs-tool: %s\n", err.text);
        return 1;
    }
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
        fprintf(stderr, "%s rootfs-tool %s\n", i ? "      " : "usage:", commands[i].usage);
    return 2;
}
