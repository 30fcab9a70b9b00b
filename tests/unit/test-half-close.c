#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/half-close.h"
#include "base/clock.h"
#include "harness/test.h"

struct pair {
    int server, client;
};

static void pair_open(struct pair *p)
{
    int fds[2];

    ASSERT_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds));
    *p = (struct pair){.server = fds[0], .client = fds[1]};
}

static void turns(struct loop *loop, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        ASSERT_OK(loop_run_once(loop, 20 * USEC_PER_MSEC));
}

/*
 * The client says a last byte and goes. Who polls edge-triggered, as the server does, is told of
 * the end by an event of its own once the byte is read, and not before.
 */
static void end_is_told(struct loop *loop, struct pair *p)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    char byte;

    ASSERT_OK(epoll);
    ASSERT_OK(epoll_ctl(epoll, EPOLL_CTL_ADD, p->server, &event));
    ASSERT_EQ(send(p->client, "x", 1, MSG_NOSIGNAL), 1);
    close(p->client);
    ASSERT_EQ(epoll_wait(epoll, &event, 1, 0), 1);
    turns(loop, 10);
    ASSERT_EQ(epoll_wait(epoll, &event, 1, 0), 0);
    ASSERT_EQ(recv(p->server, &byte, 1, 0), 1);
    turns(loop, 10);
    ASSERT_EQ(epoll_wait(epoll, &event, 1, 0), 1);
    ASSERT_EQ(recv(p->server, &byte, 1, 0), 0);
    close(epoll);
    close(p->server);
}

TEST(end_is_told_after_the_last_byte)
{
    struct half_close *h;
    struct loop *loop;
    struct pair p;

    ASSERT_OK(loop_new(&loop));
    ASSERT_OK(half_close_new(loop, &h));
    pair_open(&p);
    half_close_watch(h, p.server);
    end_is_told(loop, &p);
    half_close_free(h);
    loop_free(loop);
}

/* A child that was forked and has not begun its program holds the old socket. */
TEST(closed_socket_that_a_child_holds_does_no_harm_to_the_next_of_its_number)
{
    struct half_close *h;
    struct pair old, next;
    struct loop *loop;
    int held, number;
    char byte;

    ASSERT_OK(loop_new(&loop));
    ASSERT_OK(half_close_new(loop, &h));
    pair_open(&old);
    half_close_watch(h, old.server);
    number = old.server;
    held = fcntl(old.server, F_DUPFD_CLOEXEC, 100);
    close(old.client);
    close(old.server);
    pair_open(&next);
    ASSERT_TRUE(next.server == number || next.client == number);
    if (next.client == number)
        next = (struct pair){.server = next.client, .client = next.server};
    half_close_watch(h, next.server);
    turns(loop, 10);
    ASSERT_EQ(send(next.client, "x", 1, MSG_NOSIGNAL), 1);
    ASSERT_EQ(recv(next.server, &byte, 1, 0), 1);
    close(held);
    end_is_told(loop, &next); /* it is still watched itself */
    half_close_free(h);
    loop_free(loop);
}
