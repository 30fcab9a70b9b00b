#include "pager/working-set.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/macros.h"
#include "store/blake.h"

#define MAGIC "HEARTHW1"
#define SEAL_BYTES (DIGEST_TEXT_SIZE - 1)
#define HEAD_BYTES (8 + SEAL_BYTES + 4)

void working_set_done(struct working_set *w)
{
    free(w->pages);
    *w = (struct working_set){0};
}

int working_set_add(struct working_set *w, uint32_t page)
{
    if (w->count == WORKING_SET_PAGES_MAX)
        return -EFBIG;
    if (w->count == w->room) {
        size_t room = w->room ? w->room * 2 : 1024;
        uint32_t *larger = reallocarray(w->pages, room, sizeof(*larger));

        if (!larger)
            return -ENOMEM;
        w->pages = larger;
        w->room = room;
    }
    w->pages[w->count++] = page;
    return 0;
}

int working_set_encode(const struct working_set *w, const char *seal, uint8_t **ret,
                       size_t *ret_size)
{
    size_t body = HEAD_BYTES + w->count * 4;
    uint8_t *data = malloc(body + DIGEST_BYTES);
    uint32_t number = htole32((uint32_t)w->count);

    if (!data)
        return -ENOMEM;
    memcpy(data, MAGIC, 8);
    memcpy(data + 8, seal, SEAL_BYTES);
    memcpy(data + 8 + SEAL_BYTES, &number, 4);
    for (size_t i = 0; i < w->count; i++) {
        number = htole32(w->pages[i]);
        memcpy(data + HEAD_BYTES + i * 4, &number, 4);
    }
    blake_bytes(data, body, data + body);
    *ret = data;
    *ret_size = body + DIGEST_BYTES;
    return 0;
}

int working_set_decode(const uint8_t *data, size_t size, const char *seal, uint64_t n_pages,
                       struct working_set *ret)
{
    struct working_set w = {0};
    uint8_t digest[DIGEST_BYTES];
    uint32_t count;

    if (size < HEAD_BYTES + DIGEST_BYTES || size > WORKING_SET_BYTES_MAX ||
        memcmp(data, MAGIC, 8) != 0 || memcmp(data + 8, seal, SEAL_BYTES) != 0)
        return -EBADMSG;
    memcpy(&count, data + 8 + SEAL_BYTES, 4);
    count = le32toh(count);
    if (count > WORKING_SET_PAGES_MAX || size != HEAD_BYTES + count * (size_t)4 + DIGEST_BYTES)
        return -EBADMSG;
    blake_bytes(data, size - DIGEST_BYTES, digest);
    if (memcmp(digest, data + size - DIGEST_BYTES, DIGEST_BYTES) != 0)
        return -EBADMSG;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t page;
        int r;

        memcpy(&page, data + HEAD_BYTES + i * (size_t)4, 4);
        page = le32toh(page);
        r = page < n_pages ? working_set_add(&w, page) : -EBADMSG;
        if (r < 0) {
            working_set_done(&w);
            return r;
        }
    }
    *ret = w;
    return 0;
}

int working_set_read(const char *path, const char *seal, uint64_t n_pages, struct working_set *ret)
{
    _cleanup_free_ char *data = NULL;
    size_t size;
    int r = file_read(path, WORKING_SET_BYTES_MAX, &data, &size, NULL);

    return r < 0 ? r : working_set_decode((const uint8_t *)data, size, seal, n_pages, ret);
}

int working_set_write(const struct working_set *w, const char *path, const char *seal,
                      struct error *err)
{
    _cleanup_free_ uint8_t *data = NULL;
    size_t size;
    int r = working_set_encode(w, seal, &data, &size);

    if (r < 0)
        return error_set(err, -r, "working set: %s", errno_text(-r));
    return file_write_atomic(path, data, size, 0600, err);
}
