#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "guest/conn.h"
#include "guest/control.h"
#include "guest/poller.h"
#include "guest/process.h"
#include "guest/ring.h"
#include "guest/serve.h"
#include "guest/urgency.h"

/* All state of the guest's server. One thread, no globals. */
struct server {
    struct guest_options options; /* strings are weak */
    bool is_init;                 /* PID 1 of a guest: orphans, power */
    bool thawed;
    bool stop; /* leave the loop */
    bool look; /* some process has to be looked at, see process_look_around() */
    bool power_off;

    struct poller poller;
    struct conn *active; /* weak: the conversation; NULL: none */
    struct process_list processes, ready;
    struct leftover_list leftovers; /* owned */
    uint64_t last_process_id, last_cgroup;
    uint64_t spare_cgroup; /* made ahead for the next process; 0: none */
    struct ring_pool pool;
    int cgroup_fd; /* owned: of options.cgroup_dir; -EBADF: none */
    int ops_fd;    /* owned: its `ops` */
    int devpts_fd; /* owned: directory of ptmx; -EBADF: /dev */
    struct urgency urgency;
    bool urgent; /* as last applied */
    struct control control;
    uint32_t layers; /* writable layers that were put over the image */
};

int server_init(struct server *s, const struct guest_options *options, bool is_init);
void server_done(struct server *s);

/* Everything between two waits: time-outs, the connection, output. Returns the next deadline. */
uint64_t server_turn(struct server *s, struct conn *const *conns, unsigned n_conns);
/* Turns until what is queued for the host is out, for some seconds: before the end. */
void server_flush(struct server *s, struct conn *const *conns, unsigned n_conns);
/* The conversation on `c` is over: nobody is attached any more. */
void server_conn_lost(struct server *s, struct conn *c);

/* One whole CONTROL or DATA frame of the host. */
struct frame;
void server_dispatch(struct server *s, struct conn *c, const struct frame *f);
