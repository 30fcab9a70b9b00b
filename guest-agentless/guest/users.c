#include "guest/users.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/strv.h"

#define FIELDS_MAX 7u

/* One line cut at colons; the fields are not NUL-terminated. */
struct line {
    const char *field[FIELDS_MAX];
    size_t size[FIELDS_MAX];
    size_t n;
};

static const char *line_next(const char *text, struct line *ret)
{
    const char *end;

    *ret = (struct line){0};
    if (*text == '\0')
        return NULL;
    end = strchrnul(text, '\n');
    for (const char *p = text; ret->n < FIELDS_MAX;) {
        const char *colon = memchr(p, ':', (size_t)(end - p));
        const char *stop = colon ? colon : end;

        ret->field[ret->n] = p;
        ret->size[ret->n++] = (size_t)(stop - p);
        if (!colon)
            break;
        p = colon + 1;
    }
    return *end ? end + 1 : end;
}

static bool field_is(const struct line *l, size_t i, const char *value)
{
    return i < l->n && strlen(value) == l->size[i] && memcmp(l->field[i], value, l->size[i]) == 0;
}

static int field_copy(const struct line *l, size_t i, char *to, size_t to_size)
{
    if (i >= l->n || l->size[i] >= to_size)
        return -EINVAL;
    memcpy(to, l->field[i], l->size[i]);
    to[l->size[i]] = '\0';
    return 0;
}

static int field_id(const struct line *l, size_t i, uint32_t *ret)
{
    char text[16];
    uint64_t value;
    int r;

    r = field_copy(l, i, text, sizeof(text));
    if (r < 0)
        return r;
    r = parse_u64(text, 0, UINT32_MAX - 1, &value);
    if (r < 0)
        return r;
    *ret = (uint32_t)value;
    return 0;
}

static char *load(const char *path)
{
    /* O_NONBLOCK: an image may put a FIFO there. */
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    char *data;
    ssize_t n;

    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > USERS_FILE_MAX)
        return strdup("");
    data = malloc((size_t)st.st_size + 1);
    if (!data)
        return NULL;
    n = fd_read_full(fd, data, (size_t)st.st_size);
    data[n > 0 ? n : 0] = '\0';
    return data;
}

int users_load(struct users *u)
{
    *u = (struct users){.passwd = load("/etc/passwd"), .group = load("/etc/group")};
    if (u->passwd && u->group)
        return 0;
    users_done(u);
    return -ENOMEM;
}

void users_done(struct users *u)
{
    free(u->passwd);
    free(u->group);
    *u = (struct users){0};
}

/* Fills name, uid, gid and home from a passwd line. */
static int user_from_line(const struct line *l, struct user *ret)
{
    uint32_t uid, gid;
    int r;

    r = field_id(l, 2, &uid);
    if (r < 0)
        return r;
    r = field_id(l, 3, &gid);
    if (r < 0)
        return r;
    r = field_copy(l, 0, ret->name, sizeof(ret->name));
    if (r < 0)
        return r;
    if (field_copy(l, 5, ret->home, sizeof(ret->home)) < 0 || ret->home[0] != '/')
        (void)snprintf(ret->home, sizeof(ret->home), "/");
    ret->uid = uid;
    ret->gid = gid;
    return 0;
}

static int find_user(const struct users *u, const char *name, uint64_t uid, struct user *ret)
{
    const char *p = u->passwd;
    struct line l;

    for (p = line_next(p, &l); p; p = line_next(p, &l)) {
        uint32_t id;
        bool match = name ? field_is(&l, 0, name) : field_id(&l, 2, &id) == 0 && id == uid;

        if (match && user_from_line(&l, ret) == 0)
            return 0;
    }
    return -ENOENT;
}

static int find_group(const struct users *u, const char *name, gid_t *ret)
{
    const char *p = u->group;
    struct line l;
    uint32_t gid;

    for (p = line_next(p, &l); p; p = line_next(p, &l)) {
        if (field_is(&l, 0, name) && field_id(&l, 2, &gid) == 0) {
            *ret = gid;
            return 0;
        }
    }
    return -ENOENT;
}

static bool members_contain(const struct line *l, const char *name)
{
    const char *p = l->n > 3 ? l->field[3] : NULL;
    size_t left = p ? l->size[3] : 0, length = strlen(name);

    while (left > 0) {
        const char *comma = memchr(p, ',', left);
        size_t n = comma ? (size_t)(comma - p) : left;

        if (n == length && memcmp(p, name, n) == 0)
            return true;
        if (!comma)
            break;
        p = comma + 1;
        left -= n + 1;
    }
    return false;
}

static void add_groups(const struct users *u, struct user *user)
{
    const char *p = u->group;
    struct line l;

    user->groups[0] = user->gid;
    user->n_groups = 1;
    for (p = line_next(p, &l); p && user->n_groups < USER_GROUPS_MAX; p = line_next(p, &l)) {
        uint32_t gid;

        if (members_contain(&l, user->name) && field_id(&l, 2, &gid) == 0 && gid != user->gid)
            user->groups[user->n_groups++] = gid;
    }
}

static int resolve_user(const struct users *u, const char *name, struct user *ret)
{
    uint64_t uid = 0;
    bool number = parse_u64(name, 0, UINT32_MAX - 1, &uid) == 0;

    if (find_user(u, number ? NULL : name, uid, ret) == 0)
        return 0;
    if (number ? uid == 0 : strcmp(name, "root") == 0) {
        *ret = (struct user){.name = "root", .home = "/root"};
        return 0;
    }
    if (!number)
        return -ENOENT;
    *ret = (struct user){.uid = (uid_t)uid, .home = "/"};
    (void)snprintf(ret->name, sizeof(ret->name), "%u", (unsigned)uid);
    return 0;
}

int users_resolve(const struct users *u, const char *spec, struct user *ret, struct error *err)
{
    const char *colon = strchr(spec, ':');
    size_t size = colon ? (size_t)(colon - spec) : strlen(spec);
    struct user user = {0};
    char name[USER_NAME_MAX];
    uint64_t gid;
    int r;

    if (size >= sizeof(name) || (colon && (size == 0 || colon[1] == '\0')))
        return error_set(err, EINVAL, "user '%.64s' is not a user or user:group", spec);
    memcpy(name, spec, size);
    name[size] = '\0';
    r = resolve_user(u, size > 0 ? name : "root", &user);
    if (r < 0)
        return error_set(err, ENOENT, "no user '%s' in the image", name);
    if (!colon) {
        add_groups(u, &user);
        *ret = user;
        return 0;
    }
    if (parse_u64(colon + 1, 0, UINT32_MAX - 1, &gid) == 0)
        user.gid = (gid_t)gid;
    else if (find_group(u, colon + 1, &user.gid) < 0)
        return error_set(err, ENOENT, "no group '%.64s' in the image", colon + 1);
    user.groups[0] = user.gid;
    user.n_groups = 1;
    *ret = user;
    return 0;
}

static void name_of(const char *text, uint32_t wanted, char name[USER_NAME_MAX])
{
    struct line l;
    uint32_t id;

    name[0] = '\0';
    for (const char *p = line_next(text, &l); p; p = line_next(p, &l)) {
        if (field_id(&l, 2, &id) == 0 && id == wanted) {
            if (field_copy(&l, 0, name, USER_NAME_MAX) < 0)
                name[0] = '\0';
            return;
        }
    }
}

void users_name_of_uid(const struct users *u, uid_t uid, char text[USER_NAME_MAX])
{
    name_of(u->passwd, uid, text);
}

void users_name_of_gid(const struct users *u, gid_t gid, char text[USER_NAME_MAX])
{
    name_of(u->group, gid, text);
}
