#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * The guest's cgroup v2 tree: DIR/pN for each process of a request, DIR/ops for the file operations
 * of ours. Without a DIR (tests) there are no cgroups and the members of a tree are found by their
 * session in /proc, which a process can escape with setsid().
 */
#define CGROUP_PIDS_MAX 4096u

/* Makes DIR and its `ops`, with the memory and pids controllers on; returns its descriptor. */
int cgroup_open_tree(const char *dir);

struct cgroup_limits {
    uint64_t memory_bytes; /* 0: none */
    uint32_t pids;         /* 0: none */
};
/* Makes DIR/pID and returns its descriptor. */
int cgroup_create(int tree_fd, uint64_t id, const struct cgroup_limits *limits);
/* -EBUSY while somebody is in it. */
int cgroup_remove(int tree_fd, uint64_t id);

/* Writes a short text to a file of the cgroup. */
int cgroup_write(int cgroup_fd, const char *file, const char *text);
/* Value of `key` in a flat keyed file such as memory.events. */
int cgroup_read_key(int cgroup_fd, const char *file, const char *key, uint64_t *ret);
bool cgroup_oom_killed(int cgroup_fd);

/* Members of a cgroup, at most max. procs_fd keeps the list open for the next time; the caller
 * closes it. */
ssize_t cgroup_pids(int cgroup_fd, int *procs_fd, pid_t *pids, size_t max);
/* Pids of a session, from /proc. */
ssize_t session_pids(pid_t session, pid_t *pids, size_t max);
