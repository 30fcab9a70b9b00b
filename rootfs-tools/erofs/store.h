#pragma once

#include "erofs/image.h"

/* Inside of the image store: what its files share. */

/* Formats CACHE/images/SUB; path holds 256 bytes. */
int store_path(char *path, const char *sub, struct error *err);
/* Formats CACHE/images/DIR/SHA256SUFFIX. */
int store_hash_path(char *path, const char *dir, const char *sha256, const char *suffix,
                    struct error *err);
/* Takes the store's lock, so that a blob is not removed while a name is being pointed to it. */
int store_lock(int *ret_fd, struct error *err);
/*
 * Says that work is under way which needs layers that no name points to yet: nothing is collected
 * until the descriptor is closed.
 */
int store_hold(int *ret_fd, struct error *err);
/* Moves a finished EROFS file into the store and points the name to it. */
int store_publish(const char *name, const char *erofs_path, struct image *ret, struct error *err);

/* A directory of its own below images/tmp, locked while it is used. */
struct store_work {
    char dir[256]; /* removed at the end; "" when unset */
    int lock_fd;   /* owned */
};
int store_work_init(struct store_work *w, struct error *err);
void store_work_done(struct store_work *w);
#define _cleanup_store_work_ _cleanup_(store_work_done)

/* The file that says what a name is. */
struct record {
    char name[REFERENCE_SIZE];
    char sha256[65];
    char digest[DIGEST_SIZE];
    uint64_t size_bytes;
    uint64_t created_wall_usec;
    char **layers; /* owned strv of diff ids, bottom first; NULL: one EROFS file */
    struct image_config config;
};
void record_done(struct record *record);
#define _cleanup_record_ _cleanup_(record_done)
/* What `name` is called in the store: itself, or the shortest form of the reference. -EINVAL. */
int record_name(const char *name, char ret[REFERENCE_SIZE], struct error *err);
/* Of a name from record_name(). */
int record_path(char *path, const char *name, struct error *err);
/* By any form of the name. ERR_IMAGE_NOT_FOUND, or EIO when it is damaged. */
int record_find(const char *name, struct record *ret, struct error *err);
int record_read(const char *path, struct record *ret, struct error *err);
int record_write(const struct record *record, struct error *err);

/* Is this EROFS file complete, with all that it needs beside it? */
bool store_is_whole(const char *path);

/* Points a name to an image that is made of layers of the store. The lock is taken. */
int store_publish_layers(struct record *record, struct image *ret, struct error *err);
/*
 * The name of what these layers become, with packs as devices or as one file without any. An image
 * keeps the name, and the form, that it was published with.
 */
void store_layers_digest(char *const *diff_ids, bool packs, char sha256[static 65]);
/* Can the packs of all these layers be devices? */
bool store_layers_in_blocks(char *const *diff_ids);
/* Is this layer in the store? */
bool store_has_layer(const char *diff_id);
/* Moves a layer that was taken apart into the store. */
int store_add_layer(const char *made_pack, const char *made_index, const char *diff_id,
                    struct error *err);
int store_layer_paths(const char *diff_id, char pack[256], char index[256], struct error *err);
/* Bytes of the files in these layers, on top of each other or not. */
uint64_t store_layers_bytes(char *const *diff_ids);
/* Removes layers that no name and no EROFS file needs, unless work is under way. The lock is held.
 */
void store_collect(void);
void store_tidy(void); /* the same, taking the lock */
