#include "pager/handover.h"

#include <jansson.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"

static bool overlaps(uint64_t a, uint64_t a_size, uint64_t b, uint64_t b_size)
{
    return a < b + b_size && b < a + a_size;
}

static int region_from_json(json_t *json, uint64_t memory_bytes, struct region *ret,
                            struct error *err)
{
    json_int_t address, size, offset, page = 0;

    if (json_unpack(json, "{s:I, s:I, s:I, s?I}", "base_host_virt_addr", &address, "size", &size,
                    "offset", &offset, "page_size", &page) < 0)
        return error_set(err, EPROTO, "a region lacks its address, size or offset");
    /* page_size_kib held bytes too, whatever its name says; newer VMMs send both. */
    if (page == 0)
        page = json_integer_value(json_object_get(json, "page_size_kib"));
    if (page != 0 && page != HANDOVER_PAGE)
        return error_set(err, EOPNOTSUPP, "pages of %lld bytes are not served", (long long)page);
    if (address <= 0 || size <= 0 || offset < 0 || address % HANDOVER_PAGE != 0 ||
        size % HANDOVER_PAGE != 0 || offset % HANDOVER_PAGE != 0 || (uint64_t)size > memory_bytes ||
        (uint64_t)offset > memory_bytes - (uint64_t)size ||
        (uint64_t)address > UINT64_MAX / 2 - (uint64_t)size)
        return error_set(err, EPROTO, "a region is not within the memory");
    *ret = (struct region){
        .address = (uint64_t)address, .size = (uint64_t)size, .offset = (uint64_t)offset};
    return 0;
}

static int from_json(json_t *json, uint64_t memory_bytes, struct handover *h, struct error *err)
{
    size_t count = json_array_size(json);

    if (count == 0 || count > HANDOVER_REGIONS_MAX)
        return error_set(err, EPROTO, "expected 1 to %u regions", HANDOVER_REGIONS_MAX);
    for (size_t i = 0; i < count; i++) {
        struct region *region = &h->regions[i];
        int r = region_from_json(json_array_get(json, i), memory_bytes, region, err);

        if (r < 0)
            return r;
        for (size_t j = 0; j < i; j++)
            if (overlaps(region->address, region->size, h->regions[j].address,
                         h->regions[j].size) ||
                overlaps(region->offset, region->size, h->regions[j].offset, h->regions[j].size))
                return error_set(err, EPROTO, "two regions overlap");
    }
    h->n_regions = count;
    return 0;
}

int handover_parse(const char *text, size_t size, uint64_t memory_bytes, struct handover *ret,
                   struct error *err)
{
    struct handover h = {0};
    json_error_t why;
    json_t *json;
    int r;

    if (size > HANDOVER_BYTES_MAX)
        return error_set(err, E2BIG, "hand-over of more than %u bytes", HANDOVER_BYTES_MAX);
    json = json_loadb(text, size, JSON_REJECT_DUPLICATES, &why);
    if (!json)
        return error_set(err, EPROTO, "hand-over is not JSON: %s", why.text);
    r = from_json(json, memory_bytes, &h, err);
    json_decref(json);
    if (r < 0)
        return r;
    *ret = h;
    return 0;
}

const struct region *handover_at_address(const struct handover *h, uint64_t address)
{
    for (size_t i = 0; i < h->n_regions; i++)
        if (address >= h->regions[i].address &&
            address - h->regions[i].address < h->regions[i].size)
            return &h->regions[i];
    return NULL;
}

const struct region *handover_at_offset(const struct handover *h, uint64_t offset)
{
    for (size_t i = 0; i < h->n_regions; i++)
        if (offset >= h->regions[i].offset && offset - h->regions[i].offset < h->regions[i].size)
            return &h->regions[i];
    return NULL;
}

/* ---- receive ---- */

static bool is_userfaultfd(int fd)
{
    char path[64], target[64];
    ssize_t n;

    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    n = readlink(path, target, sizeof(target) - 1);
    if (n < 0)
        return false;
    target[n] = '\0';
    return strcmp(target, "anon_inode:[userfaultfd]") == 0;
}

/* All descriptors of a message; the first goes to *fd if it has none yet, others are closed. */
static int take_fds(struct msghdr *message, int *fd)
{
    int r = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        size_t count;

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int got;

            memcpy(&got, CMSG_DATA(c) + i * sizeof(int), sizeof(got));
            if (*fd < 0) {
                *fd = got;
            } else {
                fd_close(got);
                r = -EPROTO;
            }
        }
    }
    return message->msg_flags & MSG_CTRUNC ? -EPROTO : r;
}

static int receive_some(int socket, char *text, size_t room, int *fd)
{
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct iovec bytes = {.iov_base = text, .iov_len = room};
    struct msghdr message = {.msg_iov = &bytes,
                             .msg_iovlen = 1,
                             .msg_control = control.space,
                             .msg_controllen = sizeof(control.space)};
    ssize_t n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    int r;

    if (n < 0)
        return errno == EINTR ? -EAGAIN : -errno;
    r = take_fds(&message, fd);
    if (r < 0)
        return r;
    return n == 0 ? -ECONNRESET : (int)n;
}

int handover_receive(int socket, uint64_t memory_bytes, uint64_t timeout_usec, struct handover *ret,
                     int *ret_uffd, struct error *err)
{
    uint64_t deadline = clock_now_usec() + timeout_usec;
    _cleanup_free_ char *text = malloc(HANDOVER_BYTES_MAX);
    _cleanup_close_ int fd = -EBADF;
    struct handover h;
    size_t size = 0;
    int r = text ? 0 : -ENOMEM;

    while (r >= 0) {
        struct pollfd waited = {.fd = socket, .events = POLLIN};
        uint64_t now = clock_now_usec();

        if (now >= deadline || size == HANDOVER_BYTES_MAX)
            return error_set(err, now >= deadline ? ETIMEDOUT : E2BIG,
                             "the VMM did not hand its memory over: %s",
                             now >= deadline ? "time is up" : "it says too much");
        r = poll(&waited, 1, (int)((deadline - now) / USEC_PER_MSEC + 1));
        if (r == 0 || (r < 0 && errno == EINTR)) {
            r = 0;
            continue;
        }
        r = receive_some(socket, text + size, HANDOVER_BYTES_MAX - size, &fd);
        if (r == -EAGAIN)
            r = 0;
        if (r <= 0)
            continue;
        size += (size_t)r;
        /* A stream has no ends of messages: it is whole when it can be read. */
        if (text[size - 1] == ']' || text[size - 1] == '\n') {
            r = handover_parse(text, size, memory_bytes, &h, err);
            if (r < 0)
                return r;
            break;
        }
    }
    if (r < 0)
        return error_set(err, -r, "the VMM did not hand its memory over: %s", errno_text(-r));
    if (fd < 0 || !is_userfaultfd(fd))
        return error_set(err, EPROTO, "the VMM handed over no userfaultfd");
    *ret = h;
    *ret_uffd = TAKE_FD(fd);
    return 0;
}
