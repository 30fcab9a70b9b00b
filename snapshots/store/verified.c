#include "store/verified.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "store/blake.h"

#define VERIFIED_MAX 256u
#define TICK_USEC (20 * USEC_PER_MSEC) /* at most, of the times of files */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    struct stat st;
    char digest[DIGEST_TEXT_SIZE];
} files[VERIFIED_MAX];
static unsigned next;

bool verified_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

bool verified_has(const struct stat *st, const char *digest)
{
    bool found = false;

    (void)pthread_mutex_lock(&lock);
    for (size_t i = 0; i < VERIFIED_MAX && !found; i++)
        found = files[i].digest[0] && verified_same(&files[i].st, st) &&
                strcmp(files[i].digest, digest) == 0;
    (void)pthread_mutex_unlock(&lock);
    return found;
}

void verified_add(const struct stat *st, const char *digest)
{
    uint64_t changed =
        (uint64_t)st->st_ctim.tv_sec * USEC_PER_SEC + (uint64_t)st->st_ctim.tv_nsec / 1000;

    /* A write that comes now could have the same time: such a file is read again. */
    if (clock_wall_usec() < changed + TICK_USEC)
        return;
    (void)pthread_mutex_lock(&lock);
    files[next].st = *st;
    (void)snprintf(files[next].digest, sizeof(files[next].digest), "%s", digest);
    next = (next + 1) % VERIFIED_MAX;
    (void)pthread_mutex_unlock(&lock);
}
