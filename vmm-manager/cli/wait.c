#include "cli/wait.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/macros.h"
#include "cli/progress.h"

#define TICK_MSEC 100

uint64_t wait_deadline(uint64_t usec)
{
    return usec == USEC_INFINITY ? USEC_INFINITY : clock_now_usec() + usec;
}

/* Resizes and the like do not end a wait: whoever needs the size asks for it later. */
static bool ask_signal(struct wait *w)
{
    struct signalfd_siginfo info;
    ssize_t n = read(w->signal_fd, &info, sizeof(info));

    if (n != (ssize_t)sizeof(info) || (info.ssi_signo != SIGINT && info.ssi_signo != SIGTERM &&
                                       info.ssi_signo != SIGHUP && info.ssi_signo != SIGQUIT))
        return false;
    w->signal = (int)info.ssi_signo;
    return true;
}

int wait_fd(struct wait *w, int fd, short events, uint64_t deadline_usec)
{
    for (;;) {
        struct pollfd fds[2] = {
            {.fd = fd, .events = events},
            {.fd = w->signal_fd, .events = POLLIN},
        };
        int timeout_msec = -1, r;

        if (deadline_usec != USEC_INFINITY) {
            uint64_t now = clock_now_usec();

            if (now >= deadline_usec)
                return -ETIMEDOUT;
            timeout_msec = (int)MIN((deadline_usec - now) / USEC_PER_MSEC + 1, (uint64_t)3600000);
        }
        if (w->progress && w->progress->terminal && (timeout_msec < 0 || timeout_msec > TICK_MSEC))
            timeout_msec = TICK_MSEC;
        r = poll(fds, 2, timeout_msec);
        if (r < 0 && errno != EINTR)
            return -errno;
        if (w->progress)
            progress_tick(w->progress);
        if (r <= 0)
            continue;
        if (fds[0].revents)
            return fds[0].revents;
        if (fds[1].revents && ask_signal(w))
            return -EINTR;
    }
}
