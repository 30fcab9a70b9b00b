#pragma once

#include <stdbool.h>
#include <stdint.h>

/* One range of bytes of a thing, as a Range header asks for it (RFC 9110, section 14). */
struct byte_range {
    uint64_t offset, length;
};

/*
 * 1: this part of `size` bytes. 0: there is no header, or it is to be ignored (another unit,
 * several ranges, not understood): the whole. -ERANGE: nothing of it is there (416).
 */
int byte_range_parse(const char *header, uint64_t size, struct byte_range *ret);
