#include "model/access.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/macros.h"

static const char *const role_names[] = {
    [ROLE_VIEWER] = "viewer",
    [ROLE_USER] = "user",
    [ROLE_ADMIN] = "admin",
};
static_assert(ARRAY_SIZE(role_names) == ROLE_COUNT, "every role has a name");

const char *role_name(enum role role)
{
    return role_names[role];
}

int role_from_string(const char *s)
{
    for (int i = 0; i < ROLE_COUNT; i++) {
        if (strcmp(s, role_names[i]) == 0)
            return i;
    }
    return -EINVAL;
}
