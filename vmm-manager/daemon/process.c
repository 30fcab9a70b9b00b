#include "daemon/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"

/* VMs are more expendable than the daemon that can start them again. */
#define OOM_SCORE "-500"

static void ignore_sigpipe(void)
{
    struct sigaction action = {.sa_handler = SIG_IGN};

    if (sigaction(SIGPIPE, &action, NULL) < 0)
        (void)log_warning_errno(-errno, "Failed to ignore SIGPIPE, ignoring");
}

static void raise_files(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
        (void)log_warning_errno(-errno, "Failed to raise the limit of open files, ignoring");
}

static void spare_from_oom(void)
{
    _cleanup_close_ int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

    if (fd < 0 || fd_write_full(fd, OOM_SCORE, strlen(OOM_SCORE)) < 0)
        log_debug("Failed to lower the OOM score, ignoring");
}

void process_set_up(void)
{
    ignore_sigpipe();
    raise_files();
    spare_from_oom();
    /* VMMs double-fork away from libvirt; as their reaper we can wait for each by its pid. */
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        (void)log_warning_errno(-errno, "Failed to become a subreaper, ignoring");
    (void)umask(0077);
}
