#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fd.h"
#include "harness/test.h"
#include "store/feed.h"
#include "store/io.h"
#include "store/map.h"
#include "store/scan.h"
#include "store/sparse-digest.h"

#define PAGE MAP_PAGE_BYTES

static int make_file(const char *name)
{
    char path[128];
    int fd;

    ASSERT_OK(sodium_init());
    (void)snprintf(path, sizeof(path), "%s/%s", test_tmpdir(), name);
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ASSERT_TRUE(fd >= 0);
    return fd;
}

TEST(a_scan_finds_every_page_whatever_the_number_of_threads)
{
    const uint64_t n_pages = 60 * 256;
    _cleanup_close_ int fd = make_file("scan");
    _cleanup_(map_done) struct map m = {0};
    _cleanup_free_ uint8_t *kinds = calloc(n_pages, 1);
    uint8_t page[PAGE];
    struct error err = {0};

    ASSERT_OK(ftruncate(fd, (off_t)(n_pages * PAGE)));
    for (uint64_t i = 0; i < n_pages; i++) {
        uint32_t dice = randombytes_uniform(100);

        kinds[i] = i / 256 % 10 == 3 || dice < 8 ? 0 : dice < 12 ? MAP_ZERO : MAP_DATA;
        if (kinds[i] == 0)
            continue;
        memset(page, 0, sizeof(page));
        if (kinds[i] == MAP_DATA)
            memcpy(page + 8, &i, sizeof(i)), page[PAGE - 1] = 1;
        ASSERT_EQ(pwrite(fd, page, PAGE, (off_t)(i * PAGE)), PAGE);
    }
    ASSERT_OK(scan_file(fd, "scan", true, &m, &err));
    for (size_t r = 0; r < m.n_runs; r++)
        for (uint64_t i = m.runs[r].offset / PAGE; i < (m.runs[r].offset + m.runs[r].size) / PAGE;
             i++) {
            ASSERT_EQ(kinds[i], m.runs[r].kind);
            kinds[i] = 0;
        }
    for (uint64_t i = 0; i < n_pages; i++)
        ASSERT_EQ(kinds[i], 0);
    /* Digests are those of the file as it is now, with its zeros punched out. */
    for (size_t c = 0; c < m.n_chunks; c++) {
        static uint8_t image[MAP_CHUNK_BYTES];
        uint8_t digest[DIGEST_BYTES];
        uint64_t start, end;

        ASSERT_TRUE(map_chunk_span(&m, m.chunks[c].index, &start, &end));
        ASSERT_EQ(pread(fd, image, end - start, (off_t)start), (long long)(end - start));
        map_chunk_digest(&m, m.chunks[c].index, image, start, digest);
        ASSERT_MEMEQ(digest, m.chunks[c].digest, sizeof(digest));
    }
    ASSERT_OK(scan_holes(fd, "scan", &m, &err));
}

TEST(data_in_a_hole_is_found)
{
    _cleanup_close_ int fd = make_file("holes");
    _cleanup_(map_done) struct map m = {0};
    struct error err = {0};

    ASSERT_OK(ftruncate(fd, 100 * PAGE));
    ASSERT_EQ(pwrite(fd, "x", 1, 10 * PAGE), 1);
    ASSERT_OK(scan_file(fd, "holes", true, &m, &err));
    ASSERT_EQ(pwrite(fd, "\0", 1, 50 * PAGE), 1); /* zeros do not matter */
    ASSERT_OK(scan_holes(fd, "holes", &m, &err));
    ASSERT_EQ(pwrite(fd, "x", 1, 50 * PAGE + 7), 1);
    ASSERT_ERR(scan_holes(fd, "holes", &m, &err), EINVAL);
    ASSERT_OK(scan_probe(test_tmpdir(), &err));
}

TEST(a_map_survives_writing_and_rejects_nonsense)
{
    struct map m = {.size_bytes = 4 * MAP_CHUNK_BYTES}, back;
    struct map_chunk chunk = {.index = 1};
    uint8_t *data;
    size_t size;

    ASSERT_OK(map_add_run(&m, 0, PAGE, MAP_ZERO));
    ASSERT_OK(map_add_run(&m, MAP_CHUNK_BYTES, PAGE, MAP_DATA));
    ASSERT_OK(map_add_run(&m, MAP_CHUNK_BYTES + PAGE, PAGE, MAP_DATA));
    ASSERT_EQ(m.n_runs, 2);
    ASSERT_OK(map_add_chunk(&m, &chunk));
    ASSERT_OK(map_encode(&m, &data, &size, NULL));
    ASSERT_OK(map_decode(data, size, &back, NULL));
    ASSERT_EQ(back.n_runs, 2);
    ASSERT_EQ(map_bytes(&back, MAP_DATA), 2 * PAGE);
    ASSERT_EQ(map_find_run(&back, 1), 0);
    ASSERT_EQ(map_find_run(&back, PAGE), 1);
    ASSERT_EQ(map_find_run(&back, 2 * MAP_CHUNK_BYTES), 2);
    ASSERT_TRUE(map_find_chunk(&back, MAP_CHUNK_BYTES + 5) != NULL);
    ASSERT_TRUE(map_find_chunk(&back, 5) == NULL);
    map_done(&back);
    for (size_t i = 0; i < size; i++)
        ASSERT_ERR(map_decode(data, i, &back, NULL), EINVAL);
    data[32] |= 3; /* a kind that there is not */
    ASSERT_ERR(map_decode(data, size, &back, NULL), EINVAL);
    free(data);
    map_done(&m);
}

struct numbers {
    int fd;
    uint64_t next, count;
};

static bool plan_number(void *userdata, struct feed_item *ret)
{
    struct numbers *n = userdata;

    if (n->next == n->count)
        return false;
    *ret = (struct feed_item){.fd = n->fd, .size = 8, .offset = n->next * 8, .tag = n->next};
    n->next++;
    return true;
}

TEST(a_feed_keeps_its_order_and_says_when_a_file_is_short)
{
    _cleanup_close_ int fd = make_file("feed");
    struct numbers numbers = {.fd = fd, .count = 1001};
    struct feed *feed;
    struct feed_item item;
    uint8_t *data;

    for (uint64_t i = 0; i < 1000; i++)
        ASSERT_EQ(pwrite(fd, &i, 8, (off_t)(i * 8)), 8);
    ASSERT_OK(feed_new(8, plan_number, &numbers, &feed));
    for (uint64_t i = 0; i < 1000; i++) {
        ASSERT_EQ(feed_next(feed, &item, &data), 1);
        ASSERT_EQ(item.tag, i);
        ASSERT_MEMEQ(data, &i, 8);
    }
    ASSERT_ERR(feed_next(feed, &item, &data), ENODATA);
    (void)feed_free(feed);
}

TEST(io_tells_errors_and_its_limit)
{
    _cleanup_close_ int fd = make_file("io");
    struct io *io;
    char data[3][8] = {"one", "two", "three"};
    uint64_t tag;
    int result;

    ASSERT_OK(io_new(2, &io));
    ASSERT_ERR(io_wait(io, &tag, &result), ENOENT);
    ASSERT_OK(io_write(io, fd, data[0], 8, 0, 7));
    ASSERT_OK(io_read(io, -1, data[2], 8, 0, 9));
    ASSERT_ERR(io_read(io, fd, data[1], 8, 0, 8), EAGAIN);
    for (int i = 0; i < 2; i++) {
        ASSERT_OK(io_wait(io, &tag, &result));
        ASSERT_EQ(result, tag == 7 ? 8 : -EBADF);
    }
    ASSERT_OK(io_read(io, fd, data[1], 8, 4, 8));
    ASSERT_OK(io_wait(io, &tag, &result));
    ASSERT_EQ(result, 4); /* the end of the file */
    (void)io_free(io);
}

TEST(a_sparse_digest_is_the_same_however_the_zeros_are_kept)
{
    _cleanup_close_ int sparse = make_file("sparse"), full = make_file("full");
    _cleanup_free_ uint8_t *data = calloc(1, 40 * MAP_CHUNK_BYTES + 5000);
    const size_t size = 40 * MAP_CHUNK_BYTES + 5000;
    char a[DIGEST_TEXT_SIZE], b[DIGEST_TEXT_SIZE];

    for (size_t i = 3; i < 40; i += 4)
        randombytes_buf(data + i * MAP_CHUNK_BYTES + 777, 100000);
    ASSERT_EQ(pwrite(full, data, size, 0), (long long)size);
    ASSERT_OK(ftruncate(sparse, (off_t)size));
    for (size_t i = 3; i < 40; i += 4)
        ASSERT_EQ(pwrite(sparse, data + i * MAP_CHUNK_BYTES, 110000, (off_t)(i * MAP_CHUNK_BYTES)),
                  110000);
    ASSERT_OK(sparse_digest(full, a));
    ASSERT_OK(sparse_digest(sparse, b));
    ASSERT_STREQ(a, b);
    ASSERT_EQ(pwrite(sparse, "x", 1, 5 * MAP_CHUNK_BYTES + 9), 1); /* in a hole */
    ASSERT_OK(sparse_digest(sparse, b));
    ASSERT_TRUE(strcmp(a, b) != 0);
    ASSERT_OK(ftruncate(full, (off_t)size - 1));
    ASSERT_OK(sparse_digest(full, b));
    ASSERT_TRUE(strcmp(a, b) != 0);
}
