#pragma once

#include <stdint.h>

#define USEC_PER_SEC UINT64_C(1000000)
#define USEC_PER_MSEC UINT64_C(1000)
#define NSEC_PER_SEC UINT64_C(1000000000)
#define USEC_INFINITY UINT64_MAX

/* Monotonic time, for deadlines and durations. */
uint64_t clock_now_usec(void);
/* Wall clock since 1970, for records and people. */
uint64_t clock_wall_usec(void);
/* Wall clock as RFC 3339 in UTC with milliseconds, at least 25 bytes. */
void clock_format_wall(uint64_t wall_usec, char *text, unsigned size);
