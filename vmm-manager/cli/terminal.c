#include "cli/terminal.h"

#include <errno.h>
#include <sys/ioctl.h>
#include <unistd.h>

static int set_raw(const struct termios *from)
{
    struct termios raw = *from;

    cfmakeraw(&raw);
    return tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) < 0 ? -errno : 0;
}

int terminal_raw(struct terminal *t)
{
    int r;

    if (tcgetattr(STDIN_FILENO, &t->saved) < 0)
        return -errno;
    r = set_raw(&t->saved);
    if (r < 0)
        return r;
    t->raw = true;
    return 0;
}

void terminal_restore(struct terminal *t)
{
    if (t->raw)
        (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &t->saved);
    t->raw = false;
}

void terminal_again(struct terminal *t)
{
    if (t->raw)
        (void)set_raw(&t->saved);
}

int terminal_size(uint16_t *ret_rows, uint16_t *ret_cols)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        struct winsize size;

        if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0) {
            *ret_rows = size.ws_row;
            *ret_cols = size.ws_col;
            return 0;
        }
    }
    return -ENOTTY;
}
