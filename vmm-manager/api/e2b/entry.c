#include "api/e2b/entry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/strv.h"
#include "model/text.h"

void entry_permissions(const struct file_info *info, char ret[static 16])
{
    static const char bits[] = "rwxrwxrwx";
    char *p = ret;

    /* Special bits in front, as Go's FileMode prints them. */
    if (info->type == FILE_TYPE_DIRECTORY)
        *p++ = 'd';
    if (info->type == FILE_TYPE_LINK)
        *p++ = 'L';
    if (info->mode & 04000)
        *p++ = 'u';
    if (info->mode & 02000)
        *p++ = 'g';
    if (info->mode & 01000)
        *p++ = 't';
    if (p == ret)
        *p++ = '-';
    for (int i = 0; i < 9; i++)
        *p++ = info->mode & (0400u >> i) ? bits[i] : '-';
    *p = '\0';
}

static const char *entry_type(enum file_type type)
{
    switch (type) {
    case FILE_TYPE_REGULAR:
        return "FILE_TYPE_FILE";
    case FILE_TYPE_DIRECTORY:
        return "FILE_TYPE_DIRECTORY";
    case FILE_TYPE_LINK:
        return "FILE_TYPE_SYMLINK";
    default:
        return "FILE_TYPE_UNSPECIFIED";
    }
}

static void format_time(uint64_t nsec, char *text, size_t size)
{
    time_t sec = (time_t)(nsec / 1000000000u);
    struct tm tm;
    char date[32];

    (void)gmtime_r(&sec, &tm);
    (void)strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(text, size, "%s.%09uZ", date, (unsigned)(nsec % 1000000000u));
}

/* Where a symlink points, absolute, with "." and ".." taken out as far as words go. */
static char *link_path(const char *path, const char *target)
{
    const char *slash = strrchr(path, '/');
    _cleanup_free_ char *whole =
        target[0] == '/' ? strdup(target)
                         : string_printf("%.*s/%s", (int)(slash ? slash - path : 0), path, target);
    char *out = whole ? malloc(strlen(whole) + 2) : NULL;
    size_t n = 0;

    for (const char *p = whole; out && *p;) {
        size_t length;

        p += strspn(p, "/");
        length = strcspn(p, "/");
        if (length == 2 && strncmp(p, "..", 2) == 0) {
            while (n > 0 && out[--n] != '/')
                ;
        } else if (length > 0 && !(length == 1 && p[0] == '.')) {
            out[n++] = '/';
            memcpy(out + n, p, length);
            n += length;
        }
        p += length;
    }
    if (out && n == 0)
        out[n++] = '/';
    if (out)
        out[n] = '\0';
    return out;
}

json_t *entry_to_json(const struct file_info *info, const char *path,
                      const struct file_info *target)
{
    const struct file_info *what = target ? target : info;
    const char *slash = strrchr(path, '/'), *name = slash && slash[1] ? slash + 1 : path;
    bool dangling = info->type == FILE_TYPE_LINK && !target;
    char permissions[16], modified[64], size[32];
    json_t *o;

    entry_permissions(info, permissions);
    format_time(info->mtime_nsec, modified, sizeof(modified));
    (void)snprintf(size, sizeof(size), "%llu", (unsigned long long)info->size);
    o = json_pack("{s:o, s:s, s:o, s:s, s:i, s:s, s:o, s:o, s:s}", "name", json_text(name), "type",
                  dangling ? "FILE_TYPE_UNSPECIFIED" : entry_type(what->type), "path",
                  json_text(path), "size", size, "mode", (int)(what->mode & 0777u), "permissions",
                  permissions, "owner", json_text(info->owner), "group", json_text(info->group),
                  "modifiedTime", modified);
    if (o && info->link_target) {
        _cleanup_free_ char *absolute = link_path(path, info->link_target);

        if (absolute)
            (void)json_object_set_new(o, "symlinkTarget", json_text(absolute));
    }
    return o;
}
