#include "harness/test.h"

#include "base/strv.h"

TEST(parses_sizes_and_durations_and_refuses_the_rest)
{
    uint64_t v;

    ASSERT_OK(parse_size("512", 1 << 20, &v));
    ASSERT_EQ(v, 512LL << 20);
    ASSERT_OK(parse_size("2G", 1, &v));
    ASSERT_EQ(v, 2LL << 30);
    ASSERT_OK(parse_size("1GiB", 1, &v));
    ASSERT_EQ(v, 1LL << 30);
    ASSERT_ERR(parse_size("", 1, &v), EINVAL);
    ASSERT_ERR(parse_size("-1", 1, &v), EINVAL);
    ASSERT_ERR(parse_size("1X", 1, &v), EINVAL);
    ASSERT_ERR(parse_size("99999999999999999999", 1, &v), ERANGE);
    ASSERT_ERR(parse_size("99999999999T", 1, &v), ERANGE);
    ASSERT_OK(parse_duration("90", &v));
    ASSERT_EQ(v, 90000000);
    ASSERT_OK(parse_duration("1500ms", &v));
    ASSERT_EQ(v, 1500000);
    ASSERT_ERR(parse_duration("1 s", &v), EINVAL);
    ASSERT_OK(parse_u64("7", 0, 7, &v));
    ASSERT_ERR(parse_u64("8", 0, 7, &v), ERANGE);
    ASSERT_ERR(parse_u64("7x", 0, 7, &v), EINVAL);
    ASSERT_ERR(parse_u64(NULL, 0, 7, &v), EINVAL);
}

TEST(names_are_safe_path_components)
{
    ASSERT_TRUE(name_is_valid("base"));
    ASSERT_TRUE(name_is_valid("a.b_c-9"));
    ASSERT_FALSE(name_is_valid(""));
    ASSERT_FALSE(name_is_valid("."));
    ASSERT_FALSE(name_is_valid("../x"));
    ASSERT_FALSE(name_is_valid("a/b"));
    ASSERT_FALSE(name_is_valid("A"));
    ASSERT_FALSE(name_is_valid("-a"));
    ASSERT_FALSE(name_is_valid("0123456789012345678901234567890123456789012345678901234567890123"));
}

TEST(random_ids_differ)
{
    char a[17], b[17];

    ASSERT_OK(random_id(a, 16));
    ASSERT_OK(random_id(b, 16));
    ASSERT_EQ(strlen(a), 16);
    ASSERT_TRUE(strcmp(a, b) != 0);
    ASSERT_TRUE(name_is_valid(a));
}

TEST(string_vectors_own_their_strings)
{
    _cleanup_strv_ char **v = NULL, **copy = NULL;

    ASSERT_EQ(strv_length(v), 0);
    ASSERT_OK(strv_append(&v, "a"));
    ASSERT_OK(strv_append(&v, "b"));
    ASSERT_OK(strv_copy(v, &copy));
    ASSERT_EQ(strv_length(copy), 2);
    ASSERT_STREQ(copy[1], "b");
}
