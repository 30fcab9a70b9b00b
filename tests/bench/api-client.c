#include "api-client.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"

#define STATUS_AT 9 /* after "HTTP/1.1 " */
#define SWITCHING 101

int api_connect(const char *path)
{
    int fd = fd_connect_unix(path), r;

    if (fd < 0)
        return fd;
    r = fd_set_nonblock(fd, false);
    if (r < 0)
        (void)fd_close(fd);
    return r < 0 ? r : fd;
}

/* Whether all of the answer is there. */
static bool is_whole(struct api_answer *a)
{
    const char *end, *length;

    a->data[a->size] = '\0';
    end = strstr(a->data, "\r\n\r\n");
    if (!end || a->size <= STATUS_AT)
        return false;
    a->head = (size_t)(end + 4 - a->data);
    a->status = (int)strtol(a->data + STATUS_AT, NULL, 10);
    if (a->status == SWITCHING)
        return true;
    length = strcasestr(a->data, "\r\nContent-Length:");
    return length && length < end && a->size >= a->head + strtoul(length + 17, NULL, 10);
}

int api_ask(int fd, const char *request, size_t size, struct api_answer *ret)
{
    int r = fd_write_full(fd, request, size);

    ret->size = 0;
    while (r >= 0) {
        ssize_t n = ret->size < API_ANSWER_MAX
                        ? read(fd, ret->data + ret->size, API_ANSWER_MAX - ret->size)
                        : 0;

        if (n <= 0)
            return n < 0 ? -errno : -ECONNRESET;
        ret->size += (size_t)n;
        if (is_whole(ret))
            return 0;
    }
    return r;
}
