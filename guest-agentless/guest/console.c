#include "guest/console.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/macros.h"

#define LEVEL "<2>" /* of a kernel message: above what `quiet` hides */
#define PREFIX LEVEL "hearth-init: "

static int console_fd = -EBADF;

void console_open(void)
{
    console_fd = open("/dev/console", O_WRONLY | O_NOCTTY | O_CLOEXEC);
}

/* A serial port without an interrupt serves the kernel's own messages only. */
static void say_by_kernel(const char *text, size_t size)
{
    _cleanup_close_ int fd = open("/dev/kmsg", O_WRONLY | O_CLOEXEC);

    if (fd >= 0)
        (void)!write(fd, text, size);
}

void console_say(const char *format, ...)
{
    char text[600] = PREFIX;
    size_t prefix = sizeof(PREFIX) - 1;
    va_list ap;
    int n;

    va_start(ap, format);
    n = vsnprintf(text + prefix, sizeof(text) - prefix - 1, format, ap);
    va_end(ap);
    if (n < 0)
        return;
    prefix += MIN((size_t)n, sizeof(text) - prefix - 2);
    text[prefix++] = '\n';
    if (console_fd < 0 || write(console_fd, text + strlen(LEVEL), prefix - strlen(LEVEL)) < 0)
        say_by_kernel(text, prefix);
}

void console_drain(void)
{
    if (console_fd >= 0)
        (void)tcdrain(console_fd);
}
