#include "api/swerex/action.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strv.h"

#define EXPECT_LENGTH_MAX 4096u

/* 422, as for every body that is not what was expected. */
static bool refuse(struct action *a, const char *what)
{
    request_answer(a->req, 422, json_pack("{s:s}", "detail", what));
    return false;
}

static bool flag(const json_t *body, const char *key)
{
    return json_is_true(json_object_get(body, key));
}

/* Regular expressions, as far as POSIX has them; what is none is looked for as it stands. */
static bool add_expect(struct action *a, const char *text)
{
    size_t i = a->n_expect;
    struct buf literal;
    int r = 0;

    if (strlen(text) > EXPECT_LENGTH_MAX)
        return refuse(a, "expect: too long");
    a->expect_text[i] = strdup(text);
    if (!a->expect_text[i])
        return refuse(a, "out of memory");
    if (regcomp(&a->expect[i], text, REG_EXTENDED | REG_NEWLINE) == 0) {
        a->n_expect++;
        return true;
    }
    buf_init(&literal, 2 * EXPECT_LENGTH_MAX + 1);
    for (const char *p = text; *p && r >= 0; p++)
        r = buf_printf(&literal, "%s%c", strchr(".[]{}()*+?^$|\\", *p) ? "\\" : "", *p);
    r = r < 0 ? r : regcomp(&a->expect[i], buf_string(&literal), REG_EXTENDED | REG_NEWLINE);
    buf_done(&literal);
    if (r != 0) {
        free(a->expect_text[i]);
        return refuse(a, "expect: not a regular expression");
    }
    a->n_expect++;
    return true;
}

static bool decode_expect(struct action *a, const json_t *list)
{
    json_t *entry;
    size_t i;

    if (json_array_size(list) > ACTION_EXPECT_MAX)
        return refuse(a, "expect: too many");
    json_array_foreach(list, i, entry)
    {
        if (!json_is_string(entry) || !add_expect(a, json_string_value(entry)))
            return json_is_string(entry) ? false : refuse(a, "expect: not a list of texts");
    }
    return true;
}

static bool decode_command(struct action *a, const json_t *body)
{
    const json_t *command = json_object_get(body, "command");
    const char *check = json_string_value(json_object_get(body, "check"));
    const char *message = json_string_value(json_object_get(body, "error_msg"));
    bool interactive = flag(body, "is_interactive_command"),
         quit = flag(body, "is_interactive_quit");

    if (!json_is_string(command) ||
        strlen(json_string_value(command)) != json_string_length(command))
        return refuse(a, "command: not a text without NUL");
    if (interactive && quit)
        return refuse(a, "is_interactive_command and is_interactive_quit: one of them");
    a->kind = interactive ? ACTION_INTERACTIVE : quit ? ACTION_QUIT : ACTION_COMMAND;
    a->check = check && strcmp(check, "silent") == 0   ? CHECK_SILENT
               : check && strcmp(check, "ignore") == 0 ? CHECK_IGNORE
                                                       : CHECK_RAISE;
    if (string_set(&a->command, json_string_value(command)) < 0 ||
        (message && message[0] && string_set(&a->error_msg, message) < 0))
        return refuse(a, "out of memory");
    return true;
}

bool action_decode(struct action *a, const json_t *body)
{
    const char *type = json_string_value(json_object_get(body, "action_type"));
    const json_t *timeout = json_object_get(body, "timeout");
    const json_t *retries = json_object_get(body, "n_retry");

    if (timeout && !json_is_null(timeout) &&
        (!json_is_number(timeout) || json_number_value(timeout) < 0 ||
         json_number_value(timeout) > 1e6))
        return refuse(a, "timeout: not a number of seconds");
    a->timeout_sec = json_is_number(timeout) ? json_number_value(timeout) : -1.0;
    if (type && strcmp(type, "bash_interrupt") == 0) {
        a->kind = ACTION_INTERRUPT;
        if (a->timeout_sec < 0)
            a->timeout_sec = 0.2;
        a->retries = json_is_integer(retries) && json_integer_value(retries) > 0 &&
                             json_integer_value(retries) < 1000
                         ? (unsigned)json_integer_value(retries)
                         : 3;
    } else if (!decode_command(a, body)) {
        return false;
    }
    return decode_expect(a, json_object_get(body, "expect"));
}
