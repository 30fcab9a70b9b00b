#include "guest/console.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <termios.h>
#include <unistd.h>

#include "base/macros.h"

#define PREFIX "hearth-init: "

static int console_fd = -EBADF;

void console_open(void)
{
    console_fd = open("/dev/console", O_WRONLY | O_NOCTTY | O_CLOEXEC);
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
    if (n < 0 || console_fd < 0)
        return;
    prefix += MIN((size_t)n, sizeof(text) - prefix - 2);
    text[prefix++] = '\n';
    (void)!write(console_fd, text, prefix);
}

void console_drain(void)
{
    if (console_fd >= 0)
        (void)tcdrain(console_fd);
}
