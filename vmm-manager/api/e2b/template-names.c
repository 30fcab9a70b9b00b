#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/e2b/template-build.h"
#include "base/strv.h"

/* Names of E2B's templates and what they are called here. */

static bool is_word(const char *text, size_t size)
{
    return size > 0 && text[0] != '-' &&
           strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_-") >= size;
}

int e2b_name_parse(const char *text, char name[static E2B_NAME_SIZE],
                   char tag[static E2B_NAME_SIZE], struct error *err)
{
    size_t size = strcspn(text, ":");
    const char *behind = text[size] == ':' ? text + size + 1 : "";

    if (!is_word(text, size) || (text[size] == ':' && !is_word(behind, strlen(behind))) ||
        size + strlen(behind) > 50)
        return error_set(err, EINVAL,
                         "'%.64s' is not NAME or NAME:TAG of a-z, 0-9, '_' and '-', with at most "
                         "50 characters",
                         text);
    (void)snprintf(name, E2B_NAME_SIZE, "%.*s", (int)size, text);
    (void)snprintf(tag, E2B_NAME_SIZE, "%s", behind);
    return 0;
}

int e2b_name_full(const char *name, const char *tag, char ret[static E2B_NAME_SIZE],
                  struct error *err)
{
    if (!is_word(tag, strlen(tag)) ||
        (size_t)snprintf(ret, E2B_NAME_SIZE, E2B_TEMPLATE_PREFIX "%s.%s", name, tag) >=
            E2B_NAME_SIZE)
        return error_set(err, EINVAL, "'%.64s' is not a tag of a-z, 0-9, '_' and '-'", tag);
    return 0;
}

const char *e2b_name_shown(const char *template, char ret[static E2B_NAME_SIZE])
{
    size_t prefix = strlen(E2B_TEMPLATE_PREFIX), size;
    const char *tag;

    if (!string_starts_with(template, E2B_TEMPLATE_PREFIX))
        return NULL;
    size = strcspn(template + prefix, ".");
    tag = template + prefix + size;
    if (*tag != '.')
        return NULL;
    tag++;
    if (strcmp(tag, E2B_TAG_DEFAULT) == 0)
        (void)snprintf(ret, E2B_NAME_SIZE, "%.*s", (int)size, template + prefix);
    else
        (void)snprintf(ret, E2B_NAME_SIZE, "%.*s:%s", (int)size, template + prefix, tag);
    return ret;
}

bool e2b_template_find(struct api_e2b *e2b, const char *text, char ret[static E2B_NAME_SIZE])
{
    char name[E2B_NAME_SIZE], tag[E2B_NAME_SIZE];
    struct error err = {0};
    json_t *json;

    if (e2b_name_parse(text, name, tag, &err) < 0 ||
        e2b_name_full(name, tag[0] ? tag : E2B_TAG_DEFAULT, ret, &err) < 0)
        return false;
    json = core_template_to_json(e2b->core, ret, NULL);
    json_decref(json);
    return json != NULL;
}
