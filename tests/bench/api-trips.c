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

#include "api-client.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/strv.h"

static int trips(int fd, const char *method, const char *path, uint64_t count, const char *body)
{
    _cleanup_free_ char *request =
        string_printf("%s %s HTTP/1.1\r\nHost: hearth\r\nContent-Length: %zu\r\n\r\n%s", method,
                      path, strlen(body), body);
    static struct api_answer a;

    if (!request)
        return -ENOMEM;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t from = clock_now_usec();
        int r = api_ask(fd, request, strlen(request), &a);

        if (r < 0)
            return r;
        if (a.status / 100 != 2) {
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
    static char line[8192];
    int fd, r = 0;

    if (argc != 2) {
        (void)fprintf(stderr, "usage: api-trips SOCKET\n");
        return 2;
    }
    fd = api_connect(argv[1]);
    if (fd < 0) {
        (void)fprintf(stderr, "api-trips: '%s': %s\n", argv[1], errno_text(-fd));
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
