#include "dockerfile/copy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/strv.h"

#define ITEMS_MAX 1000000u
#define LINKS_MAX 40u
#define ACCOUNTS_MAX ((size_t)1024 * 1024)

void copy_list_done(struct copy_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        free(list->items[i].path);
    free(list->items);
    *list = (struct copy_list){0};
}

static int too_much(struct error *err)
{
    return error_set(err, ENOMEM, "out of memory");
}

static bool is_dir(const struct tree_node *node)
{
    return node && S_ISDIR(node->inode->mode);
}

/* ---- the list ---- */

static int insert(struct copy_list *list, size_t at, const char *path, struct tree_node *node,
                  struct error *err)
{
    char *copy;

    if (list->n == ITEMS_MAX)
        return error_set_code(err, ERR_LIMIT_EXCEEDED, "more than %u files", ITEMS_MAX);
    if (list->n == list->room) {
        size_t room = list->room ? list->room * 2 : 64;
        struct copy_item *more = realloc(list->items, room * sizeof(*more));

        if (!more)
            return too_much(err);
        list->items = more;
        list->room = room;
    }
    copy = strdup(path);
    if (!copy)
        return too_much(err);
    memmove(&list->items[at + 1], &list->items[at], (list->n - at) * sizeof(list->items[0]));
    list->items[at] = (struct copy_item){.path = copy, .node = node};
    list->n++;
    return 0;
}

static int append(struct copy_list *list, const char *path, struct tree_node *node,
                  struct error *err)
{
    return insert(list, list->n, path, node, err);
}

/* Directories on the way to `path` that neither the image nor the list has. */
static int add_parents(struct copy_list *list, const char *path, struct error *err)
{
    _cleanup_free_ char *part = strdup(path);
    int r = part ? 0 : too_much(err);

    for (size_t i = 0; r == 0 && path[i]; i++) {
        bool there = false;

        if (path[i] != '/' || i == 0)
            continue;
        part[i] = '\0';
        for (size_t k = 0; k < list->n && !there; k++)
            there = strcmp(list->items[k].path, part) == 0;
        if (!there && !tree_lookup(list->spec->into->tree, part))
            r = append(list, part, NULL, err);
        part[i] = '/';
    }
    return r;
}

/* ---- where to ---- */

static int node_path(const struct tree_node *node, char path[LAYER_PATH_MAX])
{
    char back[LAYER_PATH_MAX];
    size_t at = sizeof(back);

    for (; node->parent; node = node->parent) {
        if (at < (size_t)node->name_size + 2)
            return -ENAMETOOLONG;
        if (at < sizeof(back))
            back[--at] = '/';
        at -= node->name_size;
        memcpy(back + at, node->name, node->name_size);
    }
    memcpy(path, back + at, sizeof(back) - at);
    path[sizeof(back) - at] = '\0';
    return 0;
}

/* What a link to a file means inside its tree; a link that leads nowhere is itself. */
static struct tree_node *follow(struct stack *stack, struct tree_node *node)
{
    for (unsigned hops = 0; node && S_ISLNK(node->inode->mode) && hops < LINKS_MAX; hops++) {
        const char *target = node->inode->target;
        char path[LAYER_PATH_MAX] = "";
        struct tree_node *next;
        size_t used;

        if (target[0] != '/' && node_path(node->parent, path) < 0)
            return node;
        used = strlen(path);
        if (used + strlen(target) + 2 > sizeof(path))
            return node;
        (void)snprintf(path + used, sizeof(path) - used, "/%s", target);
        next = tree_lookup(stack->tree, path);
        if (!next)
            return node;
        node = next;
    }
    return node;
}

/* The place that an absolute path means in the image, links followed as far as it exists. */
static int resolve(struct stack *into, const char *dest, char path[LAYER_PATH_MAX],
                   struct error *err)
{
    const char *rest = dest + strspn(dest, "/"), *begin = rest;
    struct tree_node *found = tree_root(into->tree);
    size_t size;

    while (*rest) {
        size_t n = strcspn(rest, "/");
        _cleanup_free_ char *part = strndup(begin, (size_t)(rest + n - begin));
        struct tree_node *node = part ? tree_lookup(into->tree, part) : NULL;

        if (!part)
            return too_much(err);
        if (!is_dir(node))
            break;
        found = node;
        rest += n;
        rest += strspn(rest, "/");
    }
    if (node_path(found, path) < 0 || strlen(path) + strlen(rest) + 2 > LAYER_PATH_MAX)
        return error_set(err, ENAMETOOLONG, "'%.80s': the path is too long", dest);
    size = strlen(path);
    (void)snprintf(path + size, LAYER_PATH_MAX - size, "%s%s", size && *rest ? "/" : "", rest);
    size = strlen(path);
    while (size > 0 && path[size - 1] == '/')
        path[--size] = '\0';
    return 0;
}

/* ---- what ---- */

static bool ignored(const struct copy_list *list, const char *path)
{
    return list->spec->ignore && path[0] && ignore_match(list->spec->ignore, path);
}

/* The content of a directory, without itself. `from` and `to` are grown and cut again. */
static int add_children(struct copy_list *list, struct tree_node *dir, char *from, char *to,
                        struct error *err)
{
    size_t from_size = strlen(from), to_size = strlen(to);
    int r = tree_sort(dir) < 0 ? too_much(err) : 0;

    for (struct tree_node *c = dir->children; r == 0 && c; c = c->next) {
        size_t at = list->n;
        bool skip;

        if (from_size + c->name_size + 2 > LAYER_PATH_MAX ||
            to_size + c->name_size + 2 > LAYER_PATH_MAX)
            return error_set(err, ENAMETOOLONG, "'%.80s…': the path is too long", from);
        (void)snprintf(from + from_size, LAYER_PATH_MAX - from_size, "%s%.*s", from_size ? "/" : "",
                       (int)c->name_size, c->name);
        (void)snprintf(to + to_size, LAYER_PATH_MAX - to_size, "%s%.*s", to_size ? "/" : "",
                       (int)c->name_size, c->name);
        skip = ignored(list, from);
        if (is_dir(c)) {
            if (!skip || ignore_has_keeps(list->spec->ignore))
                r = add_children(list, c, from, to, err);
            if (r == 0 && (!skip || list->n > at))
                r = insert(list, at, to, c, err);
        } else if (!skip) {
            r = append(list, to, c, err);
        }
        from[from_size] = '\0';
        to[to_size] = '\0';
    }
    return r;
}

/* A source without `.`, `..` and slashes at its ends. */
static int clean_source(const char *source, char path[LAYER_PATH_MAX], struct error *err)
{
    size_t used = 0;

    for (const char *s = source; *s;) {
        size_t n = strcspn(s, "/");
        const char *word = s;

        s += n + (s[n] == '/');
        if (n == 0 || (n == 1 && word[0] == '.'))
            continue;
        if (n == 2 && word[0] == '.' && word[1] == '.') {
            if (used == 0)
                return error_set(err, EINVAL, "'%.80s' leads out of the context", source);
            while (used > 0 && path[--used] != '/')
                ;
            continue;
        }
        if (used + n + 2 > LAYER_PATH_MAX)
            return error_set(err, ENAMETOOLONG, "'%.80s': the path is too long", source);
        if (used)
            path[used++] = '/';
        memcpy(path + used, word, n);
        used += n;
    }
    path[used] = '\0';
    return 0;
}

struct adding {
    struct copy_list *list;
    char dest[LAYER_PATH_MAX]; /* resolved */
    bool dest_is_dir;
    const struct glob *glob; /* weak: of this source */
    size_t found;
    struct error *err;
};

/* One source that was found, at `path` of its tree. */
static int add_source(struct adding *a, struct tree_node *node, const char *path)
{
    struct copy_list *list = a->list;
    const char *slash = strrchr(path, '/');
    char from[LAYER_PATH_MAX], to[LAYER_PATH_MAX];
    bool archive = list->spec->unpack && S_ISREG(node->inode->mode) &&
                   copy_is_archive(list->spec->from, node->inode);
    int r;

    a->found++;
    (void)snprintf(from, sizeof(from), "%s", path);
    (void)snprintf(to, sizeof(to), "%s", a->dest);
    if (is_dir(node) || archive) {
        struct tree_node *there = tree_lookup(list->spec->into->tree, to);

        if (there && !is_dir(there))
            return error_set(a->err, ENOTDIR, "'/%.80s' is there and no directory", to);
        r = add_parents(list, to, a->err);
        if (r == 0 && to[0] && !there)
            r = append(list, to, archive ? NULL : node, a->err);
        if (r == 0 && archive) {
            r = append(list, to, node, a->err);
            if (r == 0)
                list->items[list->n - 1].unpack = true;
        } else if (r == 0) {
            r = add_children(list, node, from, to, a->err);
        }
        return r;
    }
    if (a->dest_is_dir && strlen(to) + strlen(path) + 2 > sizeof(to))
        return error_set(a->err, ENAMETOOLONG, "'%.80s': the path is too long", path);
    if (a->dest_is_dir)
        (void)snprintf(to + strlen(to), sizeof(to) - strlen(to), "%s%s", to[0] ? "/" : "",
                       slash ? slash + 1 : path);
    r = add_parents(list, to, a->err);
    return r < 0 ? r : append(list, to, node, a->err);
}

static int add_matches(struct adding *a, struct tree_node *dir, char *path)
{
    size_t size = strlen(path);
    int r = tree_sort(dir) < 0 ? too_much(a->err) : 0;

    for (struct tree_node *c = dir->children; r == 0 && c; c = c->next) {
        if (size + c->name_size + 2 > LAYER_PATH_MAX)
            return error_set(a->err, ENAMETOOLONG, "'%.80s…': the path is too long", path);
        (void)snprintf(path + size, LAYER_PATH_MAX - size, "%s%.*s", size ? "/" : "",
                       (int)c->name_size, c->name);
        if (glob_match(a->glob, path, false) && !ignored(a->list, path))
            r = add_source(a, c, path);
        else if (is_dir(c))
            r = add_matches(a, c, path);
        path[size] = '\0';
    }
    return r;
}

static int add_pattern(struct adding *a, const char *source, const char *pattern)
{
    char path[LAYER_PATH_MAX] = "";
    struct glob *glob = NULL;
    size_t before = a->found;
    int r = glob_new(pattern, &glob);

    if (r < 0)
        return error_set(a->err, -r, "'%.80s' is no pattern", source);
    a->glob = glob;
    r = add_matches(a, tree_root(a->list->spec->from->tree), path);
    (void)glob_free(glob);
    if (r == 0 && a->found == before)
        r = error_set_code(a->err, ERR_PATH_NOT_FOUND, "'%.200s' matches nothing", source);
    return r;
}

static int add_named(struct adding *a, const char *source)
{
    char path[LAYER_PATH_MAX];
    struct tree_node *node;
    int r = clean_source(source, path, a->err);

    if (r < 0)
        return r;
    node = follow(a->list->spec->from, tree_lookup(a->list->spec->from->tree, path));
    if (!node && glob_has_magic(path))
        return add_pattern(a, source, path);
    if (!node)
        return error_set_code(a->err, ERR_PATH_NOT_FOUND, "'%.200s': no such file", source);
    if (ignored(a->list, path) && !(is_dir(node) && ignore_has_keeps(a->list->spec->ignore)))
        return error_set_code(a->err, ERR_PATH_NOT_FOUND, "'%.200s' is kept out by .dockerignore",
                              source);
    return add_source(a, node, path);
}

static int add_text(struct adding *a, const struct heredoc *text)
{
    char to[LAYER_PATH_MAX];
    int r;

    if ((size_t)snprintf(to, sizeof(to), "%s%s%s", a->dest, a->dest_is_dir && a->dest[0] ? "/" : "",
                         a->dest_is_dir ? text->name : "") >= sizeof(to))
        return error_set(a->err, ENAMETOOLONG, "'%.80s…': the path is too long", to);
    r = add_parents(a->list, to, a->err);
    if (r == 0)
        r = append(a->list, to, NULL, a->err);
    if (r == 0)
        a->list->items[a->list->n - 1].text = text->content;
    return r;
}

int copy_plan(const struct copy_spec *spec, struct copy_list *ret, struct error *err)
{
    _cleanup_copy_list_ struct copy_list list = {.spec = spec};
    struct adding a = {.list = &list, .err = err};
    bool slash = spec->dest[strlen(spec->dest) - 1] == '/';
    bool many = strv_length(spec->sources) + spec->n_texts > 1;
    int r = resolve(spec->into, spec->dest, a.dest, err);

    if (r < 0)
        return r;
    if (many && !slash)
        return error_set(err, EINVAL,
                         "with more than one source the destination must end with a slash");
    a.dest_is_dir = slash || is_dir(tree_lookup(spec->into->tree, a.dest)) || a.dest[0] == '\0';
    for (size_t i = 0; r == 0 && spec->sources && spec->sources[i]; i++) {
        /* A pattern may stand for several. */
        r = add_named(&a, spec->sources[i]);
        if (r == 0 && a.found > 1 && !a.dest_is_dir)
            r = error_set(err, EINVAL,
                          "'%.80s' is several files: the destination must end with a "
                          "slash",
                          spec->sources[i]);
    }
    for (size_t i = 0; r == 0 && i < spec->n_texts; i++)
        r = add_text(&a, &spec->texts[i]);
    if (r < 0)
        return r;
    *ret = list;
    list = (struct copy_list){0};
    return 0;
}

int copy_plan_dir(const struct copy_spec *spec, struct copy_list *ret, struct error *err)
{
    _cleanup_copy_list_ struct copy_list list = {.spec = spec};
    char path[LAYER_PATH_MAX];
    int r = resolve(spec->into, spec->dest, path, err);

    if (r == 0)
        r = add_parents(&list, path, err);
    if (r == 0 && path[0])
        r = append(&list, path, NULL, err);
    if (r < 0)
        return r;
    *ret = list;
    list = (struct copy_list){0};
    return 0;
}

/* ---- accounts ---- */

int copy_read_file(struct stack *stack, const char *path, size_t max, char **ret, size_t *ret_size)
{
    struct tree_node *node = follow(stack, tree_lookup(stack->tree, path));
    size_t done = 0, size;
    char *data;

    if (!node || !S_ISREG(node->inode->mode))
        return -ENOENT;
    if (node->inode->size > max)
        return -E2BIG;
    size = (size_t)node->inode->size;
    data = malloc(size + 1);
    if (!data)
        return -ENOMEM;
    while (done < size) {
        ssize_t n = pread(stack->layers[node->inode->layer - 1].pack_fd, data + done, size - done,
                          (off_t)(node->inode->offset + done));

        if (n <= 0) {
            free(data);
            return -EIO;
        }
        done += (size_t)n;
    }
    data[size] = '\0';
    *ret = data;
    *ret_size = size;
    return 0;
}

/* Numbers from the line of a name in passwd or group: fields 2 and 3. */
static int find_account(struct stack *image, const char *file, const char *name, uint32_t *ret_id,
                        uint32_t *ret_second)
{
    _cleanup_free_ char *text = NULL;
    size_t size, name_size = strlen(name);
    int r = copy_read_file(image, file, ACCOUNTS_MAX, &text, &size);

    if (r < 0)
        return r;
    for (char *line = text; *line;) {
        size_t n = strcspn(line, "\n");
        bool last = line[n] == '\0';
        unsigned id, second;

        line[n] = '\0';
        if (strncmp(line, name, name_size) == 0 && line[name_size] == ':') {
            const char *rest = strchr(line + name_size + 1, ':');

            second = 0;
            if (rest && sscanf(rest + 1, "%u:%u", &id, &second) >= 1) {
                *ret_id = id;
                if (ret_second)
                    *ret_second = second;
                return 0;
            }
        }
        line += last ? n : n + 1;
    }
    return -ENOENT;
}

int copy_owner(struct stack *image, const char *text, uint32_t *ret_uid, uint32_t *ret_gid,
               struct error *err)
{
    const char *colon = strchr(text, ':');
    _cleanup_free_ char *user = strndup(text, colon ? (size_t)(colon - text) : strlen(text));
    uint64_t number;
    uint32_t gid;

    if (!user)
        return too_much(err);
    if (parse_u64(user, 0, UINT32_MAX - 1, &number) == 0) {
        *ret_uid = (uint32_t)number;
        gid = *ret_uid;
    } else if (find_account(image, "etc/passwd", user, ret_uid, &gid) < 0) {
        return error_set_code(err, ERR_USER_NOT_FOUND, "the image has no user '%.64s'", user);
    }
    *ret_gid = gid;
    if (!colon)
        return 0;
    if (parse_u64(colon + 1, 0, UINT32_MAX - 1, &number) == 0)
        *ret_gid = (uint32_t)number;
    else if (find_account(image, "etc/group", colon + 1, ret_gid, NULL) < 0)
        return error_set_code(err, ERR_USER_NOT_FOUND, "the image has no group '%.64s'", colon + 1);
    return 0;
}
