#include "core/tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/strv.h"

#define PIECE_BYTES (256u * 1024u)

void tree_done(struct tree *tree)
{
    for (size_t i = 0; i < tree->n; i++) {
        free(tree->entries[i].path);
        free(tree->entries[i].target);
    }
    free(tree->entries);
    free(tree->root);
    *tree = (struct tree){0};
}

static char *full_path(const struct tree *tree, const char *path)
{
    return path[0] ? string_printf("%s/%s", tree->root, path) : string_printf("%s", tree->root);
}

static int out_of_memory(struct error *err)
{
    return error_set(err, ENOMEM, "out of memory");
}

static int read_target(const char *full, char **ret, struct error *err)
{
    char target[PATH_MAX];
    ssize_t n = readlink(full, target, sizeof(target) - 1);

    if (n < 0)
        return error_set(err, errno, "'%s': %s", full, errno_text(errno));
    target[n] = '\0';
    return string_set(ret, target) < 0 ? out_of_memory(err) : 0;
}

/* Takes `path`, even on failure. */
static int add_entry(struct tree *tree, char *path_consume, struct error *err)
{
    struct tree_entry entry = {.path = path_consume}, *more;
    _cleanup_free_ char *full = path_consume ? full_path(tree, path_consume) : NULL;
    struct stat st;
    int r = 0;

    if (!full)
        r = out_of_memory(err);
    else if (tree->n >= TREE_ENTRIES_MAX)
        r = error_set(err, E2BIG, "'%s': more than %u files", tree->root, TREE_ENTRIES_MAX);
    else if (lstat(full, &st) < 0)
        r = error_set(err, errno, "'%s': %s", full, errno_text(errno));
    else if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode) && !S_ISLNK(st.st_mode))
        r = error_set(err, EINVAL, "'%s': neither file, directory nor link", full);
    if (r >= 0 && S_ISLNK(st.st_mode))
        r = read_target(full, &entry.target, err);
    if (r >= 0 && (tree->n & (tree->n - 1)) == 0) { /* full at every power of two */
        more = realloc(tree->entries, MAX(tree->n * 2, (size_t)1) * sizeof(*more));
        if (more)
            tree->entries = more;
        else
            r = out_of_memory(err);
    }
    if (r < 0) {
        free(entry.path);
        free(entry.target);
        return r;
    }
    entry.mode = st.st_mode;
    entry.size_bytes = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
    tree->entries[tree->n++] = entry;
    return 0;
}

static int is_not_dot(const struct dirent *entry)
{
    return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

/* Sorted by bytes: the same everywhere. */
static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int add_children(struct tree *tree, const char *path, struct error *err)
{
    _cleanup_free_ char *full = full_path(tree, path);
    struct dirent **names = NULL;
    int n, r = 0;

    if (!full)
        return out_of_memory(err);
    n = scandir(full, &names, is_not_dot, by_name);
    if (n < 0)
        return error_set(err, errno, "'%s': %s", full, errno_text(errno));
    for (int i = 0; i < n; i++) {
        if (r >= 0)
            r = add_entry(tree,
                          path[0] ? string_printf("%s/%s", path, names[i]->d_name)
                                  : string_printf("%s", names[i]->d_name),
                          err);
        free(names[i]);
    }
    free(names);
    return r;
}

int tree_scan(const char *root, struct tree *ret, struct error *err)
{
    struct tree tree = {0};
    int r;

    r = string_set(&tree.root, root) < 0 ? out_of_memory(err) : 0;
    if (r >= 0)
        r = add_entry(&tree, string_printf("%s", ""), err);
    for (size_t i = 0; r >= 0 && i < tree.n; i++) { /* grows while it is walked */
        if (S_ISDIR(tree.entries[i].mode))
            r = add_children(&tree, tree.entries[i].path, err);
    }
    if (r < 0) {
        tree_done(&tree);
        return r;
    }
    *ret = tree;
    return 0;
}

int tree_open(const struct tree *tree, const struct tree_entry *entry, struct error *err)
{
    _cleanup_free_ char *full = full_path(tree, entry->path);
    int fd;

    if (!full)
        return out_of_memory(err);
    fd = open(full, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    return fd < 0 ? error_set(err, errno, "'%s': %s", full, errno_text(errno)) : fd;
}

static void add_text(crypto_generichash_blake2b_state *state, const char *text)
{
    (void)crypto_generichash_blake2b_update(state, (const unsigned char *)text, strlen(text) + 1);
}

static int digest_file(const struct tree *tree, const struct tree_entry *entry,
                       crypto_generichash_blake2b_state *state, struct error *err)
{
    _cleanup_close_ int fd = tree_open(tree, entry, err);
    _cleanup_free_ unsigned char *piece = malloc(PIECE_BYTES);
    ssize_t n;

    if (fd < 0)
        return fd;
    if (!piece)
        return out_of_memory(err);
    while ((n = fd_read_full(fd, piece, PIECE_BYTES)) > 0)
        (void)crypto_generichash_blake2b_update(state, piece, (size_t)n);
    if (n < 0)
        return error_set(err, (int)-n, "read '%s/%s': %s", tree->root, entry->path,
                         errno_text((int)-n));
    return 0;
}

int tree_digest(const struct tree *tree, struct crypto_generichash_blake2b_state *state,
                struct error *err)
{
    char head[64];
    int r = 0;

    for (size_t i = 0; r >= 0 && i < tree->n; i++) {
        const struct tree_entry *entry = &tree->entries[i];

        (void)snprintf(head, sizeof(head), "%o %llu", (unsigned)entry->mode,
                       (unsigned long long)entry->size_bytes);
        add_text(state, head);
        add_text(state, entry->path);
        add_text(state, entry->target ? entry->target : "");
        if (S_ISREG(entry->mode))
            r = digest_file(tree, entry, state, err);
    }
    return r;
}
