#include "harness/test.h"

#include "base/buf.h"

TEST(appends_and_consumes)
{
    _cleanup_buf_ struct buf b;

    buf_init(&b, 1000);
    ASSERT_STREQ(buf_string(&b), "");
    ASSERT_OK(buf_append_string(&b, "hello "));
    ASSERT_OK(buf_printf(&b, "%s %d", "world", 7));
    ASSERT_STREQ(buf_string(&b), "hello world 7");
    buf_consume(&b, 6);
    ASSERT_STREQ(buf_string(&b), "world 7");
    buf_consume(&b, 100);
    ASSERT_EQ(b.size, 0);
}

TEST(refuses_to_pass_its_limit_and_changes_nothing)
{
    _cleanup_buf_ struct buf b;

    buf_init(&b, 10);
    ASSERT_OK(buf_append(&b, "0123456789", 10));
    ASSERT_ERR(buf_append(&b, "x", 1), ENOBUFS);
    ASSERT_ERR(buf_printf(&b, "%d", 1), ENOBUFS);
    ASSERT_STREQ(buf_string(&b), "0123456789");
    buf_consume(&b, 4);
    ASSERT_OK(buf_append(&b, "abcd", 4));
    ASSERT_ERR(buf_append(&b, "e", 1), ENOBUFS);
    ASSERT_STREQ(buf_string(&b), "456789abcd");
}

TEST(keeps_content_over_many_grows_and_moves)
{
    _cleanup_buf_ struct buf b;
    uint8_t next_in = 0, next_out = 0;

    buf_init(&b, 5000);
    for (int i = 0; i < 20000; i++) {
        uint8_t block[37];

        for (size_t j = 0; j < sizeof(block); j++)
            block[j] = next_in++;
        if (buf_append(&b, block, sizeof(block)) < 0)
            next_in = (uint8_t)(next_in - sizeof(block));
        while (b.size > 4000 - (size_t)(i % 4000)) {
            const uint8_t *data = buf_data(&b);

            ASSERT_TRUE(data != NULL);
            ASSERT_EQ(data[0], next_out);
            next_out++;
            buf_consume(&b, 1);
        }
    }
}
