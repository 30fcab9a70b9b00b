#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "host/console.h"

/*
 * File operations in the guest, with the rights of a guest user. Each is one request with one
 * completion; a transfer is a `struct transfer` that can be freed at any time to break it off.
 * Paths are bytes without NUL, absolute, resolved inside the guest.
 */
enum file_type {
    FILE_TYPE_UNKNOWN,
    FILE_TYPE_REGULAR,
    FILE_TYPE_DIRECTORY,
    FILE_TYPE_LINK,
    FILE_TYPE_PIPE,
    FILE_TYPE_SOCK,
    FILE_TYPE_CHAR,
    FILE_TYPE_BLOCK,
};
const char *file_type_name(enum file_type type);

struct file_info {
    char *path; /* owned by whoever owns the file_info; list: relative to the directory */
    enum file_type type;
    uint64_t size;
    uint32_t mode, uid, gid;
    uint64_t mtime_nsec;
    char *link_target; /* owned, NULL unless a symlink */
    char owner[33], group[33];
};
void file_info_done(struct file_info *info);

/* A request under way: freeing it cancels (no callback follows). Owned by the caller. */
struct file_call;
struct file_call *file_call_free(struct file_call *call);

typedef void (*file_done_fn)(const struct error *err, void *userdata);
typedef void (*file_info_fn)(const struct file_info *info, const struct error *err, void *userdata);
/* Called for each batch; `last` with count 0 and err NULL or set ends it. */
typedef void (*file_list_fn)(const struct file_info *infos, size_t count, bool last,
                             const struct error *err, void *userdata);

int file_stat(struct console *c, const char *user, const char *path, bool follow, file_info_fn done,
              void *userdata, struct file_call **ret, struct error *err);
int file_list(struct console *c, const char *user, const char *path, uint32_t depth,
              file_list_fn done, void *userdata, struct file_call **ret, struct error *err);
int file_mkdir(struct console *c, const char *user, const char *path, bool parents, uint32_t mode,
               file_done_fn done, void *userdata, struct file_call **ret, struct error *err);
int file_move(struct console *c, const char *user, const char *from, const char *to,
              bool no_replace, file_done_fn done, void *userdata, struct file_call **ret,
              struct error *err);
int file_remove(struct console *c, const char *user, const char *path, bool recursive,
                file_done_fn done, void *userdata, struct file_call **ret, struct error *err);
int file_symlink(struct console *c, const char *user, const char *target, const char *path,
                 file_done_fn done, void *userdata, struct file_call **ret, struct error *err);
int file_mkfifo(struct console *c, const char *user, const char *path, uint32_t mode,
                file_done_fn done, void *userdata, struct file_call **ret, struct error *err);

struct file_attr {
    bool set_mode, set_owner, set_mtime;
    uint32_t mode, uid, gid;
    uint64_t mtime_nsec;
};
int file_set_attr(struct console *c, const char *user, const char *path,
                  const struct file_attr *attr, file_done_fn done, void *userdata,
                  struct file_call **ret, struct error *err);

/* ---- content ---- */
struct transfer;

struct transfer_callbacks {
    /* Opened; size of the file when reading. */
    void (*on_ready)(struct transfer *t, uint64_t size, void *userdata);
    /* Reading: bytes; acknowledge with transfer_consumed(). */
    void (*on_data)(struct transfer *t, const uint8_t *data, size_t size, void *userdata);
    /* Writing: room grew from 0. */
    void (*on_writable)(struct transfer *t, void *userdata);
    /* Complete (err NULL) or failed. Last call. */
    void (*on_done)(struct transfer *t, const struct error *err, void *userdata);
};

int file_read_start(struct console *c, const char *user, const char *path, uint64_t offset,
                    uint64_t length, const struct transfer_callbacks *cb, void *userdata,
                    struct transfer **ret, struct error *err);

/* All that a layer of console_new_layer() changed, as the tar of an image layer; 0: the image. */
int layer_read_start(struct console *c, uint32_t number, const struct transfer_callbacks *cb,
                     void *userdata, struct transfer **ret, struct error *err);

struct file_write_options {
    uint32_t mode; /* 0: 0644, kept for an existing file */
    bool parents, append, exclusive;
    bool atomic; /* a broken-off write leaves the old file */
};
int file_write_start(struct console *c, const char *user, const char *path,
                     const struct file_write_options *options, const struct transfer_callbacks *cb,
                     void *userdata, struct transfer **ret, struct error *err);

/* A TCP connection to a guest port: full duplex, on_data and transfer_write, on_done at the end. */
int dial_start(struct console *c, const char *host, uint16_t port, uint32_t timeout_msec,
               const struct transfer_callbacks *cb, void *userdata, struct transfer **ret,
               struct error *err);

size_t transfer_writable(const struct transfer *t);
int transfer_write(struct transfer *t, const void *data, size_t size);
/* No more to write: the file is committed, or the guest's socket gets its end of file. */
int transfer_finish(struct transfer *t);
void transfer_consumed(struct transfer *t, size_t size);
/* Breaks it off if it is not done. Always returns NULL. */
struct transfer *transfer_free(struct transfer *t);

/* ---- watch ---- */
enum file_event_kind {
    FILE_EVENT_CREATE = 1,
    FILE_EVENT_WRITE,
    FILE_EVENT_REMOVE,
    FILE_EVENT_RENAME,
    FILE_EVENT_CHMOD,
    FILE_EVENT_OVERFLOW,
};
/* Armed: kind 0, path NULL. Ended or failed: err set (last call). */
typedef void (*file_event_fn)(enum file_event_kind kind, const char *path, const struct error *err,
                              void *userdata);
int file_watch(struct console *c, const char *user, const char *path, bool recursive,
               file_event_fn fn, void *userdata, struct file_call **ret, struct error *err);
