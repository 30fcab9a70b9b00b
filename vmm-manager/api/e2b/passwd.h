#pragma once

#include <stddef.h>
#include <stdint.h>

/*
 * A user's line in the text of a guest's passwd file, which is foreign. Names that are missing from
 * it but exist in every sandbox (root, user) are known. *ret_home is fresh and absolute. -ENOENT,
 * -ENOMEM.
 */
int passwd_find(const char *text, size_t size, const char *user, uint32_t *ret_uid,
                uint32_t *ret_gid, char **ret_home);
