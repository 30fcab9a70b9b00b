#include "backend/firecracker/fc-zero.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fd.h"

#define BLOCK_SIZE 4096u
#define CHUNK_SIZE (1u << 20)

static bool is_zero(const uint8_t *data, size_t size)
{
    return data[0] == 0 && memcmp(data, data + 1, size - 1) == 0;
}

/* Punches what was zero from `from` to `to`, if anything. */
static int punch(int fd, off_t from, off_t to)
{
    if (from >= to)
        return 0;
    return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, to - from) < 0 ? -errno
                                                                                          : 0;
}

int fc_zero_punch(const char *path, struct error *err)
{
    _cleanup_close_ int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    _cleanup_free_ uint8_t *chunk = malloc(CHUNK_SIZE);
    off_t at = 0, zero_from = 0;
    int r = 0;

    if (fd < 0)
        return error_set(err, errno, "open '%s': %s", path, errno_text(errno));
    if (!chunk)
        return error_set(err, ENOMEM, "out of memory");
    while (r >= 0) {
        ssize_t n = fd_read_full(fd, chunk, CHUNK_SIZE);

        if (n <= 0) {
            r = n < 0 ? (int)n : punch(fd, zero_from, at);
            break;
        }
        for (size_t i = 0; i < (size_t)n && r >= 0; i += BLOCK_SIZE) {
            size_t size = MIN((size_t)n - i, (size_t)BLOCK_SIZE);

            if (is_zero(chunk + i, size))
                continue;
            r = punch(fd, zero_from, at + (off_t)i);
            zero_from = at + (off_t)(i + size);
        }
        at += n;
    }
    /* A file system without holes keeps the zeros. */
    return r < 0 && r != -EOPNOTSUPP ? error_set(err, -r, "'%s': %s", path, errno_text(-r)) : 0;
}
