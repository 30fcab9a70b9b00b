#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/macros.h"
#include "harness/test.h"

TEST(every_length_comes_back)
{
    uint8_t bytes[256];

    for (unsigned i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 37 + 11);
    for (size_t size = 0; size <= sizeof(bytes); size++) {
        char *text = base64_encode(bytes, size), *data = NULL;
        size_t got = 0;

        ASSERT_EQ(strlen(text), (size + 2) / 3 * 4);
        ASSERT_OK(base64_decode(text, strlen(text), &data, &got));
        ASSERT_EQ(got, size);
        ASSERT_MEMEQ(data, bytes, size);
        ASSERT_EQ(data[size], '\0');
        free(data);
        free(text);
    }
}

TEST(known_values)
{
    static const char *const values[][2] = {{"", ""},
                                            {"f", "Zg=="},
                                            {"fo", "Zm8="},
                                            {"foo", "Zm9v"},
                                            {"foob", "Zm9vYg=="},
                                            {"\xff\xfe", "//4="},
                                            {"\xfb\xef\xbe", "++++"}};

    for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
        char *text = base64_encode(values[i][0], strlen(values[i][0]));

        ASSERT_STREQ(text, values[i][1]);
        free(text);
    }
}

TEST(nothing_but_what_is_written_is_read)
{
    static const char *const wrong[] = {"Z",     "Zg",   "Zg=",  "Zh==",     "Zm9=",  "=",
                                        "==",    "====", "Z===", "Zg==Zg==", "Zm8= ", "Zm 8",
                                        "Zm\n8", "Z-_=", "Zg=a", "Zm8=x"};
    char *data = NULL;
    size_t size = 0;

    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
        ASSERT_ERR(base64_decode(wrong[i], strlen(wrong[i]), &data, &size), EINVAL);
    ASSERT_ERR(base64_decode("Zg\0=", 4, &data, &size), EINVAL);
    ASSERT_TRUE(data == NULL);
}
