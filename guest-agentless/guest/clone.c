#include "guest/clone.h"

#include <errno.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STACK_SIZE (128u * 1024u)

/* The raw call skips the C library's fork handlers, which matter to programs with threads only. */
pid_t clone_into(int cgroup_fd)
{
    struct clone_args args = {
        .flags = CLONE_INTO_CGROUP,
        .exit_signal = SIGCHLD,
        .cgroup = (uint64_t)(unsigned)cgroup_fd,
    };

    return (pid_t)syscall(SYS_clone3, &args, sizeof(args));
}

/*
 * The child cannot return from a function of the C library onto a stack that is shared, so it gets
 * one of its own and is led to fn before any C code runs.
 */
static long clone_call(struct clone_args *args, void (*fn)(void *argument), void *argument)
{
#if defined(__x86_64__)
    long r = SYS_clone3;

    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xor %%ebp, %%ebp\n\t"
                     "mov %[argument], %%rdi\n\t"
                     "call *%[fn]\n\t"
                     "hlt\n"
                     "1:"
                     : "+a"(r)
                     : "D"(args), "S"(sizeof(*args)), [fn] "r"(fn), [argument] "r"(argument)
                     : "rcx", "r11", "cc", "memory");
    return r;
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = SYS_clone3;
    register long x0 __asm__("x0") = (long)args;
    register long x1 __asm__("x1") = sizeof(*args);

    __asm__ volatile("svc #0\n\t"
                     "cbnz x0, 1f\n\t"
                     "mov x29, xzr\n\t"
                     "mov x0, %[argument]\n\t"
                     "blr %[fn]\n\t"
                     "brk #0\n"
                     "1:"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), [fn] "r"(fn), [argument] "r"(argument)
                     : "x30", "cc", "memory");
    return x0;
#else
    (void)args;
    (void)fn;
    (void)argument;
    return -ENOSYS;
#endif
}

pid_t clone_shared_into(int cgroup_fd, void (*fn)(void *argument), void *argument)
{
    static uint8_t stack[STACK_SIZE] __attribute__((aligned(16)));
    struct clone_args args = {
        .flags = CLONE_VM | CLONE_VFORK | CLONE_INTO_CGROUP,
        .exit_signal = SIGCHLD,
        .stack = (uintptr_t)stack,
        .stack_size = sizeof(stack),
        .cgroup = (uint64_t)(unsigned)cgroup_fd,
    };
    long r = clone_call(&args, fn, argument);

    if (r >= 0)
        return (pid_t)r;
    errno = (int)-r;
    return -1;
}
