#pragma once

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/*
 * The unit-test harness. A test is a function that registers itself; a failed assertion prints the
 * place and the values and ends the process, so nothing runs on after it. The program runs all
 * tests, or those whose name contains its argument; `-l` lists them. test_skip() ends the program
 * with 77.
 */
typedef void (*test_fn)(void);
void test_register(const char *name, test_fn fn);
_Noreturn void test_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void test_skip(const char *reason);
/* A fresh directory that is removed when the program ends. */
const char *test_tmpdir(void);

#define TEST(name)                                                                                 \
    static void test_##name(void);                                                                 \
    __attribute__((constructor)) static void register_##name(void)                                 \
    {                                                                                              \
        test_register(#name, test_##name);                                                         \
    }                                                                                              \
    static void test_##name(void)

#define ASSERT_TRUE(e)                                                                             \
    do {                                                                                           \
        if (!(e))                                                                                  \
            test_fail(__FILE__, __LINE__, "not true: %s", #e);                                     \
    } while (0)
#define ASSERT_FALSE(e) ASSERT_TRUE(!(e))
#define ASSERT_OK(e)                                                                               \
    do {                                                                                           \
        long long assert_r = (long long)(e);                                                       \
        if (assert_r < 0)                                                                          \
            test_fail(__FILE__, __LINE__, "%s failed: %s", #e,                                     \
                      strerrorname_np((int)-assert_r) ? strerrorname_np((int)-assert_r) : "?");    \
    } while (0)
#define ASSERT_ERR(e, errnum)                                                                      \
    do {                                                                                           \
        long long assert_r = (long long)(e);                                                       \
        if (assert_r != -(long long)(errnum))                                                      \
            test_fail(__FILE__, __LINE__, "%s returned %lld, expected -%s", #e, assert_r,          \
                      strerrorname_np(errnum));                                                    \
    } while (0)
#define ASSERT_EQ(a, b)                                                                            \
    do {                                                                                           \
        long long assert_a = (long long)(a), assert_b = (long long)(b);                            \
        if (assert_a != assert_b)                                                                  \
            test_fail(__FILE__, __LINE__, "%s is %lld, expected %s = %lld", #a, assert_a, #b,      \
                      assert_b);                                                                   \
    } while (0)
#define ASSERT_STREQ(a, b)                                                                         \
    do {                                                                                           \
        const char *assert_a = (a), *assert_b = (b);                                               \
        if (!assert_a || !assert_b || strcmp(assert_a, assert_b) != 0)                             \
            test_fail(__FILE__, __LINE__, "%s is '%s', expected '%s'", #a,                         \
                      assert_a ? assert_a : "(null)", assert_b ? assert_b : "(null)");             \
    } while (0)
#define ASSERT_MEMEQ(a, b, size)                                                                   \
    do {                                                                                           \
        if (memcmp((a), (b), (size)) != 0)                                                         \
            test_fail(__FILE__, __LINE__, "%s differs from %s", #a, #b);                           \
    } while (0)
