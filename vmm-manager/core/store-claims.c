#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/strv.h"
#include "core/store-private.h"

/*
 * Theory of operation. Somebody waits for a claim, and a transaction of SQLite costs as much as all
 * the rest of one. So a claim is noted with one write to a file of its own, FILE-claims, which a
 * crash of the daemon does not take away, and its row is written by store_fold() a moment later:
 * many at once, or when the store is opened again. Between the two the row is still marked as the
 * pool's; a row without the mark has been written since by somebody who knew more, so a note of it
 * changes nothing any more and may stay for as long as it likes. The file is emptied after a fold.
 *
 * A note is a line of fields with tabs between them, none of which can hold a tab or a line's end
 * (the specification is JSON), and the checksum of all before it: what a crash of the host has torn
 * is not taken for a claim.
 */
#define FIELDS 6u /* id, created, identity, timings, spec, checksum */

static uint64_t checksum(const char *text, size_t size)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */

    for (size_t i = 0; i < size; i++)
        hash = (hash ^ (uint8_t)text[i]) * UINT64_C(0x100000001b3);
    return hash;
}

int store_claim_encode(struct buf *b, const struct sandbox_row *row)
{
    size_t before = b->size;
    int r = buf_printf(b, "%s\t%" PRIu64 "\t%s\t%s\t%s\t", row->id, row->created_wall_usec,
                       row->identity, row->timings, row->spec);

    if (r >= 0)
        r = buf_printf(b, "%016" PRIx64 "\n",
                       checksum((const char *)buf_data(b) + before, b->size - before));
    if (r < 0)
        b->size = before;
    return r;
}

/* The fields of a line, still joined. */
static bool split(char *line, char *fields[static FIELDS])
{
    unsigned n = 0;

    fields[n++] = line;
    for (char *c = line; *c; c++) {
        if (*c != '\t')
            continue;
        if (n == FIELDS)
            return false;
        fields[n++] = c + 1;
    }
    return n == FIELDS;
}

int store_claim_decode(char *line, struct sandbox_row *ret)
{
    char *fields[FIELDS], expected[17];
    uint64_t created;

    if (!split(line, fields))
        return -EBADMSG;
    (void)snprintf(expected, sizeof(expected), "%016" PRIx64,
                   checksum(line, (size_t)(fields[FIELDS - 1] - line)));
    if (strcmp(fields[FIELDS - 1], expected) != 0)
        return -EBADMSG;
    for (unsigned i = 1; i < FIELDS; i++)
        fields[i][-1] = '\0';
    if (!fields[0][0] || parse_u64(fields[1], 0, INT64_MAX, &created) < 0)
        return -EBADMSG;
    *ret = (struct sandbox_row){
        .id = fields[0],
        .created_wall_usec = created,
        .identity = fields[2],
        .timings = fields[3],
        .spec = fields[4],
    };
    return 0;
}

static int update(struct store *s, const struct sandbox_row *row, struct error *err)
{
    sqlite3_stmt *st = s->statements[STATEMENT_SANDBOX_CLAIM];

    store_bind_text(st, 1, row->id);
    store_bind_text(st, 2, row->spec);
    store_bind_text(st, 3, row->timings);
    store_bind_u64(st, 4, row->created_wall_usec);
    store_bind_text(st, 5, row->identity);
    return store_run(s, STATEMENT_SANDBOX_CLAIM, err);
}

/* ---- notes ---- */

static int note(struct store *s, const struct sandbox_row *row)
{
    size_t before = s->claims.size, size;
    ssize_t n = -1;
    int r = fault_at("claim-note");

    if (r >= 0)
        r = store_claim_encode(&s->claims, row);
    if (r < 0)
        return r;
    size = s->claims.size - before;
    if (s->claims_bytes + size <= STORE_CLAIMS_MAX)
        n = pwrite(s->claims_fd, buf_data(&s->claims) + before, size, (off_t)s->claims_bytes);
    if (n == (ssize_t)size) {
        s->claims_bytes += size;
        return 0;
    }
    s->claims.size = before;
    (void)!ftruncate(s->claims_fd, (off_t)s->claims_bytes);
    return -EIO;
}

int store_sandbox_claim(struct store *s, const struct sandbox_row *row, struct error *err)
{
    /* Without room for a note the row is written at once. */
    return note(s, row) >= 0 ? 0 : update(s, row, err);
}

/* The rows of all notes; the buffer is taken apart on the way. */
static int write_rows(struct store *s, struct buf *notes, struct error *err)
{
    char *line = (char *)buf_data(notes), *end;
    int r = 0;

    for (; r >= 0 && *line; line = end + 1) {
        struct sandbox_row row;

        end = strchr(line, '\n');
        if (end)
            *end = '\0';
        if (!end || store_claim_decode(line, &row) < 0)
            log_warning("store: a note of a claim is damaged, ignoring");
        else
            r = update(s, &row, err);
        if (!end)
            break;
    }
    return r;
}

static int fold(struct store *s, struct error *err)
{
    _cleanup_buf_ struct buf notes = {0};
    int rc, r;

    buf_init(&notes, STORE_CLAIMS_MAX);
    r = buf_append(&notes, buf_data(&s->claims), s->claims.size);
    if (r < 0)
        return error_set(err, -r, "store: %s", errno_text(-r));
    rc = sqlite3_exec(s->db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (rc != SQLITE_OK)
        return store_error(s, rc, "begin", err);
    r = write_rows(s, &notes, err);
    if (r >= 0) {
        rc = sqlite3_exec(s->db, "COMMIT", NULL, NULL, NULL);
        r = rc == SQLITE_OK ? 0 : store_error(s, rc, "commit", err);
    }
    if (r < 0)
        (void)sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    return r;
}

int store_fold(struct store *s, struct error *err)
{
    int r;

    if (s->claims.size == 0)
        return 0;
    r = fold(s, err);
    if (r < 0)
        return r;
    buf_clear(&s->claims);
    if (ftruncate(s->claims_fd, 0) == 0)
        s->claims_bytes = 0;
    return 0;
}

/* ---- life ---- */

int store_claims_open(struct store *s, const char *path, struct error *err)
{
    _cleanup_free_ char *file = string_printf("%s-claims", path);
    struct stat st = {0};
    uint8_t *room;
    size_t size;
    ssize_t n;
    int r;

    buf_init(&s->claims, STORE_CLAIMS_MAX);
    if (!file)
        return error_set(err, ENOMEM, "store: out of memory");
    s->claims_fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->claims_fd < 0 || fstat(s->claims_fd, &st) < 0)
        return error_set(err, errno, "store: '%s': %s", file, errno_text(errno));
    size = MIN((size_t)st.st_size, STORE_CLAIMS_MAX);
    r = buf_reserve(&s->claims, size, &room);
    if (r < 0)
        return error_set(err, -r, "store: %s", errno_text(-r));
    n = fd_read_full(s->claims_fd, room, size);
    if (n < 0)
        return error_set(err, (int)-n, "store: '%s': %s", file, errno_text((int)-n));
    buf_commit(&s->claims, (size_t)n);
    s->claims_bytes = (uint64_t)n;
    return store_fold(s, err);
}

void store_claims_close(struct store *s)
{
    struct error err = {0};

    if (s->claims_fd >= 0 && store_fold(s, &err) < 0)
        log_warning("Failed to write the rows of claims: %s; the next daemon does", err.text);
    s->claims_fd = fd_close(s->claims_fd);
    buf_done(&s->claims);
}
