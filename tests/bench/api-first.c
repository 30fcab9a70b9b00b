/*
 * api-first SOCKET: creations over the API, each to the first byte of output of a command in it.
 *
 * Lines on stdin: the body of a creation. For each a line of JSON comes back: the microseconds from
 * its connection to the answer and to the output of `echo x` as a stream, and the sandbox, which
 * stays. It ends at an answer that says no, which goes to stderr.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api-client.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/strv.h"
#include "cli/stream-frame.h"

#define COMMAND "{\"argv\": [\"/bin/echo\", \"x\"]}"
#define ID "\"id\":\""

struct stream {
    int fd;                      /* weak */
    struct api_answer *buffered; /* weak; what is read and not yet looked at begins at .head */
};

/* Reads until so many bytes lie behind the head. */
static int want(struct stream *s, size_t size)
{
    struct api_answer *a = s->buffered;

    if (size > API_ANSWER_MAX / 2)
        return -EPROTO;
    (void)memmove(a->data, a->data + a->head, a->size - a->head);
    a->size -= a->head;
    a->head = 0;
    while (a->size < size) {
        ssize_t n = read(s->fd, a->data + a->size, API_ANSWER_MAX - a->size);

        if (n <= 0)
            return n < 0 ? -errno : -ECONNRESET;
        a->size += (size_t)n;
    }
    return 0;
}

/* Reads frames up to one of this type. */
static int frames_until(struct stream *s, enum stream_type type)
{
    struct api_answer *a = s->buffered;
    struct stream_header header = {0};
    struct error err = {0};

    do {
        int r = want(s, STREAM_HEADER_SIZE);

        if (r >= 0)
            r = stream_header_decode((const uint8_t *)a->data, &header, &err);
        if (r >= 0)
            r = want(s, STREAM_HEADER_SIZE + header.size);
        if (r < 0)
            return r;
        if (header.type == STREAM_ERROR) {
            (void)fprintf(stderr, "api-first: %.*s\n", (int)header.size,
                          a->data + STREAM_HEADER_SIZE);
            return -EPROTO;
        }
        a->head = STREAM_HEADER_SIZE + header.size;
    } while (header.type != type);
    return 0;
}

static int ask(int fd, const char *path, const char *head, const char *body, int status,
               struct api_answer *ret)
{
    _cleanup_free_ char *request =
        string_printf("POST %s HTTP/1.1\r\nHost: hearth\r\n%sContent-Length: %zu\r\n\r\n%s", path,
                      head, strlen(body), body);
    int r = !request ? -ENOMEM : fd < 0 ? fd : api_ask(fd, request, strlen(request), ret);

    if (r >= 0 && ret->status != status) {
        (void)fprintf(stderr, "api-first: %s: %s\n", path, ret->data);
        r = -EPROTO;
    }
    return r;
}

static int first(const char *socket, const char *body)
{
    static struct api_answer created, answer;
    uint64_t from = clock_now_usec(), created_usec = 0, output_usec = 0;
    _cleanup_close_ int to = api_connect(socket), exec = -EBADF;
    struct stream s = {.buffered = &answer};
    const char *id = NULL;
    char path[128];
    int r = ask(to, "/v1/sandboxes", "", body, 201, &created);

    if (r >= 0) {
        created_usec = clock_now_usec() - from;
        id = strstr(created.data + created.head, ID);
        r = id ? 0 : -EPROTO;
    }
    if (r >= 0) {
        id += strlen(ID);
        (void)snprintf(path, sizeof(path), "/v1/sandboxes/%.*s/exec", (int)strcspn(id, "\""), id);
        exec = s.fd = api_connect(socket);
        r = ask(exec, path, "Connection: Upgrade\r\nUpgrade: hearth-stream\r\n", COMMAND, 101,
                &answer);
    }
    if (r >= 0)
        r = frames_until(&s, STREAM_STDOUT);
    output_usec = clock_now_usec() - from;
    if (r >= 0)
        r = frames_until(&s, STREAM_EXIT);
    if (r >= 0)
        (void)printf("{\"created\": %llu, \"output\": %llu, \"sandbox\": %s}\n",
                     (unsigned long long)created_usec, (unsigned long long)output_usec,
                     created.data + created.head);
    return r < 0 ? r : fflush(stdout) == 0 ? 0 : -errno;
}

int main(int argc, char **argv)
{
    static char line[8192];
    int r = 0;

    if (argc != 2) {
        (void)fprintf(stderr, "usage: api-first SOCKET\n");
        return 2;
    }
    while (r >= 0 && fgets(line, sizeof(line), stdin)) {
        line[strcspn(line, "\n")] = '\0';
        r = first(argv[1], line);
    }
    if (r < 0)
        (void)fprintf(stderr, "api-first: %s\n", errno_text(-r));
    return r < 0 ? 1 : 0;
}
