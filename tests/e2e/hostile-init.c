/*
 * A guest that does not keep to the protocol, as PID 1 in place of hearth-init. One program per
 * HOSTILE_MODE. It answers the first hello correctly where its kind of misbehaviour needs that.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define MODE_SILENT 1  /* never answers */
#define MODE_GARBAGE 2 /* endless noise from the start */
#define MODE_PANIC 3   /* PID 1 ends: the kernel panics */
#define MODE_SYNCS 4   /* endless sync marks and half frames */
#define MODE_FATAL 5   /* says that it cannot go on, and powers off */

static void pause_msec(long msec)
{
    struct timespec t = {msec / 1000, msec % 1000 * 1000000};

    (void)nanosleep(&t, NULL);
}

static void load_modules(void)
{
    FILE *list = fopen("/modules/modules.list", "re");
    char line[256], path[300];

    while (list && fgets(line, sizeof(line), list)) {
        int fd;

        line[strcspn(line, "\n")] = '\0';
        (void)snprintf(path, sizeof(path), "/modules/%s", line);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            (void)syscall(SYS_finit_module, fd, "", 0);
            (void)close(fd);
        }
    }
    if (list)
        (void)fclose(list);
}

static int listen_vsock(void)
{
    struct sockaddr_vm address = {
        .svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_ANY, .svm_port = 1024};
    int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd >= 0 &&
        (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 4) < 0))
        return -1;
    return fd;
}

/* The virtio port, or a connection to the vsock port, whichever the machine has. */
static int open_console(int listener)
{
    for (;;) {
        DIR *dir = opendir("/sys/class/virtio-ports");
        struct dirent *entry;
        char path[512];
        int fd = -1;

        while (dir && (entry = readdir(dir)) != NULL) {
            if (entry->d_name[0] == '.')
                continue;
            (void)snprintf(path, sizeof(path), "/dev/%s", entry->d_name);
            fd = open(path, O_RDWR | O_CLOEXEC);
            if (fd >= 0)
                break;
        }
        if (dir)
            (void)closedir(dir);
        if (fd < 0 && listener >= 0)
            fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0)
            return fd;
        pause_msec(10);
    }
}

static void noise(int fd)
{
    static uint8_t block[65536];
    uint32_t x = 1;

    for (;;) {
        for (size_t i = 0; i < sizeof(block); i++) {
            x = x * 1664525 + 1013904223;
            block[i] = (uint8_t)(x >> 24);
        }
        if (write(fd, block, sizeof(block)) < 0) {
            pause_msec(10);
            return;
        }
    }
}

static void syncs(int fd)
{
    static const uint8_t mark[16] = {0x7f, 'H', 'E', 'A', 'R',  'T',  'H',  '-',
                                     'S',  'Y', 'N', 'C', 0x00, 0xff, '\r', '\n'};
    /* A control frame that promises 100 bytes and brings 16 of the next mark. */
    static const uint8_t half[20] = {100, 0, 0, 0, 1, 0, 0x48, 0x7e};

    while (write(fd, mark, sizeof(mark)) >= 0 && write(fd, half, sizeof(half)) >= 0)
        ;
    pause_msec(10);
}

/* As guest/console.c does it. */
static void last_words(const char *line)
{
    const char *text = line + strlen("<2>");
    int fd = -1;

    if (write(STDOUT_FILENO, text, strlen(text)) < 0)
        fd = open("/dev/kmsg", O_WRONLY | O_CLOEXEC);
    if (fd >= 0)
        (void)!write(fd, line, strlen(line));
    (void)tcdrain(STDOUT_FILENO);
}

int main(void)
{
    int fd, listener;

    (void)mkdir("/proc", 0755);
    (void)mkdir("/sys", 0755);
    (void)mkdir("/dev", 0755);
    (void)mount("proc", "/proc", "proc", 0, NULL);
    (void)mount("sys", "/sys", "sysfs", 0, NULL);
    (void)mount("dev", "/dev", "devtmpfs", 0, NULL);
    load_modules();
    if (HOSTILE_MODE == MODE_PANIC)
        return 1;
    if (HOSTILE_MODE == MODE_FATAL) {
        last_words("<2>hearth-init: fatal: test says so\n");
        (void)syscall(SYS_reboot, 0xfee1dead, 672274793, 0x4321fedc, NULL);
    }
    listener = listen_vsock();
    for (;;) {
        fd = open_console(listener);
        if (HOSTILE_MODE == MODE_GARBAGE)
            noise(fd);
        else if (HOSTILE_MODE == MODE_SYNCS)
            syncs(fd);
        else
            pause_msec(1000000);
        (void)close(fd);
    }
}
