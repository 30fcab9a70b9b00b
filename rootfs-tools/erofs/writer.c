#include "erofs/writer.h"

#include <endian.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "erofs/format.h"
#include "erofs/packs.h"
#include "erofs/sink.h"

/*
 * Theory of operation. The image is: block 0 with the superblock, the inodes with the tails of
 * their files, the blocks of directories, the blocks of files. A first pass over the tree, breadth
 * first and sorted, gives every inode its place; a second one writes everything in order of place,
 * so the file is written from front to end.
 *
 * A file in a pack that is a device has no bytes here: behind its inode is one chunk index, for a
 * chunk as large as the whole file, that says which device and block. Which packs become devices is
 * decided by how many bytes of each are seen, so it too depends on nothing but the tree.
 */

#define META_BLOCK 1u
#define PACK_MIN_BYTES (UINT64_C(128) * 1024) /* less is rather copied than given a device */
#define ROOT_PLACE 64u /* nid 2; nid 0 would be an inode number that readdir() hides */
/* A longer tail gets a block of its own: two such would not share one anyway. */
#define TAIL_MAX 2048u
static_assert(LAYER_SMALL_MAX <= TAIL_MAX, "small files are kept beside their inodes");

struct writer {
    const struct layer *layers; /* weak */
    size_t n_layers;
    const char *const *packs; /* weak; digests of the layers; NULL: no devices */
    uint16_t *devices;        /* owned; of each layer, from 1; 0: copied */
    struct erofs_slot slots[IMAGE_PACKS_MAX];
    size_t n_slots;
    struct tree_inode **inodes; /* owned, in order of place */
    size_t n_inodes;
    struct tree_node **dirs; /* owned, breadth first */
    size_t n_dirs;
    uint64_t meta_size; /* bytes from the start of META_BLOCK */
    uint64_t n_blocks;
    struct sink sink;
};

static void writer_done(struct writer *w)
{
    free(w->devices);
    free(w->inodes);
    free(w->dirs);
    sink_done(&w->sink);
}

/* ---- first pass: places ---- */

/* Dirents of one directory in order, `.` and `..` among them. */
struct dirents {
    const struct tree_node *dir, *next;
    bool dot, dots; /* given already */
};

static bool dirents_next(struct dirents *d, const char **name, size_t *size,
                         const struct tree_inode **inode)
{
    const struct tree_node *parent = d->dir->parent ? d->dir->parent : d->dir;
    const struct tree_node *n = d->next;

    /* Both sort before all but names that begin with a smaller byte, or with a dot and one. */
    if (!d->dot && (!n || (uint8_t)n->name[0] > '.' || n->name[0] == '.')) {
        d->dot = true;
        *name = ".";
        *size = 1;
        *inode = d->dir->inode;
        return true;
    }
    if (d->dot && !d->dots &&
        (!n || (uint8_t)n->name[0] > '.' ||
         (n->name[0] == '.' && n->name_size > 1 && (uint8_t)n->name[1] >= '.'))) {
        d->dots = true;
        *name = "..";
        *size = 2;
        *inode = parent->inode;
        return true;
    }
    if (!n)
        return false;
    *name = n->name;
    *size = n->name_size;
    *inode = n->inode;
    d->next = n->next;
    return true;
}

static uint64_t directory_size(const struct tree_node *dir)
{
    struct dirents d = {.dir = dir, .next = dir->children};
    const struct tree_inode *inode;
    uint64_t blocks = 0, used = 0;
    const char *name;
    size_t size;

    while (dirents_next(&d, &name, &size, &inode)) {
        if (used + EROFS_DIRENT_SIZE + size > EROFS_BLOCK) {
            blocks++;
            used = 0;
        }
        used += EROFS_DIRENT_SIZE + size;
    }
    return blocks * EROFS_BLOCK + used;
}

static uint64_t head_size(const struct tree_inode *inode)
{
    return EROFS_INODE_SIZE + (inode->xattrs_size ? EROFS_XATTR_HEADER + inode->xattrs_size : 0);
}

/* Number of the device that has the file's bytes, 0 when they are in the image. */
static uint16_t device_of(const struct writer *w, const struct tree_inode *inode)
{
    if (!w->devices || !S_ISREG(inode->mode) || inode->size <= LAYER_SMALL_MAX ||
        inode->layer == 0 || inode->layer > w->n_layers)
        return 0;
    return w->devices[inode->layer - 1];
}

/* Bytes that live behind the inode. */
static uint64_t tail_size(const struct writer *w, const struct tree_inode *inode)
{
    uint64_t tail = inode->size % EROFS_BLOCK;

    if (device_of(w, inode))
        return 0;
    if (!S_ISREG(inode->mode) && !S_ISDIR(inode->mode) && !S_ISLNK(inode->mode))
        return 0;
    if (S_ISLNK(inode->mode) && inode->size < EROFS_BLOCK - EROFS_INODE_SIZE && !inode->xattrs_size)
        return tail;
    return tail <= TAIL_MAX && head_size(inode) + tail <= EROFS_BLOCK ? tail : 0;
}

static uint64_t block_count(const struct writer *w, const struct tree_inode *inode)
{
    if (!S_ISREG(inode->mode) && !S_ISDIR(inode->mode) && !S_ISLNK(inode->mode))
        return 0;
    if (device_of(w, inode))
        return 0;
    return tail_size(w, inode) ? inode->size / EROFS_BLOCK
                               : (inode->size + EROFS_BLOCK - 1) / EROFS_BLOCK;
}

static uint64_t chunk_place(const struct tree_inode *inode)
{
    const uint64_t unit = sizeof(struct erofs_chunk);

    return (inode->place + head_size(inode) + unit - 1) & ~(unit - 1);
}

static void place_inode(struct writer *w, struct tree_inode *inode)
{
    uint64_t at = (w->meta_size + 31) & ~UINT64_C(31);
    uint64_t tail = tail_size(w, inode);
    uint64_t needed = tail ? head_size(inode) + tail : EROFS_INODE_SIZE;

    if (at % EROFS_BLOCK + needed > EROFS_BLOCK)
        at = (at + EROFS_BLOCK - 1) & ~(uint64_t)(EROFS_BLOCK - 1);
    inode->place = at;
    w->inodes[w->n_inodes++] = inode;
    w->meta_size = at + head_size(inode) + tail;
    if (device_of(w, inode))
        w->meta_size = chunk_place(inode) + sizeof(struct erofs_chunk);
}

static int place_directory(struct writer *w, struct tree_node *dir)
{
    uint32_t subdirs = 0;

    if (tree_sort(dir) < 0)
        return -ENOMEM;
    for (const struct tree_node *c = dir->children; c; c = c->next)
        subdirs += S_ISDIR(c->inode->mode) ? 1 : 0;
    dir->inode->nlink = 2 + subdirs;
    dir->inode->size = directory_size(dir);
    place_inode(w, dir->inode);
    w->dirs[w->n_dirs++] = dir;
    return 0;
}

static int place_all(struct writer *w, struct tree *tree)
{
    uint64_t block;
    int r;

    w->meta_size = ROOT_PLACE;
    r = place_directory(w, tree_root(tree));
    for (size_t i = 0; r == 0 && i < w->n_dirs; i++)
        for (struct tree_node *c = w->dirs[i]->children; r == 0 && c; c = c->next) {
            if (S_ISDIR(c->inode->mode))
                r = place_directory(w, c);
            else if (c->inode->place == 0)
                place_inode(w, c->inode);
        }
    if (r < 0)
        return r;
    block = META_BLOCK + (w->meta_size + EROFS_BLOCK - 1) / EROFS_BLOCK;
    for (int files = 0; files < 2; files++)
        for (size_t i = 0; i < w->n_inodes; i++) {
            struct tree_inode *inode = w->inodes[i];

            if (S_ISDIR(inode->mode) == (files != 0))
                continue;
            inode->block = (uint32_t)block;
            block += block_count(w, inode);
        }
    w->n_blocks = block;
    return block > UINT32_MAX ? -EFBIG : 0;
}

/* ---- devices ---- */

/*
 * Bytes of each layer's files that are seen; a file with several names counts for each. A file that
 * is not where a guest could read it is a damaged index.
 */
static int count_bytes(const struct writer *w, const struct tree_node *dir, uint64_t *bytes)
{
    const struct tree_node *n = dir->children;

    while (n) {
        const struct tree_inode *inode = n->inode;

        if (S_ISREG(inode->mode) && inode->size > LAYER_SMALL_MAX && inode->layer > 0 &&
            inode->layer <= w->n_layers) {
            const struct layer *layer = &w->layers[inode->layer - 1];

            if (!layer->in_blocks || inode->offset % EROFS_BLOCK != 0 ||
                inode->offset > layer->pack_bytes ||
                inode->size > layer->pack_bytes - inode->offset)
                return -EIO;
            bytes[inode->layer - 1] += inode->size;
        }
        if (n->children) {
            n = n->children;
            continue;
        }
        while (n != dir && !n->next)
            n = n->parent;
        n = n == dir ? NULL : n->next;
    }
    return 0;
}

/* The layer with the most bytes that is no device yet, and worth one; n_layers: there is none. */
static size_t largest_layer(const struct writer *w, const uint64_t *bytes)
{
    size_t found = w->n_layers;

    for (size_t i = 0; i < w->n_layers; i++)
        if (!w->devices[i] && bytes[i] >= PACK_MIN_BYTES &&
            (found == w->n_layers || bytes[i] > bytes[found]))
            found = i;
    return found;
}

static int choose_devices(struct writer *w, struct tree *tree)
{
    _cleanup_free_ uint64_t *bytes = calloc(w->n_layers + 1, sizeof(*bytes));
    int r;

    w->devices = calloc(w->n_layers + 1, sizeof(*w->devices));
    if (!bytes || !w->devices)
        return -ENOMEM;
    r = count_bytes(w, tree_root(tree), bytes);
    for (size_t n = 0; r == 0 && n < IMAGE_PACKS_MAX; n++) {
        size_t layer = largest_layer(w, bytes);

        if (layer < w->n_layers)
            w->devices[layer] = 1;
    }
    /* In the order of the layers, so that the first is the one that most images share. */
    for (size_t i = 0; r == 0 && i < w->n_layers; i++) {
        struct erofs_slot *slot = &w->slots[w->n_slots];

        if (!w->devices[i])
            continue;
        memcpy(slot->tag, w->packs[i], sizeof(slot->tag));
        slot->blocks = htole32((uint32_t)(w->layers[i].pack_bytes / EROFS_BLOCK));
        w->devices[i] = (uint16_t)++w->n_slots;
    }
    return r;
}

/* ---- second pass: bytes ---- */

static uint32_t device_number(const struct tree_inode *inode)
{
    uint32_t minor = inode->rdev_minor & 0xfffff, major = inode->rdev_major & 0xfff;

    return (minor & 0xff) | major << 8 | (minor & ~0xffu) << 12;
}

/* The least chunk that holds the whole file. */
static uint32_t chunk_format(const struct tree_inode *inode)
{
    uint32_t bits = 0;

    while (((uint64_t)EROFS_BLOCK << bits) < inode->size)
        bits++;
    return EROFS_CHUNK_INDEXES | bits;
}

static int put_chunk(struct writer *w, const struct tree_inode *inode)
{
    const struct erofs_chunk chunk = {
        .device_id = htole16(device_of(w, inode)),
        .blkaddr = htole32((uint32_t)(inode->offset / EROFS_BLOCK)),
    };
    int r = sink_at(&w->sink, (uint64_t)META_BLOCK * EROFS_BLOCK + chunk_place(inode));

    return r < 0 ? r : sink_put(&w->sink, &chunk, sizeof(chunk));
}

static int put_head(struct writer *w, const struct tree_inode *inode, uint32_t number)
{
    int layout = device_of(w, inode)   ? EROFS_CHUNK_BASED
                 : tail_size(w, inode) ? EROFS_FLAT_INLINE
                                       : EROFS_FLAT_PLAIN;
    struct erofs_inode_extended head = {
        .i_format = htole16((uint16_t)(1 | layout << 1)),
        .i_mode = htole16(inode->mode),
        .i_size = htole64(inode->size),
        .i_ino = htole32(number),
        .i_uid = htole32(inode->uid),
        .i_gid = htole32(inode->gid),
        .i_mtime = htole64((uint64_t)inode->mtime),
        .i_mtime_nsec = htole32(inode->mtime_nsec),
        .i_nlink = htole32(inode->nlink),
    };
    static const uint8_t xattr_header[EROFS_XATTR_HEADER] = {0};
    int r;

    if (S_ISCHR(inode->mode) || S_ISBLK(inode->mode))
        head.i_u = htole32(device_number(inode));
    else
        head.i_u = htole32(layout == EROFS_CHUNK_BASED ? chunk_format(inode) : inode->block);
    if (inode->xattrs_size)
        head.i_xattr_icount = htole16((uint16_t)(1 + inode->xattrs_size / 4));
    r = sink_at(&w->sink, (uint64_t)META_BLOCK * EROFS_BLOCK + inode->place);
    if (r == 0)
        r = sink_put(&w->sink, &head, sizeof(head));
    if (r == 0 && inode->xattrs_size)
        r = sink_put(&w->sink, xattr_header, sizeof(xattr_header));
    if (r == 0 && inode->xattrs_size)
        r = sink_put(&w->sink, inode->xattrs, inode->xattrs_size);
    if (r == 0 && layout == EROFS_CHUNK_BASED)
        r = put_chunk(w, inode);
    return r;
}

static int put_content(struct writer *w, const struct tree_inode *inode, uint64_t from,
                       uint64_t size)
{
    if (size == 0)
        return 0;
    if (S_ISLNK(inode->mode))
        return sink_put(&w->sink, inode->target + from, size);
    if (inode->layer == 0 || inode->layer > w->n_layers)
        return -EIO;
    return sink_copy(&w->sink, w->layers[inode->layer - 1].pack_fd, inode->offset + from, size);
}

static uint8_t dirent_type(uint16_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG:
        return 1;
    case S_IFDIR:
        return 2;
    case S_IFCHR:
        return 3;
    case S_IFBLK:
        return 4;
    case S_IFIFO:
        return 5;
    case S_IFLNK:
        return 7;
    default:
        return 0;
    }
}

/* One block of dirents: how many fit, then the array, then the names. Returns its bytes. */
static size_t fill_block(struct dirents *d, uint8_t block[static EROFS_BLOCK])
{
    struct dirents probe = *d;
    const struct tree_inode *inode;
    size_t used = 0, n = 0, size, at;
    const char *name;

    while (dirents_next(&probe, &name, &size, &inode) &&
           used + EROFS_DIRENT_SIZE + size <= EROFS_BLOCK) {
        used += EROFS_DIRENT_SIZE + size;
        n++;
    }
    memset(block, 0, EROFS_BLOCK);
    at = n * EROFS_DIRENT_SIZE;
    for (size_t i = 0; i < n; i++) {
        struct erofs_dirent entry;

        (void)dirents_next(d, &name, &size, &inode);
        entry = (struct erofs_dirent){.nid = htole64(inode->place / 32),
                                      .nameoff = htole16((uint16_t)at),
                                      .file_type = dirent_type(inode->mode)};
        memcpy(block + i * EROFS_DIRENT_SIZE, &entry, sizeof(entry));
        memcpy(block + at, name, size);
        at += size;
    }
    return used;
}

/* Block `first` and those after it, or with `tail` the last, partial one. */
static int put_directory(struct writer *w, const struct tree_node *dir, bool tail)
{
    struct dirents d = {.dir = dir, .next = dir->children};
    uint64_t left = dir->inode->size;
    uint8_t block[EROFS_BLOCK];
    int r = 0;

    while (r == 0 && left > 0) {
        size_t used = fill_block(&d, block);
        bool last = left <= EROFS_BLOCK;

        if (used == 0)
            return -EIO;
        if (tail && last)
            return sink_put(&w->sink, block, used);
        if (!tail && !(last && tail_size(w, dir->inode)))
            r = sink_put(&w->sink, block, EROFS_BLOCK);
        left -= last ? left : EROFS_BLOCK;
    }
    return r;
}

static int put_inodes(struct writer *w)
{
    size_t dir = 0;
    int r = 0;

    for (size_t i = 0; r == 0 && i < w->n_inodes; i++) {
        const struct tree_inode *inode = w->inodes[i];
        uint64_t tail = tail_size(w, inode);

        r = put_head(w, inode, (uint32_t)i + 1);
        if (r == 0 && S_ISDIR(inode->mode)) {
            if (tail)
                r = put_directory(w, w->dirs[dir], true);
            dir++;
        } else if (r == 0 && tail) {
            r = put_content(w, inode, inode->size - tail, tail);
        }
    }
    return r;
}

static int put_blocks(struct writer *w)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < w->n_dirs; i++) {
        if (block_count(w, w->dirs[i]->inode) == 0)
            continue;
        r = sink_at(&w->sink, (uint64_t)w->dirs[i]->inode->block * EROFS_BLOCK);
        if (r == 0)
            r = put_directory(w, w->dirs[i], false);
    }
    for (size_t i = 0; r == 0 && i < w->n_inodes; i++) {
        const struct tree_inode *inode = w->inodes[i];
        uint64_t blocks = block_count(w, inode);

        if (S_ISDIR(inode->mode) || blocks == 0)
            continue;
        r = sink_at(&w->sink, (uint64_t)inode->block * EROFS_BLOCK);
        if (r == 0)
            r = put_content(w, inode, 0, MIN(inode->size, blocks * EROFS_BLOCK));
    }
    if (r == 0)
        r = sink_at(&w->sink, w->n_blocks * EROFS_BLOCK);
    return r;
}

static int put_super(struct writer *w)
{
    uint8_t block[EROFS_BLOCK];
    struct erofs_super super = {
        .magic = htole32(EROFS_MAGIC),
        .feature_compat = htole32(EROFS_COMPAT_CHECKSUM | EROFS_COMPAT_MTIME),
        .blkszbits = 12,
        .root_nid = htole16(ROOT_PLACE / 32),
        .inos = htole64(w->n_inodes),
        .blocks = htole32((uint32_t)w->n_blocks),
        .meta_blkaddr = htole32(META_BLOCK),
        .uuid = EROFS_UUID,
    };

    if (w->n_slots > 0) {
        super.feature_incompat = htole32(EROFS_INCOMPAT_CHUNKED_FILE | EROFS_INCOMPAT_DEVICE_TABLE);
        super.extra_devices = htole16((uint16_t)w->n_slots);
        super.devt_slotoff = htole16(EROFS_SLOTS_OFFSET / EROFS_SLOT_SIZE);
    }
    erofs_super_block(&super, w->slots, w->n_slots, block);
    return sink_put(&w->sink, block, sizeof(block));
}

int erofs_write(struct tree *tree, const struct layer *layers, size_t n_layers,
                const char *const *packs, const char *path, uint64_t *ret_size, struct error *err)
{
    _cleanup_(writer_done) struct writer w = {
        .layers = layers, .n_layers = n_layers, .packs = packs};
    int r;

    w.inodes = calloc(tree_count(tree), sizeof(struct tree_inode *));
    w.dirs = calloc(tree_count(tree), sizeof(struct tree_node *));
    r = w.inodes && w.dirs ? sink_open(&w.sink, path) : -ENOMEM;
    if (r == 0 && packs)
        r = choose_devices(&w, tree);
    if (r == 0)
        r = place_all(&w, tree);
    if (r == 0)
        r = put_super(&w);
    if (r == 0)
        r = put_inodes(&w);
    if (r == 0)
        r = put_blocks(&w);
    if (r == 0)
        r = sink_finish(&w.sink);
    if (r < 0) {
        (void)unlink(path);
        return error_set(err, -r, "make '%s': %s", path, errno_text(-r));
    }
    *ret_size = w.n_blocks * EROFS_BLOCK;
    return 0;
}
