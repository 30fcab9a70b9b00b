#pragma once

#include "api/e2b/e2b-private.h"

/*
 * A request to /files: by the access token, or by a signature of its path. The user is that of the
 * query, else as for all calls.
 */
struct files_request {
    struct sandbox *sb;
    const char *path; /* weak, of the query; NULL when absent */
    char user[129];
};
/* False: the answer is out. The sandbox may sleep. */
bool files_request(struct request *req, const char *operation, struct files_request *ret);
