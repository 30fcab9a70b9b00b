#pragma once

#include <jansson.h>

#include "backend/backend.h"

/* One request of Firecracker's API. */
struct fc_request {
    const char *method;
    const char *path;
    json_t *body; /* owned until it is sent */
};
#define FC_REQUESTS_MAX 12

/* What configures and starts a machine, in order; the count, or -ENOMEM with nothing to free. */
int fc_machine_boot(const struct vm_spec *spec, struct fc_request requests[FC_REQUESTS_MAX]);
/* What loads a snapshot and lets it run. */
int fc_machine_restore(struct fc_request requests[FC_REQUESTS_MAX]);
/* What pauses and saves; the process is of no more use afterwards. */
int fc_machine_save(struct fc_request requests[FC_REQUESTS_MAX]);

void fc_requests_done(struct fc_request *requests, int count);
