#pragma once

#include <stdbool.h>
#include <stdint.h>

/*
 * Who asks. A tenant owns sandboxes and what is made of them; a key belongs to one tenant and has a
 * role in it. Whoever may open the daemon's own socket is the host: any tenant, every right.
 */
#define TENANT_DEFAULT "default" /* of the host's own socket, and of what predates tenants */
#define TENANT_SIZE 64u

enum role {
    ROLE_VIEWER, /* looks, but at no content of files, output or logs */
    ROLE_USER,   /* uses and makes */
    ROLE_ADMIN,  /* and has the tenant's keys */
};
#define ROLE_COUNT (ROLE_ADMIN + 1)

const char *role_name(enum role role);
/* The role, or -EINVAL. */
int role_from_string(const char *s);

/* What a tenant may hold at once when one of its keys asks for more; 0: no limit. */
struct quota {
    uint32_t sandboxes;
    uint32_t cpus;
    uint32_t memory_mib;
    uint32_t disk_mib;
    uint32_t rate; /* requests a second of one key, twice as many at once */
};

#define KEY_ID_LENGTH 12u

struct principal {
    char tenant[TENANT_SIZE];
    enum role role;
    bool host;                      /* came by the daemon's own socket */
    char key_id[KEY_ID_LENGTH + 1]; /* "" when none */
    struct quota quota;
};
