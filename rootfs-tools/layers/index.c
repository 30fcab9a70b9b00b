#include "layers/index.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

/* The cache stays on its machine: numbers are in the machine's own order. */
#define MAGIC_ROW UINT64_C(0x3179616c68747268) /* "hrthlay1": files in a row; read only */
#define MAGIC UINT64_C(0x3279616c68747268)     /* "hrthlay2" */

struct header {
    uint64_t magic;
    uint64_t n_entries;
    uint64_t bytes; /* of everything in the index */
    uint64_t pack_bytes;
};

struct record {
    uint32_t bytes; /* of the whole record, a multiple of 8 */
    uint8_t type;
    uint8_t pad;
    uint16_t mode;
    uint32_t uid, gid;
    uint32_t major, minor;
    int64_t mtime;
    uint64_t size;
    uint64_t offset;
    uint32_t mtime_nsec;
    uint32_t xattrs_size;
    uint16_t path_size, target_size; /* with their NUL */
    uint32_t pad2;
};

int index_begin(struct buf *b)
{
    const struct header header = {0};

    return buf_append(b, &header, sizeof(header));
}

int index_add(struct buf *b, const struct layer_entry *e)
{
    const char *target = e->target ? e->target : "";
    size_t path_size = strlen(e->path) + 1, target_size = strlen(target) + 1;
    size_t bytes = sizeof(struct record) + e->xattrs_size + path_size + target_size;
    struct record record = {
        .bytes = (uint32_t)((bytes + 7) & ~(size_t)7),
        .type = (uint8_t)e->type,
        .mode = e->mode,
        .uid = e->uid,
        .gid = e->gid,
        .major = e->major,
        .minor = e->minor,
        .mtime = e->mtime,
        .mtime_nsec = e->mtime_nsec,
        .size = e->size,
        .offset = e->offset,
        .xattrs_size = (uint32_t)e->xattrs_size,
        .path_size = (uint16_t)path_size,
        .target_size = (uint16_t)target_size,
    };
    uint8_t *room;
    int r;

    if (path_size > UINT16_MAX || target_size > UINT16_MAX)
        return -ENAMETOOLONG;
    r = buf_reserve(b, record.bytes, &room);
    if (r < 0)
        return r;
    memset(room, 0, record.bytes);
    memcpy(room, &record, sizeof(record));
    room += sizeof(record);
    if (e->xattrs_size)
        memcpy(room, e->xattrs, e->xattrs_size);
    memcpy(room + e->xattrs_size, e->path, path_size);
    memcpy(room + e->xattrs_size + path_size, target, target_size);
    buf_commit(b, record.bytes);
    return 0;
}

int index_write(struct buf *b, const char *path, size_t n_entries, uint64_t pack_bytes,
                struct error *err)
{
    const struct header header = {
        .magic = MAGIC, .n_entries = n_entries, .bytes = b->size, .pack_bytes = pack_bytes};
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int r;

    if (fd < 0)
        return error_set(err, errno, "create '%s': %s", path, errno_text(errno));
    memcpy(buf_data(b), &header, sizeof(header));
    r = fd_write_full(fd, buf_data(b), b->size);
    return r < 0 ? error_set(err, -r, "write '%s': %s", path, errno_text(-r)) : 0;
}

int layer_open(const char *pack, const char *index, struct layer *ret, struct error *err)
{
    _cleanup_close_ int pack_fd = open(pack, O_RDONLY | O_CLOEXEC);
    _cleanup_close_ int fd = open(index, O_RDONLY | O_CLOEXEC);
    const struct header *header;
    struct stat st, pack_st;
    void *map;

    if (pack_fd < 0 || fd < 0 || fstat(fd, &st) < 0 || fstat(pack_fd, &pack_st) < 0)
        return error_set(err, errno, "open '%s': %s", fd < 0 ? index : pack, errno_text(errno));
    if ((uint64_t)st.st_size < sizeof(*header) || (uint64_t)st.st_size > INDEX_BYTES_MAX)
        return error_set(err, EIO, "layer '%s': its index is damaged", index);
    map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED)
        return error_set(err, errno, "map '%s': %s", index, errno_text(errno));
    header = map;
    if ((header->magic != MAGIC && header->magic != MAGIC_ROW) ||
        header->bytes != (uint64_t)st.st_size || header->pack_bytes != (uint64_t)pack_st.st_size ||
        (header->magic == MAGIC && header->pack_bytes % LAYER_ALIGN != 0)) {
        (void)munmap(map, (size_t)st.st_size);
        return error_set(err, EIO, "layer '%s': its index is damaged", index);
    }
    *ret = (struct layer){.pack_fd = TAKE_FD(pack_fd),
                          .map = map,
                          .map_size = (size_t)st.st_size,
                          .n_entries = (size_t)header->n_entries,
                          .pack_bytes = header->pack_bytes,
                          .in_blocks = header->magic == MAGIC};
    return 0;
}

void layer_close(struct layer *layer)
{
    if (layer->map)
        (void)munmap((void *)(uintptr_t)layer->map, layer->map_size);
    if (layer->map)
        (void)fd_close(layer->pack_fd);
    *layer = (struct layer){.pack_fd = -EBADF};
}

bool layer_next(const struct layer *layer, size_t *position, struct layer_entry *ret)
{
    size_t at = *position ? *position : sizeof(struct header);
    const struct record *record;
    const char *path, *target;

    if (at > layer->map_size || layer->map_size - at < sizeof(*record))
        return false;
    record = (const void *)(layer->map + at);
    if (record->bytes % 8 != 0 || record->bytes > layer->map_size - at ||
        sizeof(*record) + (uint64_t)record->xattrs_size + record->path_size + record->target_size >
            record->bytes ||
        record->path_size == 0 || record->target_size == 0)
        return false;
    path = (const char *)(record + 1) + record->xattrs_size;
    target = path + record->path_size;
    if (path[record->path_size - 1] != '\0' || target[record->target_size - 1] != '\0')
        return false;
    *ret = (struct layer_entry){
        .type = (enum layer_type)record->type,
        .mode = record->mode,
        .uid = record->uid,
        .gid = record->gid,
        .major = record->major,
        .minor = record->minor,
        .mtime = record->mtime,
        .mtime_nsec = record->mtime_nsec,
        .size = record->size,
        .offset = record->offset,
        .path = path,
        .target = target,
        .xattrs = (const uint8_t *)(record + 1),
        .xattrs_size = record->xattrs_size,
    };
    *position = at + record->bytes;
    return true;
}

bool layer_is_whole(const struct layer *layer)
{
    struct layer_entry entry;
    size_t position = 0, n = 0;

    while (layer_next(layer, &position, &entry))
        n++;
    return n == layer->n_entries && (position == layer->map_size || n == 0);
}
