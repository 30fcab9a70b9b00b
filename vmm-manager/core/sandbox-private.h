#pragma once

#include "backend/backend.h"
#include "core/core-private.h"
#include "core/guest-link.h"
#include "host/session.h"
#include "store/manifest.h"

/*
 * One sandbox, for the files of the core. Its state changes only in lifecycle.c; the flows that get
 * it there are create.c, take.c, wake.c, recover.c and teardown.c.
 */
#define SANDBOX_ID_LENGTH 16u

struct timings {
    uint64_t queue_usec, resolve_usec, template_usec, disk_usec, restore_usec, console_usec,
        total_usec;
    bool cold;    /* booted, not restored */
    bool claimed; /* was warm in a pool; total_usec is the hand-over */
};

/* What its last snapshot cost. */
struct take_figures {
    uint64_t freeze_usec, memory_usec, disk_usec, seal_usec; /* how long each step took */
    uint64_t still_usec;    /* from the freeze until it went on; 0: it did not, it slept */
    uint64_t changed_bytes; /* of its memory, since what it was restored from */
    uint64_t written_bytes; /* all files of its own */
};

struct removal_waiter {
    backend_done_fn done;
    void *userdata;
    struct removal_waiter *next; /* owned */
};

struct sandbox_session {
    struct sandbox *sandbox; /* weak */
    struct session *session; /* owned; NULL while the console is being replaced */
    char *name, *user, *cwd; /* owned; user and cwd may be NULL */
    char **env;              /* owned */
    enum session_kind kind;
    uint16_t rows, cols;
    uint64_t created_wall_usec;
    struct session_record record; /* as last stored; its line is `line` */
    uint8_t *line;                /* owned, may be NULL */
    backend_done_fn removed;      /* waits for session_kill() */
    void *removed_userdata;
    struct source *removal;       /* owned: removal without a shell to end */
    struct sandbox_session *next; /* owned */
};

struct sandbox {
    struct core *core; /* weak */
    char id[SANDBOX_ID_LENGTH + 1];
    struct sandbox_spec spec; /* owned */
    enum sandbox_state state;
    struct error failure; /* why it failed, or why its creation did */
    uint64_t created_wall_usec;
    char *dir; /* owned */

    struct backend_slot *slot; /* weak; NULL until chosen */
    struct backend_vm vm;      /* pid 0: none known */
    bool vm_exists;            /* a VMM may be there: kill before forgetting */
    struct origin origin;
    char template_id[MANIFEST_ID_SIZE]; /* "" after a cold boot */
    struct link_identity identity;      /* as the guest has it, through every sleep */

    /* ---- snapshots; see take.c, wake.c, hibernate.c ---- */
    bool held;                       /* frozen, or about to be, for a snapshot: nobody may use it */
    char snapshot[MANIFEST_ID_SIZE]; /* what it resumes from, when asleep; "": none */
    char restored_from[MANIFEST_ID_SIZE]; /* the snapshot its memory lies over; "": the template */
    char checkpoint[MANIFEST_ID_SIZE];    /* the one its state follows; "": none */
    uint64_t slept_wall_usec, woken_wall_usec; /* last time; 0: never */
    struct take *take;                         /* owned, while a snapshot is being taken */
    struct take_figures taken;                 /* of the last one; not in its row */
    struct wake *wake;                         /* owned, while it is being restored */
    struct sandbox_wait *waits;                /* weak list: each is owned by who made it */
    struct source *waits_kick;                 /* owned */
    bool pause_wanted;        /* as soon as the snapshot that is being taken is done */
    struct error pause_error; /* why the last pause came to nothing */
    uint64_t used_usec;       /* monotonic, when it was last in use */
    struct source *idle;      /* owned */

    /* Calls under way that cannot be taken back; teardown waits until none is left. */
    unsigned pending;

    struct guest_link *link; /* owned; NULL before and after */
    bool adopting;           /* after a daemon restart, until the guest answers; see recover.c */
    bool reconnecting;       /* its console broke and is looked for again */
    uint64_t reconnect_until_usec; /* monotonic; when a break is final */
    uint64_t reconnected_usec;     /* monotonic, of the last reconnection */
    struct source *retry;      /* owned: the next try, or the end of the wait for the VM's end */
    struct error break_reason; /* of the last break */

    bool pooled;              /* nobody asked for it yet: pool.h; in its row from the start */
    struct pooled *entry;     /* weak: its place in the pool; NULL: it is to be removed */
    struct source *late_thaw; /* owned: claimed, and not told yet */

    struct creation *creation;        /* owned, until on_done */
    struct sandbox_session *sessions; /* owned list */
    size_t n_sessions;
    struct sandbox_watch *watches; /* weak list: each is owned by who made it */
    size_t n_watches;
    struct removal_waiter *removals; /* owned list */
    bool killing;                    /* backend.kill() is under way */

    struct source *deadline; /* owned: of the state */
    struct source *lifetime; /* owned */
    struct timings timings;
    uint64_t revision;         /* of what its row says: see sandbox_store() */
    struct sandbox_text *text; /* owned: sandbox_to_text() */
};

int sandbox_new(struct core *core, const struct sandbox_spec *spec, const char *id,
                struct sandbox **ret, struct error *err);
/* A new one in state CREATING, listed and stored, with its deadlines. */
int sandbox_add(struct core *core, const struct sandbox_spec *spec, struct sandbox **ret,
                struct error *err);
/* One of which nothing was made yet. */
void sandbox_discard(struct sandbox *sb);
/* As sandbox_create(), for a pool. */
int sandbox_create_pooled(struct core *core, const struct sandbox_spec *spec,
                          const struct sandbox_create_callbacks *cb, void *userdata,
                          struct sandbox **ret, struct error *err);
/* Frees what it holds; the VM is not touched. Always NULL. */
struct sandbox *sandbox_free(struct sandbox *sb);
/* Nothing of it calls back any more; calls under way may still come home to it. */
void sandbox_quiesce(struct sandbox *sb);

/* Writes the row; a failure is returned and logged by the caller. */
int sandbox_store(struct sandbox *sb, struct error *err);
void sandbox_text_free(struct sandbox *sb);
/* The same for what a claim has changed. */
int sandbox_store_claim(struct sandbox *sb, struct error *err);
/* From its row, in state CREATING: the caller decides what it is. Not listed in the core. */
int sandbox_from_row(struct core *core, const struct sandbox_row *row, struct sandbox **ret,
                     struct error *err);
/* The machine for a backend: strings are weak. `disk` is a scratch buffer of the caller. */
void sandbox_vm_spec(const struct sandbox *sb, char disk[static 512], struct vm_spec *ret);
void sandbox_identity(const struct sandbox *sb, struct link_identity *ret);
/* Looks for the console again, until sb->reconnect_until_usec; a frozen guest is thawed. */
int sandbox_reconnect(struct sandbox *sb);

/* After the console is over: watches hear of it, sessions and link go. */
void sandbox_drop_console(struct sandbox *sb, const struct error *reason);
/* The console of a running sandbox broke. */
void sandbox_console_broken(struct guest_link *link, const struct error *reason, void *userdata);

/* watch.c */
void sandbox_notify_watches(struct sandbox *sb, const struct error *reason);

/* timeouts.c */
/* The end of its life time; of its sleep, when it is asleep. */
int sandbox_arm_lifetime(struct sandbox *sb);
void sandbox_arm_idle(struct sandbox *sb);
/* Somebody uses it, or has just ended to. */
void sandbox_used(struct sandbox *sb);
void sandbox_arm_deadline(struct sandbox *sb, uint64_t timeout_usec);

/* sessions.c */
void sandbox_sessions_free(struct sandbox *sb);
/* The console is over: shells live on in the guest, the records are kept for
 * sandbox_sessions_adopt. */
void sandbox_sessions_detach(struct sandbox *sb, const struct error *reason);
int sandbox_sessions_load(struct sandbox *sb, struct error *err);
void sandbox_sessions_adopt(struct sandbox *sb);
/* Lists and stores one that is in the guest already; the record's line is copied. */
int sandbox_session_put(struct sandbox *sb, const struct session_spec *spec,
                        const struct session_record *record, uint64_t created_wall_usec,
                        struct error *err);
/* Here and in the store; shells are not touched. */
void sandbox_sessions_forget(struct sandbox *sb);
/* One of them runs a command, or starts. */
bool sandbox_sessions_busy(const struct sandbox *sb);

/* waits.c */
/* Something changed: those who wait are looked at, from the loop. */
void sandbox_waits_kick(struct sandbox *sb);
void sandbox_waits_progress(struct sandbox *sb, const char *step, int percent);
/* It is about to be freed. */
void sandbox_waits_end(struct sandbox *sb, const struct error *reason);
/* Somebody waits for it to be usable. */
bool sandbox_waits_use(const struct sandbox *sb);

/* teardown.c: kills, removes files and row, calls who waits, frees. Runs when nothing is pending.
 */
void teardown_start(struct sandbox *sb);
/* It could not be ended: who waits hears why, the sandbox stays. */
void teardown_failed(struct sandbox *sb);
/* A call that cannot be taken back has returned. */
void sandbox_unpend(struct sandbox *sb);
/* Kills the VM of a failed or stopped sandbox; its files stay. */
void sandbox_kill_vm(struct sandbox *sb);
