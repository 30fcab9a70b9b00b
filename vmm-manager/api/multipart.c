#include "api/multipart.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/*
 * Theory of operation. Content ends with CRLF, "--" and the boundary. A delimiter holds one CR, its
 * first byte, so when a match breaks off after k bytes, those k bytes are content and the next
 * match can begin at the earliest with the byte that broke it: no more than a count has to be kept.
 * The first delimiter may stand at the very beginning, without its CRLF.
 */

/* The value of a parameter of a header: quoted or not. False: it is not there. */
static bool parameter(const char *header, const char *name, char *ret, size_t size)
{
    const char *p = strchr(header, ';');
    size_t n = 0;

    while (p) {
        size_t length;

        p += 1 + strspn(p + 1, " \t");
        length = strcspn(p, "=;");
        if (p[length] == '=' && length == strlen(name) && strncasecmp(p, name, length) == 0) {
            p += length + 1;
            bool quoted = *p == '"';

            p += quoted;
            while (*p && (quoted ? *p != '"' : !strchr("; \t", *p)) && n + 1 < size) {
                if (quoted && *p == '\\' && (p[1] == '"' || p[1] == '\\'))
                    p++;
                ret[n++] = *p++;
            }
            ret[n] = '\0';
            return n + 1 < size;
        }
        /* Over its value, which may be quoted and hold anything. */
        p += length;
        if (*p == '=' && p[1] == '"') {
            for (p += 2; *p && *p != '"'; p++) {
                if (*p == '\\' && p[1])
                    p++;
            }
        }
        p = strchr(p, ';');
    }
    return false;
}

int multipart_init(struct multipart *m, const char *content_type, const struct multipart_ops *ops,
                   void *owner, struct error *err)
{
    char boundary[MULTIPART_BOUNDARY_MAX + 1];

    *m = (struct multipart){.ops = ops, .owner = owner};
    if (strncasecmp(content_type, "multipart/form-data", strlen("multipart/form-data")) != 0)
        return error_set(err, EINVAL, "'%.64s': not multipart/form-data", content_type);
    if (!parameter(content_type, "boundary", boundary, sizeof(boundary)) || boundary[0] == '\0' ||
        strpbrk(boundary, "\r\n"))
        return error_set(err, EINVAL, "multipart/form-data without a boundary");
    m->n_delimiter = (size_t)snprintf(m->delimiter, sizeof(m->delimiter), "\r\n--%s", boundary);
    m->matched = 2; /* as if a line had just ended */
    buf_init(&m->line, MULTIPART_HEADERS_MAX);
    return 0;
}

void multipart_done(struct multipart *m)
{
    buf_done(&m->line);
}

static const char *header_value(char *line, const char *name)
{
    size_t length = strlen(name);

    if (strncasecmp(line, name, length) != 0 || line[length] != ':')
        return NULL;
    return line + length + 1 + strspn(line + length + 1, " \t");
}

/* The headers of a part are whole: an empty line ended them. */
static int begin_part(struct multipart *m, struct error *err)
{
    _cleanup_free_ char *name = calloc(1, MULTIPART_NAME_MAX),
                        *filename = calloc(1, MULTIPART_NAME_MAX);
    struct multipart_part part = {0};
    char *save = (char *)buf_data(&m->line);

    if (!name || !filename)
        return error_set(err, ENOMEM, "out of memory");
    if (memchr(save, '\0', m->line.size))
        return error_set(err, EINVAL, "a part's headers have a NUL byte");
    if (++m->parts > MULTIPART_PARTS_MAX)
        return error_set(err, E2BIG, "more than %u parts", MULTIPART_PARTS_MAX);
    while (*save) {
        size_t length = strcspn(save, "\r\n");
        char *line = save;
        const char *value;

        save += length + strspn(save + length, "\r\n");
        line[length] = '\0';
        value = header_value(line, "Content-Disposition");
        if (!value)
            continue;
        (void)parameter(value, "name", name, MULTIPART_NAME_MAX);
        if (parameter(value, "filename", filename, MULTIPART_NAME_MAX))
            part.filename = filename;
    }
    part.name = name;
    buf_clear(&m->line);
    m->state = MULTIPART_CONTENT;
    m->matched = 0;
    return m->ops->begin(m->owner, &part, err) ? 0 : -err->errnum;
}

static ssize_t take_headers(struct multipart *m, const uint8_t *data, size_t size,
                            struct error *err)
{
    for (size_t i = 0; i < size; i++) {
        const char *text;
        size_t n;
        int r;

        if (buf_append(&m->line, &data[i], 1) < 0)
            return error_set(err, E2BIG, "a part's headers have more than %u bytes",
                             MULTIPART_HEADERS_MAX);
        text = buf_string(&m->line);
        n = m->line.size;
        if (data[i] != '\n' || !((n == 2 && memcmp(text, "\r\n", 2) == 0) ||
                                 (n >= 4 && memcmp(text + n - 4, "\r\n\r\n", 4) == 0)))
            continue;
        r = begin_part(m, err);
        return r < 0 ? r : (ssize_t)(i + 1);
    }
    return (ssize_t)size;
}

/* After a delimiter: CRLF begins a part, "--" ends it all; blanks may stand before the CRLF. */
static ssize_t take_boundary(struct multipart *m, const uint8_t *data, size_t size,
                             struct error *err)
{
    for (size_t i = 0; i < size; i++) {
        if (buf_append(&m->line, &data[i], 1) < 0 || m->line.size > 64)
            return error_set(err, EINVAL, "a boundary that does not end");
        const char *text = buf_string(&m->line);

        if (m->line.size >= 2 && memcmp(text, "--", 2) == 0) {
            buf_clear(&m->line);
            m->state = MULTIPART_EPILOGUE;
            return (ssize_t)(i + 1);
        }
        if (data[i] == '\n') {
            if (strspn(text, " \t\r\n") != m->line.size)
                return error_set(err, EINVAL, "bytes behind a boundary");
            buf_clear(&m->line);
            m->state = MULTIPART_HEADERS;
            return (ssize_t)(i + 1);
        }
    }
    return (ssize_t)size;
}

/* Content, or what stands before the first delimiter and is nobody's. */
static size_t give(struct multipart *m, const uint8_t *data, size_t size)
{
    return m->state == MULTIPART_CONTENT ? m->ops->data(m->owner, data, size) : size;
}

/* Bytes of a delimiter that was none. False: not all were taken. */
static bool pay(struct multipart *m)
{
    while (m->owed > 0) {
        size_t n = give(m, (const uint8_t *)m->delimiter + m->matched - m->owed, m->owed);

        if (n == 0)
            return false;
        m->owed -= n;
    }
    m->matched = 0;
    return true;
}

static ssize_t take_content(struct multipart *m, const uint8_t *data, size_t size,
                            struct error *err)
{
    size_t i = 0;

    while (i < size) {
        if (m->owed > 0 && !pay(m))
            return (ssize_t)i;
        if (m->matched == 0) {
            const uint8_t *cr = memchr(data + i, '\r', size - i);
            size_t n = (size_t)((cr ? cr : data + size) - (data + i)), used;

            used = n > 0 ? give(m, data + i, n) : 0;
            i += used;
            if (used < n || i == size)
                return (ssize_t)i;
        }
        if (data[i] == (uint8_t)m->delimiter[m->matched]) {
            i++;
            if (++m->matched < m->n_delimiter)
                continue;
            m->matched = 0;
            if (m->state == MULTIPART_CONTENT && !m->ops->end(m->owner, err))
                return -err->errnum;
            m->state = MULTIPART_BOUNDARY;
            return (ssize_t)i;
        }
        m->owed = m->matched;
    }
    return (ssize_t)i;
}

ssize_t multipart_feed(struct multipart *m, const uint8_t *data, size_t size, struct error *err)
{
    size_t done = 0;

    while (done < size) {
        enum multipart_state was = m->state;
        ssize_t n;

        switch (m->state) {
        case MULTIPART_PREAMBLE:
        case MULTIPART_CONTENT:
            n = take_content(m, data + done, size - done, err);
            break;
        case MULTIPART_BOUNDARY:
            n = take_boundary(m, data + done, size - done, err);
            break;
        case MULTIPART_HEADERS:
            n = take_headers(m, data + done, size - done, err);
            break;
        default:
            return (ssize_t)size; /* the epilogue is nobody's */
        }
        if (n < 0)
            return n;
        if (n == 0)
            break;
        done += (size_t)n;
        if (was == MULTIPART_CONTENT && m->state == MULTIPART_BOUNDARY)
            break;
    }
    return (ssize_t)done;
}

int multipart_finish(const struct multipart *m, struct error *err)
{
    if (m->state != MULTIPART_EPILOGUE)
        return error_set(err, EINVAL, "the body ended before its last boundary");
    return 0;
}
