#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/strv.h"
#include "store/snapshot.h"

/*
 * bench-store DIR MIB ROUNDS: the store against a plain sequential write of the same bytes, in
 * turns in one run. One line of JSON: MiB/s of both (medians), and the ratio. The store's side is
 * all that a snapshot costs: its memory file written, digested, zero pages made holes, synced,
 * renamed, and then once more read and verified, which is a figure of its own.
 */
#define ROUNDS_MAX 50
#define BLOCK (1024u * 1024u)

static void die(const char *what, const char *why)
{
    (void)fprintf(stderr, "bench-store: %s: %s\n", what, why);
    exit(1);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values, unsigned n)
{
    qsort(values, n, sizeof(*values), compare);
    return values[n / 2];
}

static void write_blocks(const char *path, const uint8_t *block, uint64_t mib, bool sync)
{
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (fd < 0)
        die(path, errno_text(errno));
    for (uint64_t i = 0; i < mib; i++) {
        int r = fd_write_full(fd, block + (i % 16) * 4096, BLOCK);

        if (r < 0)
            die(path, errno_text(-r));
    }
    if (sync && fsync(fd) < 0)
        die(path, errno_text(errno));
}

static void make_template(const char *templates, uint64_t mib, char id[MANIFEST_ID_SIZE])
{
    struct manifest m = {.origin = {.backend = "bench"}};
    struct error err = {0};
    _cleanup_free_ char *dir = NULL, *memory = NULL;

    origin_id(&m.origin, m.id);
    memcpy(id, m.id, MANIFEST_ID_SIZE);
    dir = string_printf("%s/%s", templates, id);
    memory = string_printf("%s/memory", dir);
    if (dir_create(dir, 0700, &err) < 0 || file_write_atomic(memory, "", 0, 0600, &err) < 0 ||
        truncate(memory, (off_t)(mib * BLOCK)) < 0 ||
        manifest_add_file(&m, dir, "memory", false, &err) < 0 || manifest_write(&m, dir, &err) < 0)
        die("template", err.text);
}

static double round_store(struct snapshot_store *s, const char *template_id, const uint8_t *block,
                          uint64_t mib, double *ret_read)
{
    struct snapshot_info info = {.sandbox = "bench"};
    struct snapshot_writer *w;
    struct error err = {0};
    _cleanup_free_ char *memory = NULL, *state = NULL, *disk = NULL;
    uint64_t start = clock_now_usec(), sealed;

    if (snapshot_writer_new(s, &w, &err) < 0)
        die("writer", err.text);
    memcpy(info.parent.template_id, template_id, MANIFEST_ID_SIZE);
    memory = string_printf("%s/memory", snapshot_writer_dir(w));
    state = string_printf("%s/state", snapshot_writer_dir(w));
    disk = string_printf("%s/disk", snapshot_writer_dir(w));
    write_blocks(memory, block, mib, false);
    write_blocks(state, block, 0, false);
    write_blocks(disk, block, 0, false);
    if (snapshot_writer_seal(w, &info, &err) < 0)
        die("seal", err.text);
    sealed = clock_now_usec();
    (void)snapshot_writer_free(w);
    if (snapshot_verify(s, info.id, NULL, NULL, &err) < 0)
        die("verify", err.text);
    *ret_read = (double)(clock_now_usec() - sealed);
    if (snapshot_remove(s, info.id, &err) < 0)
        die("remove", err.text);
    return (double)(sealed - start);
}

static double round_plain(const char *dir, const uint8_t *block, uint64_t mib)
{
    _cleanup_free_ char *path = string_printf("%s/plain", dir);
    uint64_t start = clock_now_usec(), end;

    write_blocks(path, block, mib, true);
    end = clock_now_usec();
    (void)unlink(path);
    return (double)(end - start);
}

int main(int argc, char **argv)
{
    uint64_t mib, rounds;
    double plain[ROUNDS_MAX], store[ROUNDS_MAX], reads[ROUNDS_MAX], p, s;
    struct snapshot_store *opened;
    char template_id[MANIFEST_ID_SIZE];
    struct error err = {0};
    _cleanup_free_ char *root = NULL, *templates = NULL;
    _cleanup_free_ uint8_t *block = malloc(BLOCK + 16 * 4096);

    if (argc != 4 || sodium_init() < 0 || !block || parse_u64(argv[2], 1, 65536, &mib) < 0 ||
        parse_u64(argv[3], 1, ROUNDS_MAX, &rounds) < 0)
        die("usage", "bench-store DIR MIB ROUNDS");
    randombytes_buf(block, BLOCK + 16 * 4096);
    root = string_printf("%s/snapshots", argv[1]);
    templates = string_printf("%s/templates", argv[1]);
    make_template(templates, mib, template_id);
    if (snapshot_store_open(root, templates, &opened, &err) < 0)
        die("store", err.text);
    for (unsigned i = 0; i < rounds; i++) {
        plain[i] = round_plain(argv[1], block, mib);
        store[i] = round_store(opened, template_id, block, mib, &reads[i]);
    }
    (void)snapshot_store_close(opened);
    p = median(plain, (unsigned)rounds);
    s = median(store, (unsigned)rounds);
    printf("{\"mib\": %" PRIu64 ", \"rounds\": %" PRIu64 ", \"plain_mib_s\": %.1f, "
           "\"store_mib_s\": %.1f, \"verify_mib_s\": %.1f, \"ratio\": %.3f}\n",
           mib, rounds, (double)mib * 1e6 / p, (double)mib * 1e6 / s,
           (double)mib * 1e6 / median(reads, (unsigned)rounds), p / s);
    return 0;
}
