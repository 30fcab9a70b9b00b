#pragma once

#include <jansson.h>

#include "backend/backend.h"
#include "backend/firecracker/fc-options.h"

/* One request of Firecracker's API. */
struct fc_request {
    const char *method;
    const char *path; /* weak, constant */
    json_t *body;     /* owned until it is sent */
};
#define FC_REQUESTS_MAX 20

/* Names in the jail. A VM's own snapshots must not meet the files it was restored from. */
#define FC_NAME_STATE "state"
#define FC_NAME_MEMORY "memory"
#define FC_NAME_NEW_STATE "new-state"
#define FC_NAME_CHANGED "changed" /* all that changed since the load; grows with each snapshot */
#define FC_NAME_PAGER "pager.sock"

/* What configures and starts a machine, in order; the count, or -ENOMEM with nothing to free. */
int fc_machine_boot(const struct vm_spec *spec, const struct fc_options *options,
                    struct fc_request requests[FC_REQUESTS_MAX]);
/*
 * Adds drives for the packs of the image to what fc_machine_boot() made: they are known only when
 * the image was looked at.
 */
int fc_machine_add_packs(struct fc_request requests[FC_REQUESTS_MAX], int *count, size_t n_packs);
/* What the n-th pack is called in the jail; also the drive. */
#define FC_PACK_NAME_SIZE 16
void fc_pack_name(size_t number, char name[static FC_PACK_NAME_SIZE]);
struct fc_load {
    bool pager;      /* memory from FC_NAME_PAGER, not from FC_NAME_MEMORY */
    const char *tap; /* network device in place of the snapshot's; NULL: as it was */
};
/* What loads a snapshot and lets it run. */
int fc_machine_restore(const struct fc_load *load, const struct fc_options *options,
                       struct fc_request requests[FC_REQUESTS_MAX]);
/* What pauses and saves; the process is of no more use afterwards. */
int fc_machine_save(struct fc_request requests[FC_REQUESTS_MAX]);
/*
 * What pauses and writes FC_NAME_NEW_STATE and FC_NAME_CHANGED. A VM that was booted, not restored,
 * has no record of changes: all of its memory is written.
 */
int fc_machine_snapshot(bool booted, struct fc_request requests[FC_REQUESTS_MAX]);
int fc_machine_resume(struct fc_request requests[FC_REQUESTS_MAX]);
/*
 * What lets a VM go on that a daemon left paused, perhaps between pause and snapshot: see
 * fc-snapshot.c for why that takes one.
 */
int fc_machine_wake(bool booted, struct fc_request requests[FC_REQUESTS_MAX]);
/* Asks whether it runs. */
int fc_machine_look(struct fc_request requests[FC_REQUESTS_MAX]);

void fc_requests_done(struct fc_request *requests, int count);
