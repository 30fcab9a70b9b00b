#pragma once

#include "backend/backend.h"
#include "base/loop.h"
#include "host/console.h"

/*
 * The way to one guest: connects to the VM's console (again and again until it takes us), says
 * hello and, when asked to, gives the guest its identity. Owns the console; tells of its end once.
 */
struct guest_link;

struct link_identity {
    char hostname[64];
    char machine_id[33];
    char boot_id[37];
};

/* A new one, random but for the host name. */
void link_identity_make(struct link_identity *ret, const char *hostname);
/* The same machine under another host name. */
void link_identity_name(struct link_identity *identity, const char *hostname);

struct guest_link_callbacks {
    void (*on_ready)(struct guest_link *link, void *userdata);
    /* Never got ready, or broke later. Called once, last; guest_link_free() is legal inside. */
    void (*on_broken)(struct guest_link *link, const struct error *reason, void *userdata);
};

enum link_thaw {
    LINK_THAW_NEVER,         /* a template's guest stays as it booted */
    LINK_THAW_ALWAYS,        /* a new clone: new identity, whatever it says of itself */
    LINK_THAW_UNLESS_THAWED, /* after a daemon restart */
};

struct guest_link_options {
    struct loop *loop;
    struct backend *backend; /* weak, outlives the link */
    const char *vm_id;       /* copied */
    uint64_t deadline_usec;  /* monotonic, for all of it */
    enum link_thaw thaw;
    const struct link_identity *identity; /* copied */
};

/* Callbacks come from the loop, never from inside this call. */
int guest_link_new(const struct guest_link_options *options, const struct guest_link_callbacks *cb,
                   void *userdata, struct guest_link **ret);
struct guest_link *guest_link_free(struct guest_link *link);

/*
 * For a guest that is frozen and whose connection a snapshot will end: the console stays with all
 * that was begun on it (console_park). Then a new connection takes its place and the guest is
 * thawed; the callbacks replace those of before, and a failure is on_broken as ever.
 */
int guest_link_park(struct guest_link *link);
int guest_link_continue(struct guest_link *link, uint64_t deadline_usec,
                        const struct guest_link_callbacks *cb, void *userdata);
bool guest_link_parked(const struct guest_link *link);

/* The console once ready, else NULL. Weak. */
struct console *guest_link_console(struct guest_link *link);
/* Something was connected: a later failure is the guest's, not the VMM's. */
bool guest_link_connected(const struct guest_link *link);
