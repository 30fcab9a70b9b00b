#pragma once

#include <stddef.h>
#include <stdint.h>

struct archive_entry;

/*
 * Extended attributes of an entry in the form that EROFS keeps beside an inode, sorted, each padded
 * to 4 bytes; owned by the caller. Those that EROFS cannot hold, and those that mean something to
 * the host's or the guest's overlay file system, are left out. -E2BIG, -ENOMEM.
 */
int xattr_pack(struct archive_entry *entry, uint8_t **ret, size_t *ret_size);

/* The other way: adds what is packed to an entry. */
void xattr_unpack(const uint8_t *packed, size_t size, struct archive_entry *entry);
