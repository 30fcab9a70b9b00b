#include <signal.h>
#include <stdio.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/qemu/qemu-process.h"
#include "base/fd.h"
#include "harness/test.h"

TEST(reads_where_memory_is_from_the_command_line)
{
    static const char file[] = "-object\0memory-backend-file,id=hearth.ram,size=256M,share=off,"
                               "mem-path=/a,,b/memory";
    static const char shared[] = "x\0memory-backend-file,id=hearth.ram,size=1M,share=on,mem-path=m";
    static const char plain[] = "memory-backend-ram,id=hearth.ram,size=64M,share=off";
    static const char other[] = "memory-backend-ram,id=pc.ram,size=64M,share=off\0-S";
    static const char empty[] = "memory-backend-ram,id=hearth.ram,size=0M,share=off";
    struct ram ram = {0};

    ASSERT_OK(process_ram_parse(file, sizeof(file), &ram));
    ASSERT_EQ(ram.size, 256u << 20);
    ASSERT_STREQ(ram.path, "/a,b/memory");
    ASSERT_FALSE(ram.shared);
    ram_done(&ram);
    ASSERT_OK(process_ram_parse(shared, sizeof(shared), &ram));
    ASSERT_TRUE(ram.shared);
    ram_done(&ram);
    ASSERT_OK(process_ram_parse(plain, sizeof(plain), &ram));
    ASSERT_EQ(ram.size, 64u << 20);
    ASSERT_TRUE(!ram.path && !ram.shared);
    ASSERT_ERR(process_ram_parse(other, sizeof(other), &ram), ENOENT);
    ASSERT_ERR(process_ram_parse(empty, sizeof(empty), &ram), ENOENT);
}

TEST(holds_the_sockets_of_a_process_that_dies)
{
    int pair[2], held[4], pidfd;
    char c;
    pid_t pid;
    size_t n;

    ASSERT_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
    ASSERT_OK(fd_set_nonblock(pair[0], true));
    pid = fork();
    ASSERT_OK(pid);
    if (pid == 0) {
        (void)close(pair[0]);
        for (;;)
            (void)pause();
    }
    (void)close(pair[1]);
    pidfd = pidfd_open(pid, 0);
    ASSERT_OK(pidfd);
    n = process_hold_sockets(pidfd, pid, held, 4);
    ASSERT_TRUE(n >= 1);
    ASSERT_OK(kill(pid, SIGKILL));
    ASSERT_EQ(waitpid(pid, NULL, 0), pid);
    ASSERT_EQ(read(pair[0], &c, 1), -1);
    ASSERT_EQ(errno, EAGAIN);
    while (n > 0)
        (void)fd_close(held[--n]);
    ASSERT_EQ(read(pair[0], &c, 1), 0);
    ASSERT_EQ(process_hold_sockets(pidfd, pid, held, 4), 0);
    (void)fd_close(pidfd);
    (void)fd_close(pair[0]);
}

TEST(knows_a_vm_by_its_command_line_only)
{
    ASSERT_FALSE(process_is_vm(getpid(), "sb-1"));
    ASSERT_FALSE(process_is_dead_qemu(getpid()));
    ASSERT_FALSE(process_is_vm(INT32_MAX, "sb-1"));
    ASSERT_FALSE(process_is_dead_qemu(INT32_MAX));
}
