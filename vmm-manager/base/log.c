#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

static const char *const level_names[] = {"error", "warning", "notice", "info", "debug"};

static _Atomic int max_level = LOG_LEVEL_INFO;
static _Atomic int use_json = -1; /* -1: not decided yet */

void log_set_level(enum log_level level)
{
    max_level = (int)level;
}

void log_set_json(bool json)
{
    use_json = json;
}

bool log_enabled(enum log_level level)
{
    return (int)level <= max_level;
}

int log_level_from_string(const char *s)
{
    for (size_t i = 0; i < ARRAY_SIZE(level_names); i++)
        if (strcmp(level_names[i], s) == 0)
            return (int)i;
    return -EINVAL;
}

/* Appends s to the line with control bytes (and in JSON quotes and backslashes) escaped. */
static size_t append(char *line, size_t n, size_t size, const char *s, bool json)
{
    for (; *s && n + 8 < size; s++) {
        unsigned char c = (unsigned char)*s;

        if (c < 0x20 || c == 0x7f)
            n += (size_t)snprintf(line + n, size - n, json ? "\\u%04x" : "\\x%02x", c);
        else if (json && (c == '"' || c == '\\'))
            n += (size_t)snprintf(line + n, size - n, "\\%c", c);
        else
            line[n++] = (char)c;
    }
    line[n] = '\0';
    return n;
}

static size_t append_field(char *line, size_t n, size_t size, const char *key, const char *value,
                           bool json)
{
    if (!value || n + 64 > size)
        return n;
    n += (size_t)snprintf(line + n, size - n, json ? ",\"%s\":\"" : " %s=", key);
    n = append(line, n, size - 8, value, json);
    if (json)
        n += (size_t)snprintf(line + n, size - n, "\"");
    return n;
}

int log_full(enum log_level level, int errnum, const char *sandbox, const char *session,
             const char *format, ...)
{
    char text[1024], line[2400], when[40];
    size_t n;
    bool json;
    va_list ap;

    if (!log_enabled(level))
        return -errnum;
    va_start(ap, format);
    (void)vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    if (errnum != 0) {
        n = strlen(text);
        (void)snprintf(text + n, sizeof(text) - n, ": %s", errno_text(errnum));
    }
    if (use_json < 0)
        use_json = !isatty(STDERR_FILENO);
    json = use_json != 0;
    clock_format_wall(clock_wall_usec(), when, sizeof(when));
    n = (size_t)snprintf(line, sizeof(line),
                         json ? "{\"time\":\"%s\",\"level\":\"%s\",\"message\":\"" : "%s %-7s ",
                         when, level_names[level]);
    n = append(line, n, sizeof(line) - 256, text, json);
    if (json)
        n += (size_t)snprintf(line + n, sizeof(line) - n, "\"");
    n = append_field(line, n, sizeof(line), "sandbox", sandbox, json);
    n = append_field(line, n, sizeof(line), "session", session, json);
    n += (size_t)snprintf(line + n, sizeof(line) - n, json ? "}\n" : "\n");
    /* One write a line, so that lines of several threads do not mix. A full pipe loses the line. */
    (void)!write(STDERR_FILENO, line, n);
    return -errnum;
}
