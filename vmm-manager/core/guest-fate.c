#include "core/guest-fate.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/macros.h"

#define TAIL_BYTES (64u * 1024u)

static const struct mark {
    const char *text;
    enum guest_fate fate;
} marks[] = {
    /* The first that stands in the log decides: out of memory is a panic too. */
    {"Kernel panic - not syncing: Out of memory", GUEST_FATE_OUT_OF_MEMORY},
    {"Kernel panic - not syncing: System is deadlocked on memory", GUEST_FATE_OUT_OF_MEMORY},
    {"Kernel panic - not syncing", GUEST_FATE_PANIC},
    {"hearth-init: fatal: ", GUEST_FATE_INIT_FAILED},
    {"reboot: Power down", GUEST_FATE_POWERED_OFF},
    {"reboot: Restarting system", GUEST_FATE_POWERED_OFF},
    {"reboot: System halted", GUEST_FATE_POWERED_OFF},
};

/* Copies one line of guest text, printable ASCII only. */
static void copy_line(const char *from, char line[GUEST_FATE_LINE_MAX])
{
    size_t n = 0;

    for (; *from && *from != '\n' && *from != '\r' && n + 1 < GUEST_FATE_LINE_MAX; from++)
        line[n++] = *from >= ' ' && *from < 127 ? *from : '?';
    line[n] = '\0';
}

static void copy_last_line(char *text, char line[GUEST_FATE_LINE_MAX])
{
    size_t n = strlen(text);
    char *start;

    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r' || text[n - 1] == ' '))
        text[--n] = '\0';
    start = strrchr(text, '\n');
    copy_line(start ? start + 1 : text, line);
}

enum guest_fate guest_fate_read(const char *log_path, char line[GUEST_FATE_LINE_MAX])
{
    _cleanup_close_ int fd = open(log_path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    _cleanup_free_ char *text = malloc(TAIL_BYTES + 1);
    struct stat st;
    ssize_t n;

    line[0] = '\0';
    if (fd < 0 || !text || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return GUEST_FATE_UNKNOWN;
    if (st.st_size > (off_t)TAIL_BYTES && lseek(fd, -(off_t)TAIL_BYTES, SEEK_END) < 0)
        return GUEST_FATE_UNKNOWN;
    n = fd_read_full(fd, text, TAIL_BYTES);
    if (n <= 0)
        return GUEST_FATE_UNKNOWN;
    text[n] = '\0';
    for (ssize_t i = 0; i < n; i++) {
        if (text[i] == '\0')
            text[i] = '?';
    }
    for (size_t i = 0; i < ARRAY_SIZE(marks); i++) {
        const char *found = strstr(text, marks[i].text);

        if (found) {
            copy_line(found, line);
            return marks[i].fate;
        }
    }
    copy_last_line(text, line);
    return GUEST_FATE_UNKNOWN;
}

bool guest_fate_ended(const char *what, const char *log_path, const char *reason, struct error *err)
{
    char line[GUEST_FATE_LINE_MAX];

    switch (guest_fate_read(log_path, line)) {
    case GUEST_FATE_POWERED_OFF:
        return true;
    case GUEST_FATE_PANIC:
        (void)error_set_code(err, ERR_GUEST_PANIC, "%s: the guest's kernel crashed: '%s'", what,
                             line);
        return false;
    case GUEST_FATE_OUT_OF_MEMORY:
        (void)error_set_code(err, ERR_GUEST_OUT_OF_MEMORY,
                             "%s: the guest ran out of memory: '%s'; give it more", what, line);
        return false;
    case GUEST_FATE_INIT_FAILED:
        (void)error_set_code(err, ERR_GUEST_GONE, "%s: the guest could not start: '%s'", what,
                             line);
        return false;
    case GUEST_FATE_UNKNOWN:
        break;
    }
    (void)error_set_code(err, ERR_GUEST_GONE, "%s: its VMM ended (%s)%s%s%s", what, reason,
                         line[0] ? ", the guest's last line was '" : "", line, line[0] ? "'" : "");
    return false;
}

void guest_fate_explain(const char *what, const char *log_path, struct error *err)
{
    char line[GUEST_FATE_LINE_MAX];
    struct error why = {0};

    switch (guest_fate_read(log_path, line)) {
    case GUEST_FATE_PANIC:
    case GUEST_FATE_OUT_OF_MEMORY:
    case GUEST_FATE_INIT_FAILED:
        (void)guest_fate_ended(what, log_path, "", &why);
        error_copy(err, &why);
        return;
    case GUEST_FATE_POWERED_OFF:
    case GUEST_FATE_UNKNOWN:
        break;
    }
    (void)error_set_errno(&why, err->code, err->errnum, "%s: %s; %s%s%s", what, err->text,
                          line[0] ? "the guest's last line was '" : "the guest printed nothing",
                          line, line[0] ? "'" : "");
    error_copy(err, &why);
}
