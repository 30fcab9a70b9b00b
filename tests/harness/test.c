#include "harness/test.h"

#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TESTS_MAX 512

static struct {
    const char *name;
    test_fn fn;
} tests[TESTS_MAX];
static size_t n_tests;
static const char *running;
static char tmpdir[64];

void test_register(const char *name, test_fn fn)
{
    if (n_tests == TESTS_MAX)
        abort();
    tests[n_tests].name = name;
    tests[n_tests].fn = fn;
    n_tests++;
}

void test_fail(const char *file, int line, const char *format, ...)
{
    va_list ap;

    fprintf(stderr, "not ok - %s\n  %s:%d: ", running, file, line);
    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fputc('\n', stderr);
    exit(1);
}

void test_skip(const char *reason)
{
    printf("skip - %s: %s\n", running, reason);
    exit(77);
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void remove_tmpdir(void)
{
    (void)nftw(tmpdir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

const char *test_tmpdir(void)
{
    if (!tmpdir[0]) {
        const char *base = getenv("TMPDIR");

        (void)snprintf(tmpdir, sizeof(tmpdir), "%.40s/hearth-unit-XXXXXX", base ? base : "/tmp");
        if (!mkdtemp(tmpdir))
            test_fail(__FILE__, __LINE__, "mkdtemp: errno %d", errno);
        atexit(remove_tmpdir);
    }
    return tmpdir;
}

int main(int argc, char **argv)
{
    size_t ran = 0;

    for (size_t i = 0; i < n_tests; i++) {
        if (argc > 1 && strcmp(argv[1], "-l") == 0) {
            puts(tests[i].name);
            continue;
        }
        if (argc > 1 && !strstr(tests[i].name, argv[1]))
            continue;
        running = tests[i].name;
        tests[i].fn();
        printf("ok - %s\n", running);
        ran++;
    }
    if (argc > 1 && strcmp(argv[1], "-l") == 0)
        return 0;
    printf("%zu passed\n", ran);
    return ran > 0 ? 0 : 1;
}
