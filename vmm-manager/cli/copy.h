#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "cli/cli.h"

/* Copying between this host and a sandbox, over the file requests of docs/API.md. */
struct copy {
    struct cli *cli;
    const char *sandbox; /* weak */
    const char *user;    /* weak; whose rights in the guest are used; NULL: root */
    uint64_t bytes;      /* copied so far, of all files */
    uint64_t skipped;    /* sockets, devices and the like */
};

/* What the guest says of a path. */
struct copy_info {
    bool is_file, is_directory, is_link;
    uint32_t mode; /* permission bits */
    uint64_t size;
    char *link_target; /* owned */
    char *name;        /* owned; of a directory's entry */
};
void copy_info_done(struct copy_info *info);

/* Reads a FileInfo object; -EPROTO when it is none. */
int copy_info_read(const json_t *json, struct copy_info *ret, struct error *err);
/* Stat, following links. -ENOENT (path_not_found) when nothing is there. */
int copy_stat(struct copy *c, const char *path, struct copy_info *ret, struct error *err);
/* GETs or POSTs to /v1/sandboxes/ID/files/… with `user` added. */
int copy_call(struct copy *c, const char *operation, json_t *body, struct error *err);
/* Path of a files request with ?path= and, if set, &user=; owned by the caller. */
char *copy_path(const struct copy *c, const char *operation, const char *path);

/* Shows how far it is. `total` 0: unknown. */
void copy_progress(struct copy *c, const char *name, uint64_t done, uint64_t total);

/* A file, directory or "-" from here to exactly `to` in the guest. */
int copy_in(struct copy *c, const char *from, const char *to, struct error *err);
/* A file or directory from the guest to exactly `to` here, or to stdout with "-". */
int copy_out(struct copy *c, const char *from, const struct copy_info *info, const char *to,
             struct error *err);
