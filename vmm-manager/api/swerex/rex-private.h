#pragma once

#include "api/http.h"
#include "api/swerex/rex.h"
#include "base/loop.h"
#include "core/core.h"

#define REX_SESSIONS_MAX 4096u

struct rex_shell;

struct api_swerex {
    struct core *core;        /* weak */
    struct loop *loop;        /* weak */
    struct rex_shell *shells; /* owned list */
    unsigned n_shells;
};

static inline struct api_swerex *rex_of(const struct request *req)
{
    return (struct api_swerex *)request_context(req);
}

/* The sandbox that the path names and its console; NULL: the answer is out. */
struct console *rex_console(struct request *req, struct sandbox **ret_sb);

/*
 * 511 with what the client raises: class_path such as "swerex.exceptions.CommandTimeoutError";
 * extra_consume may be NULL.
 */
void rex_raise(struct request *req, const char *class_path, const char *message,
               json_t *extra_consume);
/* The same for an error of ours. */
void rex_raise_error(struct request *req, const struct error *err);

/* handlers */
void handle_rex_create_session(struct request *req);
void handle_rex_run(struct request *req);
void handle_rex_close_session(struct request *req);
void handle_rex_close(struct request *req);
void handle_rex_execute(struct request *req);
void handle_rex_read_file(struct request *req);
void handle_rex_write_file(struct request *req);
void handle_rex_upload(struct request *req);
void rex_shells_free(struct api_swerex *rex);
