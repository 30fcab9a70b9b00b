#pragma once

#include "api/native/native.h"

/*
 * A session's command that a client waits for, as a stream or for one answer. When the client goes
 * away only its view ends: the command goes on and can be attached again. The request is answered
 * in any case.
 */
void session_job_run(struct request *req, struct sandbox *sb, struct session *s,
                     const struct session_run_options *options);
/* Always a stream. from[1], from[2]: offsets already seen, 0: all. */
void session_job_attach(struct request *req, struct sandbox *sb, struct session *s,
                        uint64_t command, const uint64_t from[3]);
