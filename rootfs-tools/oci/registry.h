#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "oci/auth.h"
#include "oci/manifest.h"
#include "oci/reference.h"

/*
 * A registry, asked for one repository. Everything blocks, for a thread that may wait; `cancel`
 * ends it soon. What comes is checked against its digest before anybody sees it.
 */
struct registry;

int registry_open(const struct reference *ref, const _Atomic bool *cancel, struct registry **ret,
                  struct error *err);
struct registry *registry_close(struct registry *r);

/* The document of a tag or a digest. *ret_digest is that of its bytes. ERR_IMAGE_NOT_FOUND. */
int registry_manifest(struct registry *r, const char *tag_or_digest, struct buf *ret,
                      char ret_media_type[256], char ret_digest[DIGEST_SIZE], struct error *err);
/* A small blob into memory. */
int registry_blob(struct registry *r, const struct oci_descriptor *blob, struct buf *ret,
                  struct error *err);

/*
 * Blobs into files, several at once. A file PATH.part that is there is continued, not started
 * over; when all of it has come and its digest is right it becomes PATH.
 */
struct registry_transfer {
    const struct oci_descriptor *blob; /* weak */
    const char *path;                  /* weak */
};
struct registry_callbacks {
    /* Before a blob is begun: 0 go, 1 no longer needed, -EAGAIN not yet, else the end of all. */
    int (*begin)(size_t i, void *userdata);
    /* It is there. A negative answer ends all. */
    int (*done)(size_t i, void *userdata);
    void (*progress)(uint64_t bytes, uint64_t total, void *userdata);
};
int registry_transfers(struct registry *r, const struct registry_transfer *list, size_t count,
                       const struct registry_callbacks *cb, void *userdata, struct error *err);

/* Does the registry accept these credentials? ERR_REGISTRY_DENIED. */
int registry_check_login(const char *host, const struct credentials *credentials,
                         struct error *err);
