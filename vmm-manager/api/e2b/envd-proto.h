#pragma once

#include "api/e2b/proto.h"

/* The messages of envd's two services, for Connect's binary codec. */
struct envd_rpc {
    const char *path;
    const struct proto_message *request, *answer;
};

extern const struct envd_rpc envd_rpcs[];
extern const size_t envd_rpcs_count;

/* By the path of its route; NULL: not a call. */
const struct envd_rpc *envd_rpc_find(const char *path);
