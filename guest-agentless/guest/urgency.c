#include "guest/urgency.h"

#include <sched.h>

#include "base/clock.h"

#define SOON_USEC (5 * USEC_PER_MSEC)
#define STREAK_MAX 8u

bool urgency_turn(struct urgency *u, uint64_t now_usec)
{
    if (now_usec - u->at_usec >= SOON_USEC)
        u->streak = 0;
    else if (u->output && u->streak < STREAK_MAX)
        u->streak++;
    if (u->output)
        u->at_usec = now_usec;
    u->output = false;
    return u->streak < STREAK_MAX;
}

uint64_t urgency_deadline(const struct urgency *u)
{
    return u->streak < STREAK_MAX ? USEC_INFINITY : u->at_usec + SOON_USEC;
}

void urgency_apply(bool urgent)
{
    const struct sched_param param = {.sched_priority = urgent ? 1 : 0};

    /* A kernel that refuses it is only slower to answer. */
    (void)sched_setscheduler(0, (urgent ? SCHED_FIFO : SCHED_OTHER) | SCHED_RESET_ON_FORK, &param);
}
