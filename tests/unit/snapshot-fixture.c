#include "snapshot-fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "harness/test.h"

void fixture_page(struct fixture *f, unsigned page, unsigned seed)
{
    uint8_t *at = f->memory + page * 4096ull;
    uint8_t key[randombytes_SEEDBYTES] = {(uint8_t)seed, (uint8_t)(seed >> 8), (uint8_t)page,
                                          (uint8_t)(page >> 8)};

    if (seed == 0)
        memset(at, 0, 4096);
    else
        randombytes_buf_deterministic(at, 4096, key);
}

static void write_file(const char *dir, const char *name, const void *data, size_t size)
{
    char path[256];

    ASSERT_TRUE((size_t)snprintf(path, sizeof(path), "%s/%s", dir, name) < sizeof(path));
    ASSERT_OK(file_write_atomic(path, data, size, 0600, NULL));
}

static void make_template(struct fixture *f)
{
    struct manifest m = {.created_wall_usec = 7};
    char dir[256];

    (void)snprintf(m.origin.backend, sizeof(m.origin.backend), "qemu");
    (void)snprintf(m.origin.backend_version, sizeof(m.origin.backend_version), "7.2");
    (void)snprintf(m.origin.cpu_model, sizeof(m.origin.cpu_model), "max");
    m.origin.memory_mib = (uint32_t)(FIXTURE_MEMORY >> 20);
    origin_id(&m.origin, m.id);
    memcpy(f->template_id, m.id, sizeof(m.id));
    for (unsigned i = 0; i < FIXTURE_PAGES; i += 3)
        fixture_page(f, i, 1);
    for (size_t i = 0; i < FIXTURE_DISK; i++)
        f->disk[i] = i / 65536 % 3 == 0 ? (uint8_t)(i * 7 + 1) : 0;
    (void)snprintf(dir, sizeof(dir), "%s/%s", f->templates, m.id);
    ASSERT_OK(dir_create(dir, 0700, NULL));
    write_file(dir, "memory", f->memory, FIXTURE_MEMORY);
    write_file(dir, "state", "template", 8);
    ASSERT_OK(manifest_add_file(&m, dir, "memory", true, NULL));
    ASSERT_OK(manifest_add_file(&m, dir, "state", true, NULL));
    ASSERT_OK(manifest_write(&m, dir, NULL));
}

void fixture_init(struct fixture *f, const char *name)
{
    struct error err = {0};

    ASSERT_OK(sodium_init());
    memset(f, 0, sizeof(*f));
    (void)snprintf(f->root, sizeof(f->root), "%s/%s/snapshots", test_tmpdir(), name);
    (void)snprintf(f->templates, sizeof(f->templates), "%s/%s/templates", test_tmpdir(), name);
    f->memory = calloc(1, FIXTURE_MEMORY);
    f->disk = calloc(1, FIXTURE_DISK);
    ASSERT_TRUE(f->memory && f->disk);
    make_template(f);
    if (snapshot_store_open(f->root, f->templates, &f->store, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s", err.text);
}

void fixture_done(struct fixture *f)
{
    f->store = snapshot_store_close(f->store);
    free(f->memory);
    free(f->disk);
}

void fixture_reopen(struct fixture *f)
{
    f->store = snapshot_store_close(f->store);
    ASSERT_OK(snapshot_store_open(f->root, f->templates, &f->store, NULL));
}

static int write_sparse(const char *dir, const char *name, const uint8_t *data, uint64_t size,
                        const unsigned *pages, size_t n)
{
    char path[256];
    _cleanup_close_ int fd = -EBADF;

    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)size) < 0)
        return -errno;
    for (size_t i = 0; i < n; i++)
        if (pwrite(fd, data + pages[i] * 4096ull, 4096, (off_t)(pages[i] * 4096ull)) != 4096)
            return errno ? -errno : -EIO;
    return 0;
}

int fixture_write(struct fixture *f, const char *dir, const unsigned *pages, size_t n)
{
    unsigned blocks[FIXTURE_DISK / 4096];
    size_t n_blocks = 0;
    char path[256];
    int r;

    for (unsigned i = 0; i < FIXTURE_DISK / 4096; i++) {
        bool zero = f->disk[i * 4096ull] == 0 &&
                    memcmp(f->disk + i * 4096ull, f->disk + i * 4096ull + 1, 4095) == 0;

        if (!zero || i % 40 == 0) /* zeros that are not a hole */
            blocks[n_blocks++] = i;
    }
    (void)snprintf(path, sizeof(path), "%s/state", dir);
    r = file_write_atomic(path, "device state", 12, 0600, NULL);
    if (r >= 0)
        r = write_sparse(dir, "memory", f->memory, FIXTURE_MEMORY, pages, n);
    if (r >= 0)
        r = write_sparse(dir, "disk", f->disk, FIXTURE_DISK, blocks, n_blocks);
    return r;
}

int fixture_try(struct fixture *f, const char *parent, const unsigned *pages, size_t n,
                char ret_id[MANIFEST_ID_SIZE], struct error *err)
{
    struct snapshot_info info = {.kind = SNAPSHOT_CHECKPOINT, .name = "here", .sandbox = "sb-1"};
    struct snapshot_writer *w;
    int r = snapshot_writer_new(f->store, &w, err);

    if (r < 0)
        return r;
    (void)snprintf(info.origin.backend, sizeof(info.origin.backend), "qemu");
    (void)snprintf(info.origin.backend_version, sizeof(info.origin.backend_version), "7.2");
    (void)snprintf(info.origin.cpu_model, sizeof(info.origin.cpu_model), "max");
    if (parent)
        memcpy(info.parent.snapshot_id, parent, MANIFEST_ID_SIZE);
    else
        memcpy(info.parent.template_id, f->template_id, MANIFEST_ID_SIZE);
    info.meta = json_pack("{s:s}", "k", "v\xc3\xa9");
    r = fixture_write(f, snapshot_writer_dir(w), pages, n);
    if (r >= 0)
        r = snapshot_writer_seal(w, &info, err);
    if (r >= 0)
        memcpy(ret_id, info.id, MANIFEST_ID_SIZE);
    (void)snapshot_writer_free(w);
    json_decref(info.meta);
    return r;
}

void fixture_snapshot(struct fixture *f, const char *parent, const unsigned *pages, size_t n,
                      char ret_id[MANIFEST_ID_SIZE])
{
    struct error err = {0};

    if (fixture_try(f, parent, pages, n, ret_id, &err) < 0)
        test_fail(__FILE__, __LINE__, "seal: %s", err.text);
}

/* Base memory with the pages over it. */
static int read_memory(struct snapshot *snap, uint8_t *memory, struct error *err)
{
    _cleanup_close_ int fd = open(snapshot_base_memory(snap), O_RDONLY | O_CLOEXEC);
    struct page_source *source;
    uint64_t offset, last = 0;
    const void *data;
    size_t size;
    int r;

    ASSERT_TRUE(fd >= 0);
    ASSERT_EQ(fd_read_full(fd, memory, FIXTURE_MEMORY), (long long)FIXTURE_MEMORY);
    r = snapshot_pages(snap, &source, err);
    if (r < 0)
        return r;
    for (;;) {
        r = source->ops->next(source, &offset, &data, &size, err);
        if (r <= 0)
            break;
        ASSERT_TRUE(offset >= last && size > 0 && offset % 4096 == 0 && size % 4096 == 0);
        ASSERT_TRUE(offset + size <= FIXTURE_MEMORY);
        last = offset + size;
        if (data)
            memcpy(memory + offset, data, size);
        else
            memset(memory + offset, 0, size);
    }
    (void)source->ops->free(source);
    return r;
}

static int read_disk(struct fixture *f, struct snapshot *snap, uint8_t *disk, struct error *err)
{
    char path[256];
    _cleanup_close_ int fd = -EBADF;
    int r;

    (void)snprintf(path, sizeof(path), "%s/../disk-copy", f->root);
    r = snapshot_copy_disk(snap, path, err);
    if (r < 0)
        return r;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    ASSERT_TRUE(fd >= 0);
    ASSERT_EQ(fd_read_full(fd, disk, FIXTURE_DISK), (long long)FIXTURE_DISK);
    ASSERT_OK(unlink(path));
    return 0;
}

int fixture_check(struct fixture *f, const char *id, struct error *err)
{
    _cleanup_free_ uint8_t *memory = malloc(FIXTURE_MEMORY), *disk = malloc(FIXTURE_DISK);
    struct snapshot *snap;
    int r = snapshot_open(f->store, id, &snap, err);

    ASSERT_TRUE(memory && disk);
    if (r < 0)
        return r;
    r = read_memory(snap, memory, err);
    if (r >= 0)
        r = read_disk(f, snap, disk, err);
    if (r >= 0) {
        ASSERT_MEMEQ(memory, f->memory, FIXTURE_MEMORY);
        ASSERT_MEMEQ(disk, f->disk, FIXTURE_DISK);
    }
    (void)snapshot_close(snap);
    return r;
}

size_t fixture_entries(const struct fixture *f)
{
    DIR *d = opendir(f->root);
    size_t count = 0;

    ASSERT_TRUE(d != NULL);
    while (true) {
        const struct dirent *entry = readdir(d);

        if (!entry)
            break;
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    (void)closedir(d);
    return count;
}
