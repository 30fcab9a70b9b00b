#pragma once

#include "store/blake.h"
#include "store/snapshot.h"

/*
 * The manifest.json of a snapshot:
 *
 *     {"digest":"<64 hex digits>","snapshot":BODY}
 *
 * with the digest over the bytes of BODY, so that no bit of the file can change unseen. A snapshot
 * that is later compressed or flattened gets a new manifest and keeps its seal, the digest of its
 * first one: that is what those that lie over it name together with its id.
 */
#define SNAPSHOT_MANIFEST_VERSION 1
#define SNAPSHOT_MANIFEST "manifest.json"
#define SNAPSHOT_MANIFEST_MAX (SNAPSHOT_META_MAX + 64u * 1024u)

enum snapshot_file {
    SNAPSHOT_FILE_STATE,
    SNAPSHOT_FILE_MEMORY,
    SNAPSHOT_FILE_MEMORY_MAP,
    SNAPSHOT_FILE_DISK,
    SNAPSHOT_FILE_DISK_MAP,
};
#define SNAPSHOT_FILE_COUNT (SNAPSHOT_FILE_DISK_MAP + 1)

struct snapshot_manifest {
    struct snapshot_info info;
    char parent_digest[DIGEST_TEXT_SIZE]; /* seal of the parent */
    char seal[DIGEST_TEXT_SIZE];
    /* The digest of memory and disk is "": it is in their maps. */
    struct manifest_file files[SNAPSHOT_FILE_COUNT];
};

void snapshot_manifest_done(struct snapshot_manifest *m);
const char *snapshot_file_name(enum snapshot_file file, bool compressed);
const char *snapshot_kind_name(enum snapshot_kind kind);

/* The bytes of the file; owned by the caller. A seal of "" is filled in. */
int snapshot_manifest_print(struct snapshot_manifest *m, char **ret, size_t *ret_size,
                            struct error *err);
/* Strict: ERR_SNAPSHOT_INVALID for anything unexpected. */
int snapshot_manifest_parse(const char *text, size_t size, struct snapshot_manifest *ret,
                            struct error *err);
/* Of DIR; it must be that of `id`. ERR_SNAPSHOT_NOT_FOUND when there is none. */
int snapshot_manifest_read(const char *dir, const char *id, struct snapshot_manifest *ret,
                           struct error *err);
