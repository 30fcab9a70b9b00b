#pragma once

#include <jansson.h>
#include <stdint.h>

#include "base/clock.h"
#include "cli/cli.h"

/* Requests to the daemon in terms of docs/API.md. All of them block, and start the daemon on
 * demand. */

#define CLIENT_BODY_MAX ((size_t)64 * 1024 * 1024)
#define CLIENT_SILENCE_USEC (120 * USEC_PER_SEC)
/* Building a template or importing an image may say nothing for this long. */
#define CLIENT_WORK_SILENCE_USEC (1800 * USEC_PER_SEC)

/* Path with each "{}" replaced by the next argument, percent-encoded; NULL when out of memory. */
char *client_path(const char *pattern, ...);

/*
 * One request with a JSON body (NULL: none; borrowed) and a JSON answer in *ret (owned by the
 * caller; NULL after 204). ret may be NULL. A status of 400 or more becomes the error it carries.
 */
int client_call(struct cli *cli, const char *method, const char *path, json_t *body, json_t **ret,
                struct error *err);

/* The same for a command that may say nothing for long; `silence_usec` as in struct http_request.
 */
int client_call_long(struct cli *cli, const char *method, const char *path, json_t *body,
                     uint64_t silence_usec, json_t **ret, struct error *err);

/* Sends a request and leaves the body of a good answer to be read from cli->http. */
int client_open(struct cli *cli, struct http_request *request, struct error *err);

/*
 * A request whose answer is a progress report in NDJSON that ends with an object under `key`, given
 * to *ret. Draws progress.
 */
int client_work(struct cli *cli, const char *path, json_t *body, const char *key, json_t **ret,
                struct error *err);

/* A request that upgrades. Gives the socket (owned by the caller) and the bytes already received.
 */
int client_upgrade(struct cli *cli, const char *path, json_t *body, int *ret_fd,
                   struct buf *ret_rest, struct error *err);

/* The error in an {"code", "message"} object; always negative. */
int client_error(const json_t *json, struct error *err);

/* String member of an object; "" when absent or of another type. */
const char *client_string(const json_t *json, const char *key);
/* Prints a value to stdout, one line for each level. */
int client_print_json(const json_t *json);
