#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/*
 * A stand-in for Firecracker that does what the real one will not do on demand. It listens on the
 * API socket it is given and answers every request well, except one: the file `plan` beside the
 * program says which ("N FAULT", counted from 1; N 0: at the start). It appends its pid to `pids`
 * beside the program.
 */
#define REQUEST_MAX 65536
#define HUGE_BYTES (4u << 20)

static char directory[512];

static void path_of(const char *name, char path[600])
{
    (void)snprintf(path, 600, "%s/%s", directory, name);
}

static void find_directory(void)
{
    ssize_t n = readlink("/proc/self/exe", directory, sizeof(directory) - 1);

    directory[n > 0 ? n : 0] = '\0';
    if (strrchr(directory, '/'))
        *strrchr(directory, '/') = '\0';
}

static int read_plan(char fault[32])
{
    char path[600];
    int at = -1;
    FILE *f;

    fault[0] = '\0';
    path_of("plan", path);
    f = fopen(path, "re");
    if (f && fscanf(f, "%d %31s", &at, fault) != 2)
        at = -1;
    if (f)
        (void)fclose(f);
    return at;
}

static void note_pid(void)
{
    char path[600], text[32];
    int fd, n = snprintf(text, sizeof(text), "%d\n", (int)getpid());

    path_of("pids", path);
    fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, text, (size_t)n) != n)
        exit(3);
    (void)close(fd);
}

_Noreturn static void hang(void)
{
    for (;;)
        (void)pause();
}

static void say(int fd, const char *text, size_t size)
{
    while (size > 0) {
        ssize_t n = send(fd, text, size, MSG_NOSIGNAL);

        if (n <= 0)
            return;
        text += n;
        size -= (size_t)n;
    }
}

static void say_text(int fd, const char *text)
{
    say(fd, text, strlen(text));
}

static void answer_slowly(int fd)
{
    static const char text[] = "HTTP/1.1 204 \r\nServer: Firecracker API\r\n\r\n";
    const struct timespec pause = {.tv_nsec = 2 * 1000 * 1000};

    for (const char *p = text; *p; p++) {
        say(fd, p, 1);
        (void)nanosleep(&pause, NULL);
    }
}

static void answer_huge(int fd, bool endless)
{
    static char block[65536];
    unsigned sent = 0;

    memset(block, ' ', sizeof(block));
    if (endless)
        say_text(fd, "HTTP/1.1 200 \r\n\r\n{");
    else
        say_text(fd, "HTTP/1.1 200 \r\nContent-Length: 4194304\r\n\r\n{");
    while (endless || sent < HUGE_BYTES) {
        ssize_t n = send(fd, block, sizeof(block), MSG_NOSIGNAL);

        if (n <= 0)
            return;
        sent += (unsigned)n;
    }
}

static bool paused;

static void write_file(const char *request, const char *key)
{
    static char page[8192];
    const char *at = strstr(request, key);
    char name[64];
    int fd;

    page[0] = 1;
    if (!at || sscanf(at + strlen(key), "\":\"%63[^\"]", name) != 1)
        exit(3);
    fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, page, sizeof(page)) != (ssize_t)sizeof(page))
        exit(3);
    (void)close(fd);
}

/* What Firecracker does of it. False: it is not in the state for that. */
static bool do_work(const char *request)
{
    bool wants = paused;

    if (strstr(request, "\"Paused\""))
        wants = true;
    else if (strstr(request, "\"Resumed\""))
        wants = false;
    else if (!strstr(request, "/snapshot/create"))
        return true;
    else if (!paused)
        return false;
    else {
        write_file(request, "snapshot_path");
        write_file(request, "mem_file_path");
        return true;
    }
    if (wants == paused)
        return false;
    paused = wants;
    return true;
}

static void answer_well(int fd, const char *request)
{
    char text[256];

    if (strncmp(request, "GET / ", 6) != 0) {
        say_text(fd, "HTTP/1.1 204 \r\nServer: Firecracker API\r\nConnection: keep-alive\r\n\r\n");
        return;
    }
    (void)snprintf(text, sizeof(text),
                   "HTTP/1.1 200 \r\nContent-Length: %d\r\n\r\n{\"state\":\"%s\"}",
                   paused ? 18 : 19, paused ? "Paused" : "Running");
    say_text(fd, text);
}

static void refuse(int fd)
{
    say_text(fd, "HTTP/1.1 400 \r\nContent-Length: 30\r\n\r\n{\"fault_message\":\"no such VM\"}");
}

/* True: the connection is of no more use. */
static bool misbehave(int fd, const char *fault, const char *request)
{
    if (strcmp(fault, "hang-before") == 0)
        hang();
    if (strcmp(fault, "die-before") == 0)
        exit(1);
    if (strcmp(fault, "close-early") == 0)
        return true;
    if (strcmp(fault, "error-400") == 0) {
        refuse(fd);
        return false;
    }
    if (strcmp(fault, "error-500") == 0) {
        say_text(fd, "HTTP/1.1 500 \r\nContent-Length: 0\r\n\r\n");
        return false;
    }
    (void)do_work(request);
    if (strcmp(fault, "hang-after") == 0)
        hang();
    if (strcmp(fault, "die-after") == 0)
        (void)kill(getpid(), SIGKILL);
    if (strcmp(fault, "half-header") == 0) {
        say_text(fd, "HTTP/1.1 204 \r\nServer: Fire");
        return true;
    }
    if (strcmp(fault, "half-header-hang") == 0) {
        say_text(fd, "HTTP/1.1 204 \r\nServer: Fire");
        hang();
    }
    if (strcmp(fault, "half-body") == 0) {
        say_text(fd, "HTTP/1.1 200 \r\nContent-Length: 100\r\n\r\n{\"id\": ");
        return true;
    }
    if (strcmp(fault, "wrong-json") == 0)
        say_text(fd, "HTTP/1.1 200 \r\nContent-Length: 7\r\n\r\n{\"id\": ");
    else if (strcmp(fault, "garbage") == 0)
        say_text(fd, "\x01\x02 this is no HTTP \xff\r\n\r\n");
    else if (strcmp(fault, "huge-json") == 0)
        answer_huge(fd, false);
    else if (strcmp(fault, "endless-json") == 0)
        answer_huge(fd, true);
    else if (strcmp(fault, "slow") == 0)
        answer_slowly(fd);
    else
        exit(4); /* a fault that nobody knows */
    return strcmp(fault, "wrong-json") != 0 && strcmp(fault, "slow") != 0;
}

/* One whole request with its body; false at the end of the connection. */
static bool read_request(int fd, char *request)
{
    size_t have = 0, need = 0;

    for (;;) {
        ssize_t n = recv(fd, request + have, REQUEST_MAX - 1 - have, 0);
        char *end, *length;

        if (n <= 0)
            return false;
        have += (size_t)n;
        request[have] = '\0';
        end = strstr(request, "\r\n\r\n");
        if (!end)
            continue;
        length = strcasestr(request, "content-length:");
        need = (size_t)(end - request) + 4;
        if (length && length < end)
            need += strtoul(length + strlen("content-length:"), NULL, 10);
        if (have >= need)
            return true;
    }
}

_Noreturn static void serve(int listener, int fault_at, const char *fault)
{
    static char request[REQUEST_MAX];
    int calls = 0;

    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        bool over = fd < 0;

        while (!over && read_request(fd, request)) {
            if (++calls == fault_at) {
                over = misbehave(fd, fault, request);
                continue;
            }
            if (do_work(request))
                answer_well(fd, request);
            else
                refuse(fd);
        }
        if (fd >= 0)
            (void)close(fd);
    }
}

static int listen_on(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 8) < 0)
        exit(3);
    return fd;
}

int main(int argc, char **argv)
{
    const char *socket_path = NULL;
    char fault[32];
    int at;

    find_directory();
    at = read_plan(fault);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--version") == 0) {
            if (strcmp(fault, "version-hang") == 0)
                hang();
            puts(strcmp(fault, "version-old") == 0       ? "Firecracker v1.15.0"
                 : strcmp(fault, "version-rubbish") == 0 ? "Fire? v"
                                                         : "Firecracker v1.16.1");
            return 0;
        }
        if (strcmp(argv[i], "--api-sock") == 0 && i + 1 < argc)
            socket_path = argv[i + 1];
    }
    if (!socket_path)
        return 2;
    note_pid();
    (void)alarm(300); /* a test that failed leaves nothing for long */
    if (at == 0 && strcmp(fault, "start-hang") == 0)
        hang();
    if (at == 0 && strcmp(fault, "start-die") == 0) {
        (void)fprintf(stderr, "stand-in: told to die\n");
        return 1;
    }
    serve(listen_on(socket_path), at, fault);
}
