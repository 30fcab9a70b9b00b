#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/buf.h"

/* Output of a plain exec or run: the first CAPTURE_MAX bytes of stdout (1) and stderr (2). */
struct capture {
    struct buf data[3];
    bool truncated[3];
};

void capture_init(struct capture *c);
void capture_done(struct capture *c);
/* What does not fit is dropped and said so. */
void capture_add(struct capture *c, int stream, const void *data, size_t size);
/* Adds truncated: {stdout, stderr}. */
void capture_truncated_to_json(const struct capture *c, json_t *object);
/* Adds stdout, stderr (or stdout_base64, stderr_base64) and truncated. */
void capture_to_json(const struct capture *c, json_t *object);
