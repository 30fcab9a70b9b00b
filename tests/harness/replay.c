#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "harness/fuzz.h"

/* Runs a fuzz target on every file of the directories given: a corpus as an ordinary test. */

#define INPUT_MAX (4 << 20)

static int replay_file(const char *path, off_t size)
{
    /* Exactly as big as the file, so that a sanitizer sees a read past its end. */
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
    FILE *file = fopen(path, "re");
    size_t n = 0;

    if (data && file)
        n = fread(data, 1, (size_t)size, file);
    if (file)
        (void)fclose(file);
    if (!data || !file || n != (size_t)size) {
        fprintf(stderr, "cannot read %s\n", path);
        free(data);
        return -EIO;
    }
    (void)LLVMFuzzerTestOneInput(data, n);
    free(data);
    return 0;
}

static int replay_directory(const char *path, unsigned *count)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    int r = 0;

    if (!dir) {
        fprintf(stderr, "cannot open %s\n", path);
        return -errno;
    }
    while (r == 0 && (entry = readdir(dir))) {
        char file[4096];
        struct stat st;

        if (snprintf(file, sizeof(file), "%s/%s", path, entry->d_name) >= (int)sizeof(file) ||
            stat(file, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > INPUT_MAX)
            continue;
        r = replay_file(file, st.st_size);
        (*count)++;
    }
    (void)closedir(dir);
    return r;
}

int main(int argc, char **argv)
{
    unsigned count = 0;

    for (int i = 1; i < argc; i++) {
        if (replay_directory(argv[i], &count) < 0)
            return 1;
    }
    printf("%u inputs\n", count);
    return count > 0 ? 0 : 1;
}
