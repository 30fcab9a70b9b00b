#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Framing of the console. All integers little-endian.
 *
 *   u32 size      bytes of payload after the header
 *   u8  kind      enum frame_kind
 *   u8  stream    DATA: stream of the channel, else 0
 *   u16 magic     FRAME_MAGIC
 *   u32 channel
 *   u64 offset    DATA: offset of the first byte in the stream, else 0
 *
 * Theory of operation. A virtio-serial port has no connections: when the host's end is replaced,
 * stale bytes and half frames of the old one may precede the new one's, in both directions. So a
 * conversation starts with FRAME_SYNC, 16 bytes that no header can be mistaken for, followed at
 * once by a CONTROL frame with Hello (host) or HelloReply (guest). The host throws away everything
 * until it finds FRAME_SYNC and a HelloReply that repeats its random nonce. The guest's decoder is
 * either in step (headers follow each other; FRAME_SYNC at a header's place starts a new
 * conversation) or lost (a header was bad, or the host's end closed) and then skips to the next
 * FRAME_SYNC. A host that gets no reply sends FRAME_FLUSH_SIZE zero bytes and a new hello: the
 * zeros fill up whatever half frame the guest was in, the next header is bad, the hello is found.
 */
#define FRAME_HEADER_SIZE 20u
#define FRAME_MAGIC 0x7E48u
#define FRAME_SYNC_SIZE 16u
#define FRAME_DATA_MAX (64u * 1024u)      /* payload of DATA */
#define FRAME_CONTROL_MAX (1024u * 1024u) /* payload of CONTROL, host to guest */
#define FRAME_EVENT_MAX (64u * 1024u)     /* payload of CONTROL, guest to host */
#define FRAME_FLUSH_SIZE (FRAME_CONTROL_MAX + FRAME_HEADER_SIZE)
#define PROTOCOL_VERSION 1u
#define PROTOCOL_VSOCK_PORT 1024u
#define PROTOCOL_PORT_NAME "hearth.console" /* name of the virtio-serial port */

extern const uint8_t frame_sync[FRAME_SYNC_SIZE];

enum frame_kind {
    FRAME_CONTROL = 1,
    FRAME_DATA = 2,
};

struct frame {
    enum frame_kind kind;
    uint8_t stream;
    uint32_t channel;
    uint64_t offset;
    const uint8_t *payload; /* weak: into the decoder's input */
    uint32_t size;
};

/* Writes a header of FRAME_HEADER_SIZE bytes. */
void frame_encode_header(uint8_t out[FRAME_HEADER_SIZE], enum frame_kind kind, uint8_t stream,
                         uint32_t channel, uint64_t offset, uint32_t size);

enum frame_result {
    FRAME_MORE,   /* not a whole frame yet */
    FRAME_OK,     /* *ret is filled, *ret_used bytes are to be consumed after use */
    FRAME_SYNCED, /* FRAME_SYNC stood at a header's place: a new conversation begins after it */
    FRAME_BAD,    /* no frame can start here: the stream is out of step */
};

/*
 * Looks at the start of `data`. control_max is the receiver's limit for CONTROL payloads. Never
 * reads past size; never trusts a length before comparing it with its limit.
 */
enum frame_result frame_decode(const uint8_t *data, size_t size, uint32_t control_max,
                               struct frame *ret, size_t *ret_used);

/*
 * For a receiver that is lost: the number of bytes that certainly precede the next FRAME_SYNC.
 * *ret_found tells whether FRAME_SYNC itself stands right after them.
 */
size_t frame_skip_to_sync(const uint8_t *data, size_t size, bool *ret_found);
