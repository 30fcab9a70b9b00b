#pragma once

#include "api/native/native.h"

/*
 * A process that a client waits for, in one of three ways: its output goes to a stream, is captured
 * for one answer, or (detached) nobody wants more than its number. A client that goes away hangs up
 * on the process: SIGHUP to its tree, SIGKILL after EXEC_HANGUP_USEC, and the job stays until it
 * has ended.
 */
#define EXEC_HANGUP_USEC (5 * USEC_PER_SEC)

enum exec_job_kind {
    EXEC_JOB_STREAM,
    EXEC_JOB_CAPTURE,
    EXEC_JOB_DETACH,
};

struct exec_job_options {
    enum exec_job_kind kind;
    bool keep; /* goes on when the client goes away */
    bool tty;
};

/* Starts a process for the request, which is answered in any case. */
void exec_job_start(struct request *req, struct sandbox *sb, struct console *c,
                    const struct exec_spec *spec, const struct exec_job_options *options);
/* Streams a process that exists; the client's end never harms it. from: NULL or offsets seen. */
void exec_job_attach(struct request *req, struct sandbox *sb, struct console *c,
                     uint64_t process_id, const uint64_t *from);

/* The daemon ends: processes go on in their guests. */
void exec_jobs_free(struct api_native *api);

/* {exit_code, duration_ms, timed_out, oom_killed, signal?, truncated, process_id} */
json_t *exec_result_to_json(const struct exec_exit *exit, uint64_t process_id,
                            const bool truncated[3]);
