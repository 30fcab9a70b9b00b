#pragma once

#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

/*
 * Users and groups of the image, read by us: no NSS in a static program. Runs in children, inside
 * the root; the files are the image's and hostile, so everything is bounded.
 */
#define USER_NAME_MAX 64u
#define USER_PATH_MAX 256u
#define USER_GROUPS_MAX 64u
#define USERS_FILE_MAX (1024u * 1024u)

struct user {
    uid_t uid;
    gid_t gid;
    char name[USER_NAME_MAX];      /* the uid in decimal when passwd does not know it */
    char home[USER_PATH_MAX];      /* "/" when unknown */
    gid_t groups[USER_GROUPS_MAX]; /* supplementary, the primary one included */
    size_t n_groups;
};

/* Contents of passwd and group; owned strings, never NULL after users_load(). */
struct users {
    char *passwd;
    char *group;
};
/* Missing or unreadable files count as empty. -ENOMEM only. */
int users_load(struct users *u);
void users_done(struct users *u);

/*
 * `spec` is "", NAME, UID, NAME:GROUP, UID:GID or a mix; "" is root. An explicit group replaces all
 * supplementary ones. Root exists even without a passwd; a number needs no entry.
 */
int users_resolve(const struct users *u, const char *spec, struct user *ret, struct error *err);

/* Name for a number; "" when unknown or too long. */
void users_name_of_uid(const struct users *u, uid_t uid, char text[USER_NAME_MAX]);
void users_name_of_gid(const struct users *u, gid_t gid, char text[USER_NAME_MAX]);
