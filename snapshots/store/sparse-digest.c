#include "store/sparse-digest.h"

#include <endian.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/macros.h"
#include "base/strv.h"
#include "store/parallel.h"

#define CHUNK (UINT64_C(1024) * 1024)
#define SIZE_MAX_BYTES (UINT64_C(1) << 40)

struct part {
    int fd;
    uint64_t size;       /* of the file */
    uint64_t from, to;   /* chunks */
    uint8_t *digests;    /* weak: of all chunks */
    const uint8_t *hole; /* weak: digest of a MiB of zeros */
    int result;
};

static int read_chunk(int fd, uint8_t *data, size_t size, uint64_t offset)
{
    size_t have = 0;

    while (have < size) {
        ssize_t n = pread(fd, data + have, size - have, (off_t)(offset + have));

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -ENODATA;
        have += (size_t)n;
    }
    return 0;
}

static int make(struct part *p)
{
    _cleanup_free_ uint8_t *data = malloc(CHUNK);
    uint64_t data_at = 0; /* no data before this */
    bool known = false;

    if (!data)
        return -ENOMEM;
    for (uint64_t i = p->from; i < p->to; i++) {
        uint64_t offset = i * CHUNK, size = MIN(CHUNK, p->size - offset);
        int r;

        if (!known || data_at < offset) {
            off_t at = lseek(p->fd, (off_t)offset, SEEK_DATA);

            if (at < 0 && errno != ENXIO)
                return -errno;
            data_at = at < 0 ? UINT64_MAX : (uint64_t)at;
            known = true;
        }
        if (data_at >= offset + size && size == CHUNK) {
            memcpy(p->digests + i * DIGEST_BYTES, p->hole, DIGEST_BYTES);
            continue;
        }
        r = read_chunk(p->fd, data, size, offset);
        if (r < 0)
            return r;
        blake_bytes(data, size, p->digests + i * DIGEST_BYTES);
    }
    return 0;
}

static void *make_part(void *userdata)
{
    struct part *p = userdata;

    p->result = make(p);
    return NULL;
}

int sparse_digest(int fd, char ret[DIGEST_TEXT_SIZE])
{
    struct part parts[PARALLEL_MAX] = {0};
    struct parallel_job jobs[PARALLEL_MAX];
    _cleanup_free_ uint8_t *digests = NULL, *zeros = calloc(1, CHUNK);
    uint8_t hole[DIGEST_BYTES];
    uint64_t n_chunks, size;
    struct stat st;
    unsigned n;

    if (fstat(fd, &st) < 0)
        return -errno;
    if ((uint64_t)st.st_size > SIZE_MAX_BYTES)
        return -EFBIG;
    n_chunks = ((uint64_t)st.st_size + CHUNK - 1) / CHUNK;
    digests = malloc(n_chunks * DIGEST_BYTES + sizeof(size));
    if (!digests || !zeros)
        return -ENOMEM;
    blake_bytes(zeros, CHUNK, hole);
    n = parallel_parts((uint64_t)st.st_blocks * 512);
    for (unsigned i = 0; i < n; i++) {
        parts[i] = (struct part){.fd = fd,
                                 .size = (uint64_t)st.st_size,
                                 .from = n_chunks * i / n,
                                 .to = n_chunks * (i + 1) / n,
                                 .digests = digests,
                                 .hole = hole};
        jobs[i] = (struct parallel_job){.fn = make_part, .userdata = &parts[i]};
    }
    parallel_run(jobs, n);
    for (unsigned i = 0; i < n; i++)
        if (parts[i].result < 0)
            return parts[i].result;
    size = htole64((uint64_t)st.st_size);
    memcpy(digests + n_chunks * DIGEST_BYTES, &size, sizeof(size));
    blake_text(digests, n_chunks * DIGEST_BYTES + sizeof(size), ret);
    return 0;
}
