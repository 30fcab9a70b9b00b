#include "backend/qemu/qemu-state.h"

#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/macros.h"

#define MAGIC "QEVM"
#define HEAD 8 /* magic and version */
#define SECTION_FULL 4
#define SECTION_CONFIGURATION 7
#define SECTION_FOOTER 0x7e
#define NUMBER 4
#define NAME_AT (1 + NUMBER + 1) /* kind, number, length of the name */

int state_is_bare(const char *path, bool *ret, struct error *err)
{
    char head[HEAD + 1];
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n;

    if (fd < 0)
        return error_set(err, errno, "open '%s': %s", path, errno_text(errno));
    n = fd_read_full(fd, head, sizeof(head));
    if (n < 0)
        return error_set(err, (int)-n, "read '%s': %s", path, errno_text((int)-n));
    if (n < (ssize_t)sizeof(head) || memcmp(head, MAGIC, strlen(MAGIC)) != 0)
        return error_set_code(err, ERR_SNAPSHOT_INVALID, "'%s' is no state of QEMU", path);
    *ret = head[HEAD] != SECTION_CONFIGURATION;
    return 0;
}

/* Bytes of a section that begins here, its footer included; 0 when none does. */
static size_t section_size(const uint8_t *at, size_t left)
{
    uint8_t footer[1 + NUMBER] = {SECTION_FOOTER};
    const uint8_t *end;

    if (left < NAME_AT || at[0] != SECTION_FULL || left - NAME_AT < at[NAME_AT - 1])
        return 0;
    memcpy(footer + 1, at + 1, NUMBER);
    end = memmem(at + NAME_AT, left - NAME_AT, footer, sizeof(footer));
    return end ? (size_t)(end - at) + sizeof(footer) : 0;
}

/* The next section of a virtio device at or after *at, which moves behind it; false: none. */
static bool next_queues(const uint8_t *data, size_t size, size_t *at, const uint8_t **ret,
                        size_t *ret_size)
{
    static const char mark[] = "virtio";

    while (*at < size) {
        size_t n = section_size(data + *at, size - *at);
        const uint8_t *section = data + *at;

        if (n == 0)
            return false;
        *at += n;
        if (memmem(section + NAME_AT, section[NAME_AT - 1], mark, strlen(mark))) {
            *ret = section;
            *ret_size = n;
            return true;
        }
    }
    return false;
}

bool state_same_queues(const void *a, size_t size_a, const void *b, size_t size_b)
{
    const uint8_t *in_a = NULL, *in_b = NULL;
    size_t at_a = HEAD, at_b = HEAD, n_a = 0, n_b = 0, found = 0;

    for (;; found++) {
        bool more_a = next_queues(a, size_a, &at_a, &in_a, &n_a);
        bool more_b = next_queues(b, size_b, &at_b, &in_b, &n_b);

        if (more_a != more_b)
            return false;
        if (!more_a)
            break;
        if (n_a != n_b || memcmp(in_a, in_b, n_a) != 0)
            return false;
    }
    /* Not as it is known here: then all of it counts. */
    return found > 0 || (size_a == size_b && memcmp(a, b, size_a) == 0);
}
