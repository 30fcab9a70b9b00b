#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/page-source.h"

/*
 * The directory that a Firecracker process sees as its root (jailed) or works in (plain), and what
 * is in it: BASE/PROGRAM/SLOT/root. Files of the host come in as hard links, or where a link cannot
 * be made as mounts inside the process's own mount namespace, which end with it. So all paths that
 * Firecracker is told, and stores in snapshots, are relative: `image`, `disk`, `pack0`…, `kernel`,
 * `initramfs`, `memory`, `state`, `console.sock`, `api.sock`.
 */
#define FC_SLOT_SIZE 13 /* 12 characters and NUL */
#define FC_UID_FIRST 231072u
#define FC_UID_COUNT 65536u

struct fc_jail {
    char slot[FC_SLOT_SIZE];
    char program[32];
    char dir[160];  /* absolute, BASE/PROGRAM/SLOT */
    char root[168]; /* dir/root */
    uid_t uid;      /* also the gid; 0 when not jailed */
    bool jailed;
};

/* Mount point of a pure cgroup v2 tree with the memory and pids controllers, or NULL. */
const char *fc_jail_cgroup_root(void);

/* Names a new slot and makes its directory; `program` is the file name of Firecracker's program. */
int fc_jail_make(struct fc_jail *jail, const char *base, const char *program, bool jailed,
                 uid_t uid, struct error *err);
/* A jail that is there already, by its directory; -EINVAL when that is none. */
int fc_jail_from_dir(struct fc_jail *jail, const char *dir, bool jailed, uid_t uid);

enum fc_share {
    FC_SHARE_READ,
    FC_SHARE_WRITABLE,  /* owned by the jail's user from now on */
    FC_SHARE_UNTOUCHED, /* read, and nothing stat() says of it changes, as by a link it would */
};
/*
 * Makes `path` visible to the process `pid` of the jail as `name`. No copy, except of a small file
 * that others may not read or that must stay untouched.
 */
int fc_jail_share(const struct fc_jail *jail, pid_t pid, const char *path, const char *name,
                  enum fc_share how, struct error *err);

/*
 * Limits of the process and all it does for the guest. A disk that lies in memory (tmpfs) counts as
 * memory of the process that writes it. Nothing to do when not jailed.
 */
int fc_jail_limit(const struct fc_jail *jail, uint32_t memory_mib, uint32_t cpus, const char *disk,
                  struct error *err);

/* Moves a file that Firecracker wrote out of the jail; copies when it must cross file systems. */
int fc_jail_take_out(const struct fc_jail *jail, const char *name, const char *to,
                     struct error *err);

/* The same, but the file stays there; `to` must not exist. */
int fc_jail_copy_out(const struct fc_jail *jail, const char *name, const char *to,
                     struct error *err);

/* A copy of `base` with `pages` over it, as a file of the jail that its user may read. */
int fc_jail_compose(const struct fc_jail *jail, const char *base, struct page_source *pages,
                    const char *name, uint64_t deadline_usec, struct error *err);

/* Removes all of it, with its cgroup. No process may be left in it. */
int fc_jail_remove(const struct fc_jail *jail, struct error *err);

/* Path of a file in the jail; short enough for a sockaddr_un, checked in fc_jail_make(). */
void fc_jail_path(const struct fc_jail *jail, const char *name, char ret[108]);
