#pragma once

#include <stddef.h>
#include <stdint.h>

/*
 * A file that is written from front to end, with gaps that stay holes. Small pieces go through a
 * buffer; large ones from another file are copied by the kernel, by reference where the file
 * system can.
 */
struct sink {
    int fd;          /* owned */
    uint8_t *buffer; /* owned */
    size_t used;
    uint64_t start; /* place of the buffer in the file */
};

int sink_open(struct sink *s, const char *path); /* creates it */
void sink_done(struct sink *s);
/* The next byte goes here; not before what was written. */
int sink_at(struct sink *s, uint64_t offset);
int sink_put(struct sink *s, const void *data, size_t size);
int sink_copy(struct sink *s, int from_fd, uint64_t from, uint64_t size);
int sink_finish(struct sink *s); /* to the place of the next byte, also if it is in a hole */
