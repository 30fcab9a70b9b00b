#include "host/file-op.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *const type_names[] = {
    [FILE_TYPE_UNKNOWN] = "unknown",     [FILE_TYPE_REGULAR] = "file",
    [FILE_TYPE_DIRECTORY] = "directory", [FILE_TYPE_LINK] = "symlink",
    [FILE_TYPE_PIPE] = "fifo",           [FILE_TYPE_SOCK] = "socket",
    [FILE_TYPE_CHAR] = "char",           [FILE_TYPE_BLOCK] = "block",
};
_Static_assert(ARRAY_SIZE(type_names) == FILE_TYPE_BLOCK + 1, "every type has a name");

const char *file_type_name(enum file_type type)
{
    return (size_t)type < ARRAY_SIZE(type_names) ? type_names[type] : type_names[FILE_TYPE_UNKNOWN];
}

void file_info_done(struct file_info *info)
{
    free(info->path);
    free(info->link_target);
    info->path = NULL;
    info->link_target = NULL;
}

int file_path_check(const char *path, const char *noun, struct error *err)
{
    if (!path || path[0] != '/')
        return error_set_code(err, ERR_INVALID_ARGUMENT, "%s is not an absolute path", noun);
    if (strlen(path) > FILE_PATH_MAX)
        return error_set_code(err, ERR_LIMIT_EXCEEDED, "%s has %zu bytes, at most %u are possible",
                              noun, strlen(path), FILE_PATH_MAX);
    return 0;
}

ProtobufCBinaryData file_path_bytes(const char *path)
{
    /* protobuf-c has no const fields; packing only reads them. */
    union {
        const char *in;
        uint8_t *out;
    } u = {.in = path};

    return (ProtobufCBinaryData){.data = u.out, .len = strlen(path)};
}

char *file_text_take(const ProtobufCBinaryData *from, const char *noun, struct error *err)
{
    char *to;

    if (from->len > FILE_PATH_MAX || (from->len > 0 && memchr(from->data, 0, from->len))) {
        (void)error_set_code(err, ERR_GUEST_PROTOCOL, "guest told an impossible %s of %zu bytes",
                             noun, from->len);
        return NULL;
    }
    to = malloc(from->len + 1);
    if (!to) {
        (void)error_set(err, ENOMEM, "copying a %s", noun);
        return NULL;
    }
    if (from->len > 0)
        memcpy(to, from->data, from->len);
    to[from->len] = '\0';
    return to;
}

/* Whoever joins it to a directory must stay inside: relative, no empty part, no "..". */
static bool is_inside(const char *path)
{
    while (*path) {
        size_t n = strcspn(path, "/");

        if (n == 0 || (n == 1 && path[0] == '.') || (n == 2 && path[0] == '.' && path[1] == '.'))
            return false;
        path += n;
        if (*path == '/' && *++path == '\0')
            return false;
    }
    return true;
}

static enum file_type type_of(int type)
{
    switch (type) {
    case HEARTH__V1__FILE_TYPE__FILE_TYPE_FILE:
        return FILE_TYPE_REGULAR;
    case HEARTH__V1__FILE_TYPE__FILE_TYPE_DIRECTORY:
        return FILE_TYPE_DIRECTORY;
    case HEARTH__V1__FILE_TYPE__FILE_TYPE_SYMLINK:
        return FILE_TYPE_LINK;
    case HEARTH__V1__FILE_TYPE__FILE_TYPE_FIFO:
        return FILE_TYPE_PIPE;
    case HEARTH__V1__FILE_TYPE__FILE_TYPE_SOCKET:
        return FILE_TYPE_SOCK;
    case HEARTH__V1__FILE_TYPE__FILE_TYPE_CHARACTER_DEVICE:
        return FILE_TYPE_CHAR;
    case HEARTH__V1__FILE_TYPE__FILE_TYPE_BLOCK_DEVICE:
        return FILE_TYPE_BLOCK;
    default:
        return FILE_TYPE_UNKNOWN;
    }
}

int file_info_take(const Hearth__V1__FileInfo *from, const char *path, struct file_info *to,
                   struct error *err)
{
    struct file_info info = {
        .type = type_of((int)from->type),
        .size = from->size,
        .mode = from->mode & 07777u,
        .uid = from->uid,
        .gid = from->gid,
        .mtime_nsec = from->mtime_nsec,
    };

    info.path = path ? strdup(path) : file_text_take(&from->path, "path", err);
    if (!info.path)
        return error_fill(err, err && err->errnum ? -err->errnum : -ENOMEM, "copying a path");
    if (!path && (info.path[0] == '\0' || !is_inside(info.path))) {
        file_info_done(&info);
        return error_set_code(err, ERR_GUEST_PROTOCOL,
                              "guest listed a path that leaves the directory");
    }
    if (info.type == FILE_TYPE_LINK) {
        info.link_target = file_text_take(&from->symlink_target, "symlink target", err);
        if (!info.link_target) {
            file_info_done(&info);
            return err ? -err->errnum : -EPROTO;
        }
    }
    (void)wire_escape_string(info.owner, sizeof(info.owner), from->owner);
    (void)wire_escape_string(info.group, sizeof(info.group), from->group);
    *to = info;
    return 0;
}
