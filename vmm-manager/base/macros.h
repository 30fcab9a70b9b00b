#pragma once

#include <stddef.h>
#include <stdlib.h>

/* Scope guards. A variable marked with one of these is initialised at its declaration. */
#define _cleanup_(fn) __attribute__((cleanup(fn)))
#define _printf_(fmt_index, first) __attribute__((format(printf, fmt_index, first)))
#define _unused_ __attribute__((unused))

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* Hands a pointer over: the variable is NULL afterwards, so its guard does nothing. */
#define TAKE_PTR(p)                                                                                \
    ({                                                                                             \
        __typeof__(p) take_ptr_value = (p);                                                        \
        (p) = NULL;                                                                                \
        take_ptr_value;                                                                            \
    })

/* The same for a file descriptor; an unset descriptor is -EBADF. */
#define TAKE_FD(fd)                                                                                \
    ({                                                                                             \
        int take_fd_value = (fd);                                                                  \
        (fd) = -EBADF;                                                                             \
        take_fd_value;                                                                             \
    })

#define container_of(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

static inline void free_cleanup(void *p)
{
    free(*(void **)p);
}
#define _cleanup_free_ _cleanup_(free_cleanup)
