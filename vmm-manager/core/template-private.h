#pragma once

#include <sys/stat.h>

#include "core/guest-link.h"
#include "core/template.h"

enum template_state {
    TEMPLATE_UNCHECKED, /* on disk, from an earlier daemon */
    TEMPLATE_MAKING,    /* being checked or built */
    TEMPLATE_READY,
    TEMPLATE_UNSAVABLE, /* boots, but its backend could not save it: boot cold */
    TEMPLATE_DISCARDED, /* no longer in the list; goes with its last reference */
};

struct template_wait {
    struct template *template; /* weak; NULL once answered */
    struct template_callbacks cb;
    void *userdata;
    struct source *answer; /* owned: when the answer is known at once */
    struct template_wait *next;
};

/* The making of a template: check what is on disk, else build it; see template-build.c. */
struct template_build;

struct template
{
    struct core *core; /* weak */
    struct manifest manifest;
    char *dir;             /* owned */
    struct recipe *recipe; /* owned; NULL: an image, booted */
    enum template_state state;
    unsigned refs; /* of clones that still need its files */
    bool proven;
    bool spare; /* nobody needs it, as of the last look; see templates_evict() */
    uint64_t used_wall_usec;
    struct stat files[3];         /* memory, state, disk as they were when they were checked */
    struct template_build *build; /* owned, while MAKING */
    struct template_wait *waits;  /* weak list: owned by those who wait */
    struct template *next;        /* owned list */
};

/* With may_build false a template that is not whole on disk is an error. */
int template_build_start(struct template *t, const struct resolution *resolution, bool may_build,
                         struct error *err);
/* Lets go without waiting for anything; only when the core ends. */
struct template_build *template_build_free(struct template_build *b);
void template_build_quiesce(struct template_build *b);
const char *template_build_vm_id(const struct template_build *b);
void template_build_vm_gone(struct template_build *b, const char *reason);

struct template *template_lookup(struct core *core, const char *id);
/*
 * What lies over its files, for people, NULL: nothing. Without them a sandbox goes on, but cannot
 * be paused, and a snapshot is lost.
 */
const char *template_in_use(const struct template *t);
/* That, or it has a name: not to be removed without being asked to. */
bool template_is_needed(const struct template *t);
/* From its directory, if there is one. */
void template_load_recipe(struct template *t);

/* Called by the build, once. `saved` false without err: TEMPLATE_UNSAVABLE. */
void template_made(struct template *t, bool saved, const struct error *err);
void template_progress(struct template *t, const char *step, int percent);
void template_output(struct template *t, const char *text, size_t size);
/* Removes a directory on a worker, logging failure. */
void template_remove_dir(struct core *core, const char *dir);
