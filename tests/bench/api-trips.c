/*
 * api-trips SOCKET: the API's side of the round trips, a plain client as bare-clone is one.
 *
 * Lines on stdin: "METHOD PATH COUNT BODY". Each is asked COUNT times on one kept connection; the
 * microseconds from the first byte sent to the last one received come back as a line of JSON. It
 * ends at an answer that is not a 2xx, which goes to stderr.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/strv.h"

#define ANSWER_MAX 65536u

struct answer {
    char data[ANSWER_MAX + 1];
    size_t size;
};

/* Bytes of the whole answer once its head is there, else 0. */
static size_t answer_size(struct answer *a)
{
    const char *end, *length;

    a->data[a->size] = '\0';
    end = strstr(a->data, "\r\n\r\n");
    length = strcasestr(a->data, "\r\nContent-Length:");
    if (!end || !length || length > end)
        return 0;
    return (size_t)(end + 4 - a->data) + strtoul(length + 17, NULL, 10);
}

static int ask(int fd, const char *request, size_t size, struct answer *a)
{
    size_t want = 0;
    int r = fd_write_full(fd, request, size);

    a->size = 0;
    while (r >= 0 && (want == 0 || a->size < want)) {
        ssize_t n = a->size < ANSWER_MAX ? read(fd, a->data + a->size, ANSWER_MAX - a->size) : 0;

        if (n <= 0)
            return n < 0 ? -errno : -ECONNRESET;
        a->size += (size_t)n;
        want = answer_size(a);
    }
    return r < 0 ? r : 0;
}

static int trips(int fd, const char *method, const char *path, uint64_t count, const char *body)
{
    _cleanup_free_ char *request =
        string_printf("%s %s HTTP/1.1\r\nHost: hearth\r\nContent-Length: %zu\r\n\r\n%s", method,
                      path, strlen(body), body);
    static struct answer a;

    if (!request)
        return -ENOMEM;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t from = clock_now_usec();
        int r = ask(fd, request, strlen(request), &a);

        if (r < 0)
            return r;
        if (a.size < 10 || a.data[9] != '2') {
            (void)fprintf(stderr, "api-trips: %s\n", a.data);
            return -EPROTO;
        }
        (void)printf("%s%llu", i ? ", " : "[", (unsigned long long)(clock_now_usec() - from));
    }
    (void)printf("]\n");
    return fflush(stdout) == 0 ? 0 : -errno;
}

int main(int argc, char **argv)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    static char line[8192];
    int fd, r = 0;

    if (argc != 2 || strlen(argv[1]) >= sizeof(to.sun_path)) {
        (void)fprintf(stderr, "usage: api-trips SOCKET\n");
        return 2;
    }
    (void)snprintf(to.sun_path, sizeof(to.sun_path), "%s", argv[1]);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0) {
        (void)fprintf(stderr, "api-trips: '%s': %s\n", argv[1], errno_text(errno));
        return 1;
    }
    while (r >= 0 && fgets(line, sizeof(line), stdin)) {
        char method[16], path[512];
        unsigned long long count;
        int body = 0;

        line[strcspn(line, "\n")] = '\0';
        if (sscanf(line, "%15s %511s %llu %n", method, path, &count, &body) < 3 || body == 0)
            r = -EINVAL;
        else
            r = trips(fd, method, path, count, line + body);
    }
    if (r < 0)
        (void)fprintf(stderr, "api-trips: %s\n", errno_text(-r));
    (void)fd_close(fd);
    return r < 0 ? 1 : 0;
}
