#include "harness/test.h"

#include "base/error.h"

TEST(code_names_are_unique_and_map_back)
{
    for (int i = 0; i < ERROR_CODE_COUNT; i++) {
        const char *name = error_code_name((enum error_code)i);

        ASSERT_EQ(error_code_from_name(name), i);
        ASSERT_TRUE(i == ERR_NONE || error_code_errno((enum error_code)i) > 0);
        ASSERT_TRUE(i == ERR_NONE || error_code_http_status((enum error_code)i) >= 400);
    }
    ASSERT_EQ(error_code_from_name("no such code"), ERR_INTERNAL);
}

TEST(gains_context_on_the_way_up)
{
    struct error err = {0};

    ASSERT_ERR(error_set(&err, ENOENT, "open '%s'", "x"), ENOENT);
    ASSERT_EQ(err.code, ERR_NOT_FOUND);
    error_wrap(&err, "restore '%s'", "sb");
    ASSERT_STREQ(err.text, "restore 'sb': open 'x'");
    ASSERT_ERR(error_set_code(&err, ERR_GUEST_PANIC, "it died"), EHOSTDOWN);
    ASSERT_EQ(err.code, ERR_GUEST_PANIC);
}

TEST(cuts_text_that_is_too_long)
{
    struct error err = {0};
    char text[2000];

    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    error_set(&err, EIO, "%s", text);
    ASSERT_EQ(strlen(err.text), sizeof(err.text) - 1);
    error_wrap(&err, "%s", text);
    ASSERT_EQ(strlen(err.text), sizeof(err.text) - 1);
}

TEST(fill_keeps_the_first_reason)
{
    struct error err = {0};

    ASSERT_ERR(error_fill(&err, -EIO, "generic"), EIO);
    ASSERT_ERR(error_fill(&err, -EINVAL, "later"), EINVAL);
    ASSERT_STREQ(err.text, "generic");
    error_set(NULL, EIO, "no error struct is fine");
}
