#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/buf.h"

/* Output of a plain exec or run: the first bytes of stdout (1) and stderr (2). */
#define CAPTURE_NOTE_MAX 256u
struct capture {
    struct buf data[3];
    size_t max; /* of each */
    bool truncated[3];
};

void capture_init(struct capture *c, size_t max);
void capture_done(struct capture *c);
/* What does not fit is dropped and said so. */
void capture_add(struct capture *c, int stream, const void *data, size_t size);
/* A line of ours at the end of a stream, also of one that is full. Of all lines together at most
 * CAPTURE_NOTE_MAX bytes. */
void capture_note(struct capture *c, int stream, const char *line);
/* Adds truncated: {stdout, stderr}. */
void capture_truncated_to_json(const struct capture *c, json_t *object);
/* Adds stdout, stderr (or stdout_base64, stderr_base64) and truncated. */
void capture_to_json(const struct capture *c, json_t *object);
