#include "layers/xattr.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/macros.h"
#include "layers/layer.h"

#define XATTRS_MAX 128u

static const struct {
    const char *prefix;
    uint8_t index;
    bool whole; /* the name is the prefix */
} prefixes[] = {
    {"system.posix_acl_access", 2, true},
    {"system.posix_acl_default", 3, true},
    {"user.", 1, false},
    {"trusted.", 4, false},
    {"security.", 6, false},
};

static const char *const dropped[] = {"trusted.overlay.", "security.selinux", "security.ima",
                                      "security.evm", "user.overlay."};

struct attribute {
    uint8_t index;
    const char *name; /* weak, after the prefix */
    const void *value;
    size_t size;
};

static bool take(const char *name, const void *value, size_t size, struct attribute *ret)
{
    for (size_t i = 0; i < ARRAY_SIZE(dropped); i++)
        if (strncmp(name, dropped[i], strlen(dropped[i])) == 0)
            return false;
    for (size_t i = 0; i < ARRAY_SIZE(prefixes); i++) {
        size_t n = strlen(prefixes[i].prefix);

        if (strncmp(name, prefixes[i].prefix, n) != 0 || (prefixes[i].whole && name[n] != '\0') ||
            strlen(name + n) > UINT8_MAX)
            continue;
        *ret = (struct attribute){prefixes[i].index, name + n, value, size};
        return prefixes[i].whole || name[n] != '\0';
    }
    return false;
}

static int compare(const void *a, const void *b)
{
    const struct attribute *x = a, *y = b;

    return x->index != y->index ? (int)x->index - (int)y->index : strcmp(x->name, y->name);
}

static size_t packed_size(const struct attribute *a)
{
    return (4 + strlen(a->name) + a->size + 3) & ~(size_t)3;
}

int xattr_pack(struct archive_entry *entry, uint8_t **ret, size_t *ret_size)
{
    struct attribute list[XATTRS_MAX];
    size_t n = 0, size = 0;
    uint8_t *packed, *at;
    const char *name;
    const void *value;
    size_t value_size;

    *ret = NULL;
    *ret_size = 0;
    if (archive_entry_xattr_reset(entry) == 0)
        return 0;
    while (archive_entry_xattr_next(entry, &name, &value, &value_size) == ARCHIVE_OK) {
        if (!name || !take(name, value, value_size, &list[n]))
            continue;
        if (value_size > LAYER_XATTRS_MAX)
            return -E2BIG;
        size += packed_size(&list[n]);
        if (size > LAYER_XATTRS_MAX || ++n >= XATTRS_MAX)
            return -E2BIG;
    }
    if (n == 0)
        return 0;
    qsort(list, n, sizeof(list[0]), compare);
    for (size_t i = 1; i < n; i++) { /* a name that comes twice counts once */
        if (compare(&list[i - 1], &list[i]) != 0)
            continue;
        size -= packed_size(&list[i - 1]);
        memmove(&list[i - 1], &list[i], (n - i) * sizeof(list[0]));
        n--;
        i--;
    }
    at = packed = calloc(1, size);
    if (!packed)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        size_t name_size = strlen(list[i].name);

        at[0] = (uint8_t)name_size;
        at[1] = list[i].index;
        at[2] = (uint8_t)(list[i].size & 0xff);
        at[3] = (uint8_t)(list[i].size >> 8);
        memcpy(at + 4, list[i].name, name_size);
        if (list[i].size)
            memcpy(at + 4 + name_size, list[i].value, list[i].size);
        at += packed_size(&list[i]);
    }
    *ret = packed;
    *ret_size = size;
    return 0;
}

void xattr_unpack(const uint8_t *packed, size_t size, struct archive_entry *entry)
{
    while (size >= 4) {
        size_t name_size = packed[0], value_size = packed[2] | (size_t)packed[3] << 8;
        size_t whole = (4 + name_size + value_size + 3) & ~(size_t)3;
        char name[32 + UINT8_MAX];

        if (whole > size)
            return;
        for (size_t i = 0; i < ARRAY_SIZE(prefixes); i++)
            if (prefixes[i].index == packed[1]) {
                (void)snprintf(name, sizeof(name), "%s%.*s", prefixes[i].prefix, (int)name_size,
                               (const char *)packed + 4);
                archive_entry_xattr_add_entry(entry, name, packed + 4 + name_size, value_size);
            }
        packed += whole;
        size -= whole;
    }
}
