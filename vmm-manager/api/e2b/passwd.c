#include "api/e2b/passwd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/macros.h"
#include "base/strv.h"

#define FIELDS 7
#define HOME_MAX 1024u

/* Splits one line at its colons; false: it has not the right number of fields. */
static bool split(char *line, char *fields[FIELDS])
{
    for (int i = 0; i < FIELDS; i++) {
        fields[i] = line;
        line = strchr(line, ':');
        if (!line)
            return i == FIELDS - 1;
        *line++ = '\0';
    }
    return false;
}

static int account(char *const fields[FIELDS], uint32_t *ret_uid, uint32_t *ret_gid,
                   char **ret_home)
{
    uint64_t uid, gid;
    const char *home = fields[5];

    if (parse_u64(fields[2], 0, UINT32_MAX - 1, &uid) < 0 ||
        parse_u64(fields[3], 0, UINT32_MAX - 1, &gid) < 0)
        return -ENOENT;
    if (home[0] != '/' || strlen(home) > HOME_MAX)
        home = "/";
    *ret_home = strdup(home);
    *ret_uid = (uint32_t)uid;
    *ret_gid = (uint32_t)gid;
    return *ret_home ? 0 : -ENOMEM;
}

static int builtin(const char *user, uint32_t *ret_uid, uint32_t *ret_gid, char **ret_home)
{
    static const struct {
        const char *name, *home;
        uint32_t id;
    } known[] = {{"root", "/root", 0}, {"user", "/home/user", 1000}};

    for (size_t i = 0; i < ARRAY_SIZE(known); i++) {
        if (strcmp(known[i].name, user) != 0)
            continue;
        *ret_uid = *ret_gid = known[i].id;
        *ret_home = strdup(known[i].home);
        return *ret_home ? 0 : -ENOMEM;
    }
    return -ENOENT;
}

int passwd_find(const char *text, size_t size, const char *user, uint32_t *ret_uid,
                uint32_t *ret_gid, char **ret_home)
{
    const char *end = text + size;

    while (text < end) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        size_t length = (size_t)((newline ? newline : end) - text);
        _cleanup_free_ char *line = strndup(text, length);
        char *fields[FIELDS];

        if (!line)
            return -ENOMEM;
        if (split(line, fields) && strcmp(fields[0], user) == 0)
            return account(fields, ret_uid, ret_gid, ret_home);
        text += length + 1;
    }
    return builtin(user, ret_uid, ret_gid, ret_home);
}
