#include "kernel/vmlinux.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"

/* Fields of the x86 setup header (Documentation/x86/boot.rst), offsets in the file. */
#define SETUP_SECTS 0x1f1u
#define SETUP_MAGIC 0x202u /* "HdrS" */
#define SETUP_VERSION 0x206u
#define PAYLOAD_OFFSET 0x248u
#define PAYLOAD_LENGTH 0x24cu
#define HEADER_SIZE 0x250u
#define VERSION_WITH_PAYLOAD 0x0208u

#define BZIMAGE_MAX (256u << 20)
#define VMLINUX_MAX (1024ull << 20)

static uint32_t get_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static bool header_is_bzimage(const uint8_t *data, size_t size)
{
    return size >= HEADER_SIZE && memcmp(data + SETUP_MAGIC, "HdrS", 4) == 0;
}

bool kernel_is_bzimage(const char *path)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    uint8_t header[HEADER_SIZE];

    return fd >= 0 && fd_read_full(fd, header, sizeof(header)) == (ssize_t)sizeof(header) &&
           header_is_bzimage(header, sizeof(header));
}

/* Where the compressed kernel stands in the file. */
static int find_payload(const uint8_t *data, size_t size, const char *path, const uint8_t **ret,
                        size_t *ret_size, struct error *err)
{
    uint64_t start, length;

    if (!header_is_bzimage(data, size))
        return error_set(err, EINVAL, "kernel '%s': not a bzImage", path);
    if ((unsigned)(data[SETUP_VERSION] | data[SETUP_VERSION + 1] << 8) < VERSION_WITH_PAYLOAD)
        return error_set(err, EINVAL, "kernel '%s': boot protocol without a payload field", path);
    start = (uint64_t)(data[SETUP_SECTS] ? data[SETUP_SECTS] + 1 : 5) * 512 +
            get_u32(data + PAYLOAD_OFFSET);
    length = get_u32(data + PAYLOAD_LENGTH);
    if (start > size || length > size - start || length < 8)
        return error_set(err, EINVAL, "kernel '%s': the payload lies outside of the file", path);
    *ret = data + start;
    *ret_size = (size_t)length;
    /* All but gzip are followed by the unpacked size, which their decoders would trip over. */
    if ((*ret)[0] != 0x1f || (*ret)[1] != 0x8b)
        *ret_size -= 4;
    return 0;
}

static int copy_out(struct archive *in, int fd, const char *path, struct error *err)
{
    uint64_t total = 0;

    for (;;) {
        static const uint8_t elf[4] = {0x7f, 'E', 'L', 'F'};
        uint8_t block[64 * 1024];
        la_ssize_t n = archive_read_data(in, block, sizeof(block));
        int r;

        if (n < 0)
            return error_set(err, EINVAL, "kernel '%s': unpacking: %s", path,
                             archive_error_string(in));
        if (n == 0)
            break;
        if (total == 0 && (n < 4 || memcmp(block, elf, sizeof(elf)) != 0))
            return error_set(err, EINVAL, "kernel '%s': what is inside is no ELF", path);
        total += (uint64_t)n;
        if (total > VMLINUX_MAX)
            return error_set(err, EFBIG, "kernel '%s': unpacks to over %llu bytes", path,
                             VMLINUX_MAX);
        r = fd_write_full(fd, block, (size_t)n);
        if (r < 0)
            return error_set(err, -r, "kernel '%s': write: %s", path, errno_text(-r));
    }
    return total > 0 ? 0 : error_set(err, EINVAL, "kernel '%s': the payload is empty", path);
}

static int unpack(const uint8_t *payload, size_t size, int fd, const char *path, struct error *err)
{
    struct archive *in = archive_read_new();
    struct archive_entry *entry;
    int r;

    if (!in)
        return error_set(err, ENOMEM, "kernel '%s': out of memory", path);
    archive_read_support_filter_gzip(in);
    archive_read_support_filter_xz(in);
    archive_read_support_filter_lz4(in);
    archive_read_support_filter_zstd(in);
    archive_read_support_format_raw(in);
    if (archive_read_open_memory(in, payload, size) != ARCHIVE_OK ||
        archive_read_next_header(in, &entry) != ARCHIVE_OK)
        r = error_set(err, EINVAL, "kernel '%s': unknown compression: %s", path,
                      archive_error_string(in));
    else
        r = copy_out(in, fd, path, err);
    archive_read_free(in);
    return r;
}

int kernel_extract_elf(const char *bzimage, const char *to, struct error *err)
{
    _cleanup_free_ char *data = NULL;
    _cleanup_free_ char *beside = NULL;
    _cleanup_close_ int fd = -EBADF;
    const uint8_t *payload;
    size_t size, payload_size;
    char suffix[9];
    int r;

    r = file_read(bzimage, BZIMAGE_MAX, &data, &size, err);
    if (r < 0)
        return r;
    r = find_payload((const uint8_t *)data, size, bzimage, &payload, &payload_size, err);
    if (r < 0)
        return r;
    r = random_id(suffix, 8);
    if (r < 0)
        return error_set(err, -r, "random name: %s", errno_text(-r));
    beside = string_printf("%s.%s.tmp", to, suffix);
    if (!beside)
        return error_set(err, ENOMEM, "kernel '%s': out of memory", bzimage);
    fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0)
        return error_set(err, errno, "create '%s': %s", beside, errno_text(errno));
    r = unpack(payload, payload_size, fd, bzimage, err);
    if (r == 0 && (fsync(fd) < 0 || rename(beside, to) < 0))
        r = error_set(err, errno, "write '%s': %s", to, errno_text(errno));
    if (r < 0)
        (void)unlink(beside);
    return r;
}

int kernel_elf(const struct kernel *kernel, char *ret, size_t size, struct error *err)
{
    const char *slash = strrchr(kernel->path, '/');
    bool packed = kernel_is_bzimage(kernel->path);
    int n;

    /* The directory of a kernel is replaced as a whole: what is beside it belongs to it. */
    if (packed)
        n = snprintf(ret, size, "%.*s/vmlinux", (int)(slash - kernel->path), kernel->path);
    else
        n = snprintf(ret, size, "%s", kernel->path);
    if (n < 0 || (size_t)n >= size)
        return error_set(err, ENAMETOOLONG, "kernel '%s': the path is too long", kernel->path);
    if (!packed || file_exists(ret))
        return 0;
    return kernel_extract_elf(kernel->path, ret, err);
}
