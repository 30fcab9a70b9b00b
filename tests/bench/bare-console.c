#include "bare-console.h"

#include <errno.h>
#include <poll.h>
#include <protocol/session.pb-c.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "protocol/frame.h"

#define CHANNEL_HELLO 1u
#define CHANNEL_FIRST_PING 2u
#define CHANNEL_THAW 0x40000000u
#define CHANNEL_EXEC 0x40000001u
#define REQUEST_MAX 1024u
#define AWAIT_OUTPUT (-1) /* not an event: a byte on stdout */
#define ANSWER_USEC (60 * USEC_PER_SEC)
#define AGAIN_USEC (250 * USEC_PER_MSEC) /* a hello that went astray is said again */

struct reader {
    int fd; /* weak */
    uint8_t data[8192];
    size_t size;
};

static int send_request(int fd, uint32_t channel, const Hearth__V1__Request *request)
{
    uint8_t out[FRAME_SYNC_SIZE + FRAME_HEADER_SIZE + REQUEST_MAX], *to = out;
    size_t size = hearth__v1__request__get_packed_size(request);

    if (size > REQUEST_MAX)
        return -E2BIG;
    if (request->op_case == HEARTH__V1__REQUEST__OP_HELLO) {
        memcpy(to, frame_sync, FRAME_SYNC_SIZE);
        to += FRAME_SYNC_SIZE;
    }
    frame_encode_header(to, FRAME_CONTROL, 0, channel, 0, (uint32_t)size);
    to += FRAME_HEADER_SIZE;
    to += hearth__v1__request__pack(request, to);
    return fd_write_full(fd, out, (size_t)(to - out));
}

/* Waits for more bytes until the given time: 1 some came, 0 none. */
static int read_more(struct reader *in, uint64_t until_usec)
{
    uint64_t now = clock_now_usec();
    struct pollfd p = {.fd = in->fd, .events = POLLIN};
    ssize_t n;

    if (now >= until_usec || poll(&p, 1, (int)((until_usec - now) / USEC_PER_MSEC) + 1) <= 0)
        return 0;
    if (in->size == sizeof(in->data))
        return -EPROTO;
    n = read(in->fd, in->data + in->size, sizeof(in->data) - in->size);
    if (n <= 0)
        return n < 0 ? -errno : -ECONNRESET;
    in->size += (size_t)n;
    return 1;
}

/* 1 when an event of the wanted kind has come on this channel, 0 when not until the given time. */
static int await(struct reader *in, uint32_t channel, int wanted, uint64_t until_usec)
{
    for (;;) {
        enum frame_result result;
        struct frame frame;
        size_t used = 0;
        int r, found = 0;

        result = frame_decode(in->data, in->size, FRAME_EVENT_MAX, &frame, &used);
        if (result == FRAME_MORE) {
            r = read_more(in, until_usec);
            if (r <= 0)
                return r;
            continue;
        }
        if (result == FRAME_OK && frame.kind == FRAME_CONTROL && frame.channel == channel) {
            Hearth__V1__Event *event = hearth__v1__event__unpack(NULL, frame.size, frame.payload);

            found = event && (int)event->event_case == wanted;
            hearth__v1__event__free_unpacked(event, NULL);
        }
        if (result == FRAME_OK && frame.kind == FRAME_DATA && frame.channel == channel)
            found = wanted == AWAIT_OUTPUT && frame.stream == 1 && frame.size > 0;
        if (result == FRAME_BAD)
            used = 1; /* stale bytes of an earlier conversation */
        in->size -= used;
        memmove(in->data, in->data + used, in->size);
        if (found)
            return 1;
    }
}

int bare_console_hello(int fd, struct error *err)
{
    uint64_t deadline = clock_now_usec() + ANSWER_USEC;
    uint8_t nonce[16] = "a bare console.";
    Hearth__V1__Hello hello = HEARTH__V1__HELLO__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;
    struct reader in = {.fd = fd};
    int r = 0;

    hello.version_min = hello.version_max = PROTOCOL_VERSION;
    hello.nonce.data = nonce;
    hello.nonce.len = sizeof(nonce);
    request.op_case = HEARTH__V1__REQUEST__OP_HELLO;
    request.hello = &hello;
    while (r == 0 && clock_now_usec() < deadline) {
        r = send_request(fd, CHANNEL_HELLO, &request);
        if (r == 0)
            r = await(&in, CHANNEL_HELLO, HEARTH__V1__EVENT__EVENT_HELLO,
                      clock_now_usec() + AGAIN_USEC);
    }
    return r > 0 ? 0 : error_set(err, r < 0 ? -r : ETIMEDOUT, "the guest does not answer");
}

int bare_console_open(const char *path, struct error *err)
{
    _cleanup_close_ int fd = fd_connect_unix(path);
    int r;

    if (fd < 0)
        return error_set(err, -fd, "connect '%s': %s", path, errno_text(-fd));
    r = fd_set_nonblock(fd, false);
    if (r >= 0)
        r = bare_console_hello(fd, err);
    return r < 0 ? error_fill(err, r, "'%s'", path) : TAKE_FD(fd);
}

int bare_console_thaw(int fd, struct error *err)
{
    Hearth__V1__Thaw thaw = HEARTH__V1__THAW__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;
    char hostname[] = "bare", machine_id[] = "0123456789abcdef0123456789abcdef",
         boot_id[] = "01234567-89ab-4def-8123-456789abcdef";
    struct reader in = {.fd = fd};
    uint8_t entropy[64];
    int r;

    if (getrandom(entropy, sizeof(entropy), 0) != (ssize_t)sizeof(entropy))
        return error_set(err, EIO, "no entropy");
    thaw.entropy.data = entropy;
    thaw.entropy.len = sizeof(entropy);
    thaw.realtime_nsec = clock_wall_usec() * 1000;
    thaw.hostname = hostname;
    thaw.machine_id = machine_id;
    thaw.boot_id = boot_id;
    request.op_case = HEARTH__V1__REQUEST__OP_THAW;
    request.thaw = &thaw;
    r = send_request(fd, CHANNEL_THAW, &request);
    if (r == 0)
        r = await(&in, CHANNEL_THAW, HEARTH__V1__EVENT__EVENT_DONE, clock_now_usec() + ANSWER_USEC);
    return r > 0 ? 0 : error_set(err, r < 0 ? -r : ETIMEDOUT, "the guest does not thaw");
}

int bare_console_exec(int fd, const char *const *argv, struct error *err)
{
    Hearth__V1__Exec exec = HEARTH__V1__EXEC__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;
    Hearth__V1__StreamLimit window = HEARTH__V1__STREAM_LIMIT__INIT, *windows[] = {&window};
    ProtobufCBinaryData words[8];
    struct reader in = {.fd = fd};
    int r;

    for (; argv[exec.n_argv] && exec.n_argv < ARRAY_SIZE(words); exec.n_argv++) {
        /* Packed only: protobuf-c's structs predate const. */
        words[exec.n_argv].data = (uint8_t *)(uintptr_t)argv[exec.n_argv];
        words[exec.n_argv].len = strlen(argv[exec.n_argv]);
    }
    exec.argv = words;
    window.stream = 1;
    window.offset = 65536;
    exec.windows = windows;
    exec.n_windows = 1;
    exec.close_stdin = true;
    request.op_case = HEARTH__V1__REQUEST__OP_EXEC;
    request.exec = &exec;
    r = send_request(fd, CHANNEL_EXEC, &request);
    if (r == 0)
        r = await(&in, CHANNEL_EXEC, AWAIT_OUTPUT, clock_now_usec() + ANSWER_USEC);
    return r > 0 ? 0 : error_set(err, r < 0 ? -r : ETIMEDOUT, "'%s' prints nothing", argv[0]);
}

int bare_console_ping(int fd, uint32_t number, struct error *err)
{
    Hearth__V1__Ping ping = HEARTH__V1__PING__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;
    struct reader in = {.fd = fd};
    uint8_t payload[4] = "ping";
    int r;

    ping.payload.data = payload;
    ping.payload.len = sizeof(payload);
    request.op_case = HEARTH__V1__REQUEST__OP_PING;
    request.ping = &ping;
    r = send_request(fd, CHANNEL_FIRST_PING + number, &request);
    if (r == 0)
        r = await(&in, CHANNEL_FIRST_PING + number, HEARTH__V1__EVENT__EVENT_PONG,
                  clock_now_usec() + ANSWER_USEC);
    return r > 0 ? 0 : error_set(err, r < 0 ? -r : ETIMEDOUT, "the guest does not answer a ping");
}
