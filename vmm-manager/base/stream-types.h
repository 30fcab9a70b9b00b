#pragma once

/*
 * Frames of an upgraded connection between daemon and command line, as docs/API.md has them under
 * "Streams": u8 type, three zero bytes, u32 size, payload.
 */
enum stream_type {
    STREAM_STDIN = 0,
    STREAM_STDOUT = 1,
    STREAM_STDERR = 2,
    STREAM_STDIN_EOF = 3,
    STREAM_RESIZE = 4,
    STREAM_SIGNAL = 5,
    STREAM_STARTED = 6,
    STREAM_EXIT = 7,
    STREAM_ERROR = 8,
    STREAM_WINDOW = 9,
};

#define STREAM_HEADER_SIZE 8u
#define STREAM_PAYLOAD_MAX 65536u
