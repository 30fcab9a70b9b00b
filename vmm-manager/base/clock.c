#include "base/clock.h"

#include <stdio.h>
#include <time.h>

static uint64_t now(clockid_t id)
{
    struct timespec ts;

    (void)clock_gettime(id, &ts);
    return (uint64_t)ts.tv_sec * USEC_PER_SEC + (uint64_t)ts.tv_nsec / 1000;
}

uint64_t clock_now_usec(void)
{
    return now(CLOCK_MONOTONIC);
}

uint64_t clock_wall_usec(void)
{
    return now(CLOCK_REALTIME);
}

void clock_format_wall(uint64_t wall_usec, char *text, unsigned size)
{
    time_t seconds = (time_t)(wall_usec / USEC_PER_SEC);
    struct tm tm;
    char date[32];

    (void)gmtime_r(&seconds, &tm);
    (void)strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(text, size, "%s.%03uZ", date,
                   (unsigned)(wall_usec % USEC_PER_SEC / USEC_PER_MSEC));
}
