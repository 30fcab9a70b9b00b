#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "backend/backend.h"
#include "backend/firecracker/fc-find.h"
#include "base/error.h"

/*
 * The directory that a Firecracker process sees as its root (jailed) or works in (plain), and what is
 * in it: BASE/firecracker/SLOT/root with hard links to image, kernel, snapshot (bind mounts where a hard
 * link cannot cross file systems), so that all paths Firecracker is told, and stores in snapshots, are
 * relative: `image`, `disk`, `kernel`, `initramfs`, `memory`, `state`, `console.sock`, `api.sock`.
 */
#define FC_SLOT_SIZE 13 /* 12 characters and NUL */
#define FC_UID_FIRST 231072u
#define FC_UID_COUNT 65536u

struct fc_jail {
    char slot[FC_SLOT_SIZE];
    char root[200]; /* absolute, of the directory described above */
    char base[160]; /* chroot base */
    uid_t uid;      /* also the gid; 0 when not jailed */
    bool jailed;
};

/* Mount point of a pure cgroup v2 tree with the memory and pids controllers, or NULL. */
const char *fc_jail_cgroup_root(void);

/* Names a new slot and makes its directory. */
int fc_jail_make(struct fc_jail *jail, const char *base, bool jailed, uid_t uid, struct error *err);

/* Makes `path` visible in the jail as `name`, without copying. writable: owned by the jail's user. */
int fc_jail_share(const struct fc_jail *jail, const char *path, const char *name, bool writable,
                  struct error *err);

/* Moves a file that Firecracker wrote out of the jail; copies when it must cross file systems. */
int fc_jail_take_out(const struct fc_jail *jail, const char *name, const char *to,
                     struct error *err);

/* Unmounts and removes all of it, with its cgroup. No process may be left in it. */
int fc_jail_remove(const struct fc_jail *jail, struct error *err);

/* Path of a socket in the jail; always short enough for a sockaddr_un, checked in fc_jail_make(). */
void fc_jail_socket(const struct fc_jail *jail, const char *name, char ret[108]);
