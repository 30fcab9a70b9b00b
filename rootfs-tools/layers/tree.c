#include "layers/tree.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/macros.h"

#define ARENA_BYTES ((size_t)1024 * 1024)
#define HOPS_MAX 40 /* symbolic links on one way, as in Linux */

struct arena {
    struct arena *next; /* owned */
    size_t used;
    uint8_t data[] __attribute__((aligned(16)));
};

struct tree {
    struct arena *arena; /* owned */
    struct tree_node *root;
    struct tree_node **buckets; /* owned */
    size_t n_buckets, n_nodes;
    uint16_t layer; /* being applied */
};

/* ---- memory and names ---- */

static void *allocate(struct tree *t, size_t size)
{
    void *p;

    size = (size + 15) & ~(size_t)15;
    if (!t->arena || ARENA_BYTES - t->arena->used < size) {
        struct arena *arena = malloc(sizeof(*arena) + ARENA_BYTES);

        if (!arena)
            return NULL;
        arena->next = t->arena;
        arena->used = 0;
        t->arena = arena;
    }
    p = t->arena->data + t->arena->used;
    t->arena->used += size;
    memset(p, 0, size);
    return p;
}

static uint32_t hash_name(const struct tree_node *parent, const char *name, size_t size)
{
    uint64_t h = (uint64_t)(uintptr_t)parent * UINT64_C(0x9e3779b97f4a7c15);

    for (size_t i = 0; i < size; i++)
        h = (h ^ (uint8_t)name[i]) * UINT64_C(0x100000001b3);
    return (uint32_t)(h >> 32) ^ (uint32_t)h;
}

static struct tree_node *find(const struct tree *t, const struct tree_node *parent,
                              const char *name, size_t size)
{
    uint32_t hash = hash_name(parent, name, size);

    for (struct tree_node *n = t->buckets[hash % t->n_buckets]; n; n = n->bucket)
        if (n->hash == hash && n->parent == parent && n->name_size == size &&
            memcmp(n->name, name, size) == 0)
            return n;
    return NULL;
}

static int grow(struct tree *t)
{
    size_t n = t->n_buckets * 2;
    struct tree_node **buckets;

    if (t->n_nodes < t->n_buckets)
        return 0;
    buckets = calloc(n, sizeof(buckets[0]));
    if (!buckets)
        return -ENOMEM;
    for (size_t i = 0; i < t->n_buckets; i++) {
        struct tree_node *node = t->buckets[i];

        while (node) {
            struct tree_node *next = node->bucket;

            node->bucket = buckets[node->hash % n];
            buckets[node->hash % n] = node;
            node = next;
        }
    }
    free(t->buckets);
    t->buckets = buckets;
    t->n_buckets = n;
    return 0;
}

static struct tree_node *add_node(struct tree *t, struct tree_node *parent, const char *name,
                                  size_t size)
{
    struct tree_node *node = grow(t) < 0 ? NULL : allocate(t, sizeof(*node));

    if (!node)
        return NULL;
    node->name = name;
    node->name_size = (uint8_t)size;
    node->layer = t->layer;
    node->parent = parent;
    node->depth = (uint16_t)(parent->depth + 1);
    node->hash = hash_name(parent, name, size);
    node->bucket = t->buckets[node->hash % t->n_buckets];
    t->buckets[node->hash % t->n_buckets] = node;
    node->next = parent->children;
    if (node->next)
        node->next->before = node;
    parent->children = node;
    parent->n_children++;
    t->n_nodes++;
    return node;
}

static void remove_node(struct tree *t, struct tree_node *node)
{
    struct tree_node **at = &t->buckets[node->hash % t->n_buckets];

    while (node->children)
        remove_node(t, node->children);
    while (*at != node)
        at = &(*at)->bucket;
    *at = node->bucket;
    if (node->before)
        node->before->next = node->next;
    else
        node->parent->children = node->next;
    if (node->next)
        node->next->before = node->before;
    node->parent->n_children--;
    node->inode->nlink--;
    t->n_nodes--;
}

static struct tree_inode *add_inode(struct tree *t, uint16_t mode)
{
    struct tree_inode *inode = allocate(t, sizeof(*inode));

    if (inode) {
        inode->mode = mode;
        inode->layer = t->layer;
        inode->nlink = 1;
    }
    return inode;
}

int tree_new(struct tree **ret)
{
    struct tree *t = calloc(1, sizeof(*t));

    if (!t)
        return -ENOMEM;
    t->n_buckets = 1024;
    t->buckets = calloc(t->n_buckets, sizeof(t->buckets[0]));
    t->root = t->buckets ? allocate(t, sizeof(*t->root)) : NULL;
    if (t->root)
        t->root->inode = add_inode(t, S_IFDIR | 0755);
    if (!t->root || !t->root->inode) {
        (void)tree_free(t);
        return -ENOMEM;
    }
    *ret = t;
    return 0;
}

struct tree *tree_free(struct tree *t)
{
    if (!t)
        return NULL;
    while (t->arena) {
        struct arena *next = t->arena->next;

        free(t->arena);
        t->arena = next;
    }
    free(t->buckets);
    free(t);
    return NULL;
}

struct tree_node *tree_root(const struct tree *t)
{
    return t->root;
}

size_t tree_count(const struct tree *t)
{
    return t->n_nodes + 1;
}

/* ---- the way to a name ---- */

/*
 * The directory that a path leads to from `dir`, following symbolic links as a program inside the
 * image would: `..` of the root is the root. With `create`, what is missing is made.
 */
static int walk(struct tree *t, struct tree_node *dir, const char *path, size_t size, bool create,
                int *hops, struct tree_node **ret)
{
    while (size > 0) {
        const char *slash = memchr(path, '/', size);
        size_t n = slash ? (size_t)(slash - path) : size;
        struct tree_node *child;
        int r;

        if (n == 2 && memcmp(path, "..", 2) == 0) {
            dir = dir->parent ? dir->parent : dir;
        } else if (n > 0 && !(n == 1 && *path == '.')) {
            if (n > LAYER_NAME_MAX)
                return -ENAMETOOLONG;
            child = find(t, dir, path, n);
            if (!child && !create)
                return -ENOENT;
            if (!child) {
                if (dir->depth >= TREE_DEPTH_MAX)
                    return -ENAMETOOLONG;
                child = add_node(t, dir, path, n);
                if (child)
                    child->inode = add_inode(t, S_IFDIR | 0755);
                if (!child || !child->inode)
                    return -ENOMEM;
            }
            if (S_ISLNK(child->inode->mode)) {
                const char *target = child->inode->target;

                if (++*hops > HOPS_MAX)
                    return -ELOOP;
                r = walk(t, *target == '/' ? t->root : dir, target, strlen(target), create, hops,
                         &dir);
                if (r < 0)
                    return r;
            } else if (S_ISDIR(child->inode->mode)) {
                dir = child;
            } else {
                return -ENOTDIR;
            }
        }
        path += n + (slash ? 1 : 0);
        size -= n + (slash ? 1 : 0);
    }
    *ret = dir;
    return 0;
}

/* The directory that holds the last component of a clean path, and that component. */
static int walk_parent(struct tree *t, const char *path, bool create, struct tree_node **ret,
                       const char **ret_name)
{
    const char *slash = strrchr(path, '/');
    int hops = 0;

    *ret_name = slash ? slash + 1 : path;
    return walk(t, t->root, path, slash ? (size_t)(slash - path) : 0, create, &hops, ret);
}

struct tree_node *tree_lookup(struct tree *t, const char *path)
{
    const char *name;
    struct tree_node *node = NULL, *dir;
    int hops = 0;

    if (walk(t, t->root, path, strlen(path), false, &hops, &node) == 0)
        return node;
    if (walk_parent(t, path, false, &dir, &name) < 0)
        return NULL;
    return find(t, dir, name, strlen(name));
}

/* ---- entries ---- */

static int refuse(const char *layer, const char *path, const char *why, struct error *err)
{
    return error_set_code(err, ERR_IMAGE_INVALID, "%s: entry '%.200s' %s", layer, path, why);
}

static int walk_failed(int r, const char *layer, const char *path, struct error *err)
{
    if (r == -ENOMEM)
        return error_set(err, ENOMEM, "%s: out of memory", layer);
    return refuse(layer, path,
                  r == -ENOTDIR        ? "goes through what is no directory"
                  : r == -ELOOP        ? "goes through a loop of symbolic links"
                  : r == -ENAMETOOLONG ? "is nested too deep"
                                       : "goes through what is not there",
                  err);
}

/* Removes what lower layers have at and below a node. True when something of this layer stays. */
static bool prune(struct tree *t, struct tree_node *node)
{
    struct tree_node *child = node->children;
    bool stays = node->layer == t->layer;

    while (child) {
        struct tree_node *next = child->next;

        stays |= prune(t, child);
        child = next;
    }
    if (!stays)
        remove_node(t, node);
    return stays;
}

static int apply_whiteout(struct tree *t, const struct layer_entry *e)
{
    struct tree_node *dir, *node;
    const char *name;
    int r = walk_parent(t, e->path, false, &dir, &name);

    if (r < 0) /* nothing there to be removed */
        return r == -ENOMEM ? r : 0;
    node = e->path[0] ? find(t, dir, name, strlen(name)) : t->root;
    if (!node)
        return 0;
    if (e->type == LAYER_WHITEOUT) {
        (void)prune(t, node);
        return 0;
    }
    for (struct tree_node *child = node->children, *next; child; child = next) {
        next = child->next;
        (void)prune(t, child);
    }
    return 0;
}

static uint16_t mode_of(const struct layer_entry *e)
{
    static const uint16_t types[] = {
        [LAYER_FILE] = S_IFREG, [LAYER_DIR] = S_IFDIR,   [LAYER_SYMLINK] = S_IFLNK,
        [LAYER_CHAR] = S_IFCHR, [LAYER_BLOCK] = S_IFBLK, [LAYER_FIFO] = S_IFIFO,
    };

    return (uint16_t)(types[e->type] | (e->type == LAYER_SYMLINK ? 0777 : e->mode & 07777));
}

static void fill_inode(const struct tree *t, struct tree_inode *inode, const struct layer_entry *e)
{
    inode->mode = mode_of(e);
    inode->layer = t->layer;
    inode->uid = e->uid;
    inode->gid = e->gid;
    inode->rdev_major = e->major;
    inode->rdev_minor = e->minor;
    inode->mtime = e->mtime;
    inode->mtime_nsec = e->mtime_nsec;
    inode->size = e->type == LAYER_SYMLINK ? strlen(e->target) : e->size;
    inode->offset = e->offset;
    inode->target = e->target;
    inode->xattrs = e->xattrs;
    inode->xattrs_size = (uint32_t)e->xattrs_size;
}

/* The inode that a hard link names: not a directory, and there. */
static int find_target(struct tree *t, const struct layer_entry *e, struct tree_inode **ret)
{
    struct tree_node *dir, *node;
    const char *name;
    int r = walk_parent(t, e->target, false, &dir, &name);

    if (r < 0)
        return r;
    node = find(t, dir, name, strlen(name));
    if (!node)
        return -ENOENT;
    if (S_ISDIR(node->inode->mode))
        return -EISDIR;
    *ret = node->inode;
    return 0;
}

static int apply_entry(struct tree *t, const struct layer_entry *e, const char *layer,
                       struct error *err)
{
    struct tree_inode *inode = NULL;
    struct tree_node *dir, *node;
    const char *name;
    int r;

    if (e->type < LAYER_FILE || e->type > LAYER_OPAQUE)
        return error_set(err, EIO, "%s: its index is damaged", layer);
    if (e->type == LAYER_WHITEOUT || e->type == LAYER_OPAQUE)
        return apply_whiteout(t, e) < 0 ? error_set(err, ENOMEM, "%s: out of memory", layer) : 0;
    if (e->path[0] == '\0') {
        fill_inode(t, t->root->inode, e);
        t->root->layer = t->layer;
        return 0;
    }
    r = walk_parent(t, e->path, true, &dir, &name);
    if (r < 0)
        return walk_failed(r, layer, e->path, err);
    if (dir->depth >= TREE_DEPTH_MAX)
        return walk_failed(-ENAMETOOLONG, layer, e->path, err);
    if (e->type == LAYER_HARDLINK && find_target(t, e, &inode) < 0)
        return refuse(layer, e->path, "is a hard link to what is not there or is a directory", err);
    node = find(t, dir, name, strlen(name));
    if (node && node->inode == inode)
        return 0;
    if (inode)
        inode->nlink++; /* before what is replaced lets go of it */
    if (node && S_ISDIR(node->inode->mode) && e->type == LAYER_DIR) {
        fill_inode(t, node->inode, e);
        node->layer = t->layer;
        return 0;
    }
    if (node)
        remove_node(t, node);
    node = add_node(t, dir, name, strlen(name));
    if (node && !inode) {
        inode = add_inode(t, 0);
        if (inode)
            fill_inode(t, inode, e);
    }
    if (!node || !inode)
        return error_set(err, ENOMEM, "%s: out of memory", layer);
    node->inode = inode;
    return 0;
}

int tree_apply(struct tree *t, const struct layer *layer, const char *name, struct error *err)
{
    struct layer_entry entry;
    size_t position = 0, n = 0;

    t->layer++;
    while (layer_next(layer, &position, &entry)) {
        int r = apply_entry(t, &entry, name, err);

        if (r < 0)
            return r;
        n++;
    }
    if (n != layer->n_entries)
        return error_set(err, EIO, "%s: its index is damaged", name);
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    const struct tree_node *x = *(struct tree_node *const *)a, *y = *(struct tree_node *const *)b;
    int r = memcmp(x->name, y->name, MIN(x->name_size, y->name_size));

    return r ? r : (int)x->name_size - (int)y->name_size;
}

int tree_sort(struct tree_node *dir)
{
    _cleanup_free_ struct tree_node **list = NULL;
    size_t n = 0;

    if (dir->n_children == 0)
        return 0;
    list = calloc(dir->n_children, sizeof(struct tree_node *));
    if (!list)
        return -ENOMEM;
    for (struct tree_node *c = dir->children; c; c = c->next)
        list[n++] = c;
    qsort(list, n, sizeof(struct tree_node *), compare_names);
    for (size_t i = 0; i < n; i++) {
        list[i]->before = i > 0 ? list[i - 1] : NULL;
        list[i]->next = i + 1 < n ? list[i + 1] : NULL;
    }
    dir->children = list[0];
    return 0;
}
