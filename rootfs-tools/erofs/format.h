#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The on-disk format of EROFS, as far as we write it. All numbers little endian. */
#define EROFS_BLOCK 4096u
#define EROFS_MAGIC 0xE0F5E1E2u
#define EROFS_SUPER_OFFSET 1024u
#define EROFS_COMPAT_CHECKSUM 1u
#define EROFS_COMPAT_MTIME 2u
#define EROFS_INODE_SIZE 64u
#define EROFS_XATTR_HEADER 12u
#define EROFS_DIRENT_SIZE 12u
#define EROFS_FLAT_PLAIN 0
#define EROFS_FLAT_INLINE 2
#define EROFS_CHUNK_BASED 4
#define EROFS_CHUNK_INDEXES 0x20u /* in i_u, with the bits of a chunk in blocks */
#define EROFS_INCOMPAT_CHUNKED_FILE 0x4u
#define EROFS_INCOMPAT_DEVICE_TABLE 0x8u
/* The device table lies behind the superblock, in the same block. */
#define EROFS_SLOT_SIZE 128u
#define EROFS_SLOTS_OFFSET (EROFS_SUPER_OFFSET + 128u)
#define EROFS_SLOTS_MAX ((EROFS_BLOCK - EROFS_SLOTS_OFFSET) / EROFS_SLOT_SIZE)
/* The same for all images: what tells them apart is their content. */
#define EROFS_UUID                                                                                 \
    {                                                                                              \
        'h', 'e', 'a', 'r', 't', 'h', 0x40, 0, 0x80, 0                                             \
    }

struct erofs_super {
    uint32_t magic;
    uint32_t checksum;
    uint32_t feature_compat;
    uint8_t blkszbits;
    uint8_t sb_extslots;
    uint16_t root_nid;
    uint64_t inos;
    uint64_t build_time;
    uint32_t build_time_nsec;
    uint32_t blocks;
    uint32_t meta_blkaddr;
    uint32_t xattr_blkaddr;
    uint8_t uuid[16];
    uint8_t volume_name[16];
    uint32_t feature_incompat;
    uint16_t compression;
    uint16_t extra_devices;
    uint16_t devt_slotoff;
    uint8_t reserved[38];
};
static_assert(sizeof(struct erofs_super) == 128, "superblock of EROFS");

struct erofs_inode_extended {
    uint16_t i_format; /* bit 0: extended; bits 1 to 3: where the data is */
    uint16_t i_xattr_icount;
    uint16_t i_mode;
    uint16_t i_reserved;
    uint64_t i_size;
    uint32_t i_u; /* first block, or device number */
    uint32_t i_ino;
    uint32_t i_uid;
    uint32_t i_gid;
    uint64_t i_mtime;
    uint32_t i_mtime_nsec;
    uint32_t i_nlink;
    uint8_t i_reserved2[16];
};
static_assert(sizeof(struct erofs_inode_extended) == EROFS_INODE_SIZE, "inode of EROFS");

struct erofs_dirent {
    uint64_t nid;
    uint16_t nameoff;
    uint8_t file_type;
    uint8_t reserved;
} __attribute__((packed));
static_assert(sizeof(struct erofs_dirent) == EROFS_DIRENT_SIZE, "dirent of EROFS");

/* One extra device. */
struct erofs_slot {
    uint8_t tag[64]; /* ours: the digest of the layer whose pack it is, in hexadecimal */
    uint32_t blocks;
    uint32_t mapped_blkaddr;
    uint8_t reserved[56];
};
static_assert(sizeof(struct erofs_slot) == EROFS_SLOT_SIZE, "device slot of EROFS");

/* Where a chunk of a file is; behind the inode, at a multiple of its size. */
struct erofs_chunk {
    uint16_t advise;
    uint16_t device_id; /* from 1; 0: the image itself */
    uint32_t blkaddr;
};
static_assert(sizeof(struct erofs_chunk) == 8, "chunk index of EROFS");

/* Is the file as long as its superblock says? It is not when the machine went down too early. */
bool erofs_is_whole(const char *path);
/* Block 0 of an image, with its device table and the checksum filled in. */
void erofs_super_block(const struct erofs_super *super, const struct erofs_slot *slots,
                       size_t n_slots, uint8_t block[static EROFS_BLOCK]);
