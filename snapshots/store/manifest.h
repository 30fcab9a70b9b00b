#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/*
 * What a snapshot directory says of itself, in its manifest.json. The directory is written beside,
 * the manifest last, then renamed: a directory without a readable manifest is rubbish.
 */
#define MANIFEST_VERSION 2
#define MANIFEST_FILES_MAX 8u
#define MANIFEST_ID_SIZE 33u /* 32 hex digits */
#define MANIFEST_DIGEST_SIZE 65u

/* All that a snapshot depends on. Two equal ones can stand in for each other. */
struct origin {
    char backend[32];
    char backend_version[128];
    char accelerator[32];
    char cpu_model[64];
    char kernel_version[64]; /* for people, no part of the identity */
    char kernel_sha256[65];
    char initramfs_sha256[65];
    char image_name[256]; /* for people, no part of the identity */
    char image_path[256]; /* where its bytes were, no part of the identity */
    char image_sha256[65];
    uint32_t cpus;
    uint32_t memory_mib;
    uint32_t disk_mib;
};

struct manifest_file {
    char name[32];
    uint64_t size_bytes;
    char
        digest[MANIFEST_DIGEST_SIZE]; /* as sparse_digest() has it; "" when only the size is kept */
};

struct manifest {
    char id[MANIFEST_ID_SIZE];
    uint64_t created_wall_usec;
    struct origin origin;
    struct manifest_file files[MANIFEST_FILES_MAX];
    size_t n_files;
};

/* The id of a snapshot with this origin: a hash of everything that is part of its identity. */
void origin_id(const struct origin *origin, char ret[MANIFEST_ID_SIZE]);
/* 0, or ERR_TEMPLATE_INVALID and which field differs. */
int origin_compare(const struct origin *have, const struct origin *want, struct error *err);
json_t *origin_to_json(const struct origin *origin); /* NULL: out of memory */
/* Strict. */
int origin_from_json(const json_t *json, struct origin *ret, struct error *err);
/* From the text of that JSON; strict. */
int origin_parse(const char *text, struct origin *ret, struct error *err);

/* Records DIR/NAME with its size, and with its digest when asked to. Syncs the file. Blocks. */
int manifest_add_file(struct manifest *m, const char *dir, const char *name, bool digest,
                      struct error *err);
/* Writes DIR/manifest.json. Blocks. */
int manifest_write(const struct manifest *m, const char *dir, struct error *err);
/* Strict: anything unexpected is ERR_TEMPLATE_INVALID; a missing one ERR_TEMPLATE_NOT_FOUND. */
int manifest_read(const char *dir, struct manifest *ret, struct error *err);
int manifest_parse(const char *text, size_t size, struct manifest *ret, struct error *err);
/*
 * Every file is there with its size and digest, or ERR_TEMPLATE_INVALID. A file that this process
 * has verified before is known by what stat() says of it. Blocks.
 */
int manifest_verify(const struct manifest *m, const char *dir, struct error *err);
