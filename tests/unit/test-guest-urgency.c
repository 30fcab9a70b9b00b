#include "base/clock.h"
#include "guest/urgency.h"
#include "harness/test.h"

/* `n` turns with output, `apart` of each other; how many of them were urgent. */
static unsigned turns(struct urgency *u, uint64_t *now, unsigned n, uint64_t apart)
{
    unsigned urgent = 0;

    for (unsigned i = 0; i < n; i++) {
        *now += apart;
        urgency_output(u);
        urgent += urgency_turn(u, *now);
    }
    return urgent;
}

TEST(output_without_end_is_not_urgent)
{
    struct urgency u = {0};
    uint64_t now = 77 * USEC_PER_SEC;
    unsigned urgent = turns(&u, &now, 100, USEC_PER_MSEC);

    ASSERT_TRUE(urgent > 0 && urgent < 20);
    ASSERT_FALSE(urgency_turn(&u, now)); /* a turn without output changes nothing */
    urgency_input(&u);
    ASSERT_TRUE(urgency_turn(&u, now));
}

/* Otherwise a guest would be slow to hear its host from the end of much output on. */
TEST(a_pause_is_urgent_again_and_has_its_own_deadline)
{
    struct urgency u = {0};
    uint64_t now = 77 * USEC_PER_SEC;

    ASSERT_EQ(urgency_deadline(&u), USEC_INFINITY);
    (void)turns(&u, &now, 100, 10);
    ASSERT_TRUE(urgency_deadline(&u) > now && urgency_deadline(&u) < now + USEC_PER_SEC);
    ASSERT_FALSE(urgency_turn(&u, urgency_deadline(&u) - 1));
    ASSERT_TRUE(urgency_turn(&u, urgency_deadline(&u)));
    ASSERT_EQ(urgency_deadline(&u), USEC_INFINITY);
}

TEST(output_now_and_then_is_urgent)
{
    struct urgency u = {0};
    uint64_t now = 77 * USEC_PER_SEC;

    ASSERT_EQ(turns(&u, &now, 100, 10 * USEC_PER_MSEC), 100);
    (void)turns(&u, &now, 50, 10);
    ASSERT_FALSE(urgency_turn(&u, now));
    ASSERT_EQ(turns(&u, &now, 1, USEC_PER_SEC), 1);
}

TEST(commands_one_after_the_other_are_urgent)
{
    struct urgency u = {0};
    uint64_t now = 77 * USEC_PER_SEC;

    for (unsigned i = 0; i < 100; i++) {
        urgency_input(&u);
        ASSERT_EQ(turns(&u, &now, 2, 100), 2);
    }
}
