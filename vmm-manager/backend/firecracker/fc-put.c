#include "backend/firecracker/fc-put.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"

#define REQUEST_MAX 2048
#define ANSWER_MAX 4096u
#define DONE "HTTP/1.1 204"

/* Reads the head of the answer, and with a refusal what came with it. */
static int read_answer(int fd, char answer[static ANSWER_MAX], uint64_t deadline_usec,
                       int cancel_fd)
{
    size_t have = 0;

    for (;;) {
        struct pollfd p[] = {{.fd = fd, .events = POLLIN}, {.fd = cancel_fd, .events = POLLIN}};
        uint64_t now = clock_now_usec();
        ssize_t n;

        if (now >= deadline_usec)
            return -ETIMEDOUT;
        if (poll(p, 2, (int)MIN((deadline_usec - now) / USEC_PER_MSEC + 1, (uint64_t)60000)) <= 0)
            continue;
        if (p[1].revents)
            return -ECANCELED;
        n = recv(fd, answer + have, ANSWER_MAX - 1 - have, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -ECONNRESET;
        have += (size_t)n;
        answer[have] = '\0';
        if (strstr(answer, "\r\n\r\n"))
            return 0;
        if (have == ANSWER_MAX - 1)
            return -EPROTO;
    }
}

int fc_put(const char *socket_path, const char *path, const char *body, uint64_t deadline_usec,
           int cancel_fd, struct error *err)
{
    char request[REQUEST_MAX], answer[ANSWER_MAX] = "";
    _cleanup_close_ int fd = fd_connect_unix(socket_path);
    int n, r = fd;

    n = snprintf(request, sizeof(request),
                 "PUT %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                 "Content-Length: %zu\r\n\r\n%s",
                 path, strlen(body), body);
    if (n < 0 || (size_t)n >= sizeof(request))
        return error_set(err, E2BIG, "PUT %s: too large", path);
    /* The socket is new: its buffer holds this. */
    if (r >= 0 && send(fd, request, (size_t)n, MSG_NOSIGNAL) != (ssize_t)n)
        r = -EPIPE;
    if (r >= 0)
        r = read_answer(fd, answer, deadline_usec, cancel_fd);
    if (r == -ETIMEDOUT)
        return error_set_code(err, ERR_TIMEOUT, "Firecracker did not answer PUT %s in time", path);
    if (r == -ECANCELED)
        return error_set(err, ECANCELED, "PUT %s was given up", path);
    if (r < 0)
        return error_set_code(err, ERR_BACKEND_FAILED, "PUT %s broke off: %s", path,
                              errno_text(-r));
    if (strncmp(answer, DONE, strlen(DONE)) != 0) {
        answer[strcspn(answer, "\r\n")] = '\0';
        return error_set_code(err, ERR_BACKEND_FAILED, "Firecracker refused PUT %s: %.100s", path,
                              answer);
    }
    return 0;
}
