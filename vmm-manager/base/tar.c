#include "base/tar.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define NAME_SIZE 100u
#define ID_MAX UINT64_C(07777777)
#define SIZE_MAX_OCTAL UINT64_C(077777777777)
#define PAX_MAX ((size_t)1024 * 1024)

struct ustar {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, target[100];
    char magic[6], version[2], uname[32], gname[32], major[8], minor[8], prefix[155], rest[12];
};
static_assert(sizeof(struct ustar) == TAR_BLOCK, "one block");

bool tar_type_of(mode_t mode, enum tar_type *ret)
{
    *ret = S_ISREG(mode)   ? TAR_FILE
           : S_ISDIR(mode) ? TAR_DIR
           : S_ISLNK(mode) ? TAR_SYMLINK
           : S_ISCHR(mode) ? TAR_CHAR
           : S_ISBLK(mode) ? TAR_BLOCKDEV
                           : TAR_FIFO;
    return !S_ISSOCK(mode);
}

size_t tar_padding(uint64_t size)
{
    return (size_t)((TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK);
}

/* Octal with a NUL; what does not fit stands in the pax header, and here is 0. */
static void put_octal(char *field, size_t size, uint64_t value)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "%0*llo", (int)size - 1, (unsigned long long)value);
    if (strlen(text) >= size)
        (void)snprintf(text, sizeof(text), "%0*o", (int)size - 1, 0u);
    memcpy(field, text, size);
}

static void put_text(char *field, size_t size, const char *text)
{
    memcpy(field, text, MIN(strlen(text), size));
}

static void put_checksum(struct ustar *h)
{
    const uint8_t *bytes = (const uint8_t *)h;
    unsigned sum = 0;
    char text[8];

    memset(h->checksum, ' ', sizeof(h->checksum));
    for (size_t i = 0; i < sizeof(*h); i++)
        sum += bytes[i];
    (void)snprintf(text, sizeof(text), "%06o", sum & 0777777u);
    memcpy(h->checksum, text, 7);
}

static bool is_plain(const char *s)
{
    if (strlen(s) > NAME_SIZE)
        return false;
    for (; *s; s++)
        if ((uint8_t)*s >= 0x80)
            return false;
    return true;
}

/* "LENGTH KEY=VALUE\n", where the length counts itself. */
static int put_record(struct buf *pax, const char *key, const void *value, size_t size)
{
    size_t rest = strlen(key) + size + 3, total = rest + 1, digits = 1;
    int r;

    for (size_t n = total; n >= 10; n /= 10)
        digits++;
    total = rest + digits;
    if (snprintf(NULL, 0, "%zu", total) > (int)digits)
        total++;
    r = buf_printf(pax, "%zu %s=", total, key);
    if (r >= 0)
        r = buf_append(pax, value, size);
    return r < 0 ? r : buf_append(pax, "\n", 1);
}

static int put_number(struct buf *pax, const char *key, uint64_t value, uint64_t max)
{
    char text[32];

    if (value <= max)
        return 0;
    (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    return put_record(pax, key, text, strlen(text));
}

static int put_mtime(struct buf *pax, const struct tar_entry *e)
{
    char text[48];

    if (e->mtime >= 0 && e->mtime_nsec == 0)
        return 0;
    if (e->mtime < 0) /* what a clock that was never set writes */
        (void)snprintf(text, sizeof(text), "%lld", (long long)e->mtime);
    else
        (void)snprintf(text, sizeof(text), "%lld.%09u", (long long)e->mtime, e->mtime_nsec);
    return put_record(pax, "mtime", text, strlen(text));
}

static int put_pax(struct buf *pax, const struct tar_entry *e)
{
    int r = 0;

    if (!is_plain(e->path) || (e->target && !is_plain(e->target))) {
        r = put_record(pax, "hdrcharset", "BINARY", 6);
        if (r >= 0 && !is_plain(e->path))
            r = put_record(pax, "path", e->path, strlen(e->path));
        if (r >= 0 && e->target && !is_plain(e->target))
            r = put_record(pax, "linkpath", e->target, strlen(e->target));
    }
    if (r >= 0)
        r = put_number(pax, "uid", e->uid, ID_MAX);
    if (r >= 0)
        r = put_number(pax, "gid", e->gid, ID_MAX);
    if (r >= 0)
        r = put_number(pax, "size", e->size, SIZE_MAX_OCTAL);
    if (r >= 0)
        r = put_mtime(pax, e);
    for (size_t i = 0; r >= 0 && i < e->n_xattrs; i++) {
        char key[300];

        (void)snprintf(key, sizeof(key), "SCHILY.xattr.%.255s", e->xattrs[i].name);
        r = put_record(pax, key, e->xattrs[i].value, e->xattrs[i].size);
    }
    return r;
}

static int put_block(struct buf *out, struct ustar *h)
{
    memcpy(h->magic, "ustar", 6);
    memcpy(h->version, "00", 2);
    put_checksum(h);
    return buf_append(out, h, sizeof(*h));
}

static int put_extended(struct buf *out, const struct buf *pax)
{
    static const char zeros[TAR_BLOCK];
    struct ustar h = {.type = 'x'};
    int r;

    put_text(h.name, sizeof(h.name), "pax");
    put_octal(h.mode, sizeof(h.mode), 0644);
    put_octal(h.uid, sizeof(h.uid), 0);
    put_octal(h.gid, sizeof(h.gid), 0);
    put_octal(h.size, sizeof(h.size), pax->size);
    put_octal(h.mtime, sizeof(h.mtime), 0);
    r = put_block(out, &h);
    if (r >= 0)
        r = buf_append(out, buf_data(pax), pax->size);
    return r < 0 ? r : buf_append(out, zeros, tar_padding(pax->size));
}

int tar_put_header(struct buf *out, const struct tar_entry *e)
{
    struct ustar h = {.type = (char)e->type};
    struct buf pax;
    int r;

    buf_init(&pax, PAX_MAX);
    r = put_pax(&pax, e);
    if (r >= 0 && pax.size > 0)
        r = put_extended(out, &pax);
    buf_done(&pax);
    if (r < 0)
        return r;
    put_text(h.name, sizeof(h.name), e->path);
    put_octal(h.mode, sizeof(h.mode), e->mode & 07777);
    put_octal(h.uid, sizeof(h.uid), e->uid);
    put_octal(h.gid, sizeof(h.gid), e->gid);
    put_octal(h.size, sizeof(h.size), e->type == TAR_FILE ? e->size : 0);
    put_octal(h.mtime, sizeof(h.mtime), e->mtime > 0 ? (uint64_t)e->mtime : 0);
    if (e->target)
        put_text(h.target, sizeof(h.target), e->target);
    put_octal(h.major, sizeof(h.major), e->major);
    put_octal(h.minor, sizeof(h.minor), e->minor);
    return put_block(out, &h);
}

int tar_put_end(struct buf *out)
{
    static const char zeros[2 * TAR_BLOCK];

    return buf_append(out, zeros, sizeof(zeros));
}
