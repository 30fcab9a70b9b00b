#pragma once

#include "store/snapshot.h"

/* A store with a template in the test's directory, and snapshots of made-up memory in it. */
#define FIXTURE_PAGES 1024u /* four chunks */
#define FIXTURE_MEMORY (FIXTURE_PAGES * 4096ull)
#define FIXTURE_DISK (1024ull * 1024 + 4096 * 70)

struct fixture {
    char root[128], templates[128];
    char template_id[MANIFEST_ID_SIZE];
    uint8_t *memory; /* owned: what the guest's memory is */
    uint8_t *disk;   /* owned */
    struct snapshot_store *store;
};

/* Makes the template with FIXTURE_PAGES of memory and opens the store. `name` is its directory. */
void fixture_init(struct fixture *f, const char *name);
void fixture_done(struct fixture *f);
void fixture_reopen(struct fixture *f);

/* Fills page `page` of the memory with bytes of `seed`; 0 makes it zero. */
void fixture_page(struct fixture *f, unsigned page, unsigned seed);

/*
 * The three files into the writer's directory: these pages of the memory, all of the disk. 0 or a
 * negative errno.
 */
int fixture_write(struct fixture *f, const char *dir, const unsigned *pages, size_t n);
/* A sealed snapshot with these pages, over `parent` or, when NULL, over the template. */
int fixture_try(struct fixture *f, const char *parent, const unsigned *pages, size_t n,
                char ret_id[MANIFEST_ID_SIZE], struct error *err);
void fixture_snapshot(struct fixture *f, const char *parent, const unsigned *pages, size_t n,
                      char ret_id[MANIFEST_ID_SIZE]);
/* Opens it and compares all of memory (base and pages over it) and of its disk with `f`. */
int fixture_check(struct fixture *f, const char *id, struct error *err);
/* Entries of the store's directory, of all kinds. */
size_t fixture_entries(const struct fixture *f);
