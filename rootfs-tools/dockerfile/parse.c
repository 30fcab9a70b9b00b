#include "dockerfile/parse.h"

#include <assert.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/strv.h"

static const char *const names[] = {
    [INSTRUCTION_ADD] = "ADD",
    [INSTRUCTION_ARG] = "ARG",
    [INSTRUCTION_CMD] = "CMD",
    [INSTRUCTION_COPY] = "COPY",
    [INSTRUCTION_ENTRYPOINT] = "ENTRYPOINT",
    [INSTRUCTION_ENV] = "ENV",
    [INSTRUCTION_EXPOSE] = "EXPOSE",
    [INSTRUCTION_FROM] = "FROM",
    [INSTRUCTION_HEALTHCHECK] = "HEALTHCHECK",
    [INSTRUCTION_LABEL] = "LABEL",
    [INSTRUCTION_MAINTAINER] = "MAINTAINER",
    [INSTRUCTION_ONBUILD] = "ONBUILD",
    [INSTRUCTION_RUN] = "RUN",
    [INSTRUCTION_SHELL] = "SHELL",
    [INSTRUCTION_STOPSIGNAL] = "STOPSIGNAL",
    [INSTRUCTION_USER] = "USER",
    [INSTRUCTION_VOLUME] = "VOLUME",
    [INSTRUCTION_WORKDIR] = "WORKDIR",
};
static_assert(ARRAY_SIZE(names) == INSTRUCTION_TYPE_COUNT, "a name for each");

const char *instruction_name(enum instruction_type type)
{
    return names[type];
}

struct parser {
    const char *name; /* weak: of the file */
    const char *at, *end;
    unsigned line; /* of `at` */
    struct dockerfile *d;
    struct buf text; /* the instruction being read, lines joined */
};

static int fail(const struct parser *p, unsigned line, struct error *err, const char *what,
                const char *thing)
{
    return error_set_code(err, ERR_INVALID_ARGUMENT, "%s:%u: %s%.80s", p->name, line, what, thing);
}

static void instruction_done(struct instruction *in)
{
    (void)strv_free(in->flags);
    free(in->text);
    for (size_t i = 0; i < in->n_heredocs; i++) {
        free(in->heredocs[i].name);
        free(in->heredocs[i].content);
    }
    free(in->heredocs);
}

void dockerfile_done(struct dockerfile *d)
{
    for (size_t i = 0; i < d->n; i++)
        instruction_done(&d->instructions[i]);
    free(d->instructions);
    *d = (struct dockerfile){0};
}

/* ---- lines ---- */

/* The next line without its end; false: there is none. */
static bool next_line(struct parser *p, const char **ret, size_t *ret_size)
{
    const char *newline;
    size_t size;

    if (p->at >= p->end)
        return false;
    newline = memchr(p->at, '\n', (size_t)(p->end - p->at));
    size = (size_t)((newline ? newline : p->end) - p->at);
    *ret = p->at;
    p->at += newline ? size + 1 : size;
    p->line++;
    if (size > 0 && (*ret)[size - 1] == '\r')
        size--;
    *ret_size = size;
    return true;
}

static size_t blanks(const char *s, size_t size)
{
    size_t n = 0;

    while (n < size && (s[n] == ' ' || s[n] == '\t'))
        n++;
    return n;
}

static bool is_skipped(const char *s, size_t size)
{
    size_t n = blanks(s, size);

    return n == size || s[n] == '#';
}

/* An escape at the end, blanks aside, that is not escaped itself; *size is cut before it. */
static bool take_continuation(const struct parser *p, const char *s, size_t *size)
{
    size_t n = *size;

    while (n > 0 && (s[n - 1] == ' ' || s[n - 1] == '\t'))
        n--;
    if (n == 0 || s[n - 1] != p->d->escape || (n > 1 && s[n - 2] == p->d->escape))
        return false;
    *size = n - 1;
    return true;
}

/* # escape=` and the like, at the very top. False: that was no directive. */
static int take_directive(struct parser *p, const char *s, size_t size, struct error *err)
{
    static const char key[] = "escape";
    size_t n = blanks(s, size), k;

    if (n == size || s[n] != '#')
        return 0;
    n++;
    n += blanks(s + n, size - n);
    for (k = n; k < size && (s[k] == '-' || (s[k] | 32) >= 'a') && (s[k] | 32) <= 'z';)
        k++;
    if (k == n)
        return 0;
    size_t value = k + blanks(s + k, size - k);
    if (value >= size || s[value] != '=')
        return 0;
    value++;
    value += blanks(s + value, size - value);
    while (size > value && (s[size - 1] == ' ' || s[size - 1] == '\t'))
        size--;
    if (k - n != strlen(key) || strncasecmp(s + n, key, k - n) != 0)
        return 1; /* syntax, check: nothing to us */
    if (size - value != 1 || (s[value] != '\\' && s[value] != '`'))
        return fail(p, p->line, err, "the escape character can be \\ or `", "");
    p->d->escape = s[value];
    return 1;
}

static int take_directives(struct parser *p, struct error *err)
{
    const char *s, *before = p->at;
    size_t size;
    int r;

    while (next_line(p, &s, &size)) {
        r = take_directive(p, s, size, err);
        if (r < 0)
            return r;
        if (r == 0) {
            p->at = before;
            p->line--;
            break;
        }
        before = p->at;
    }
    return 0;
}

/* One instruction with its continued lines into p->text; 0: the file is over. */
static int next_instruction(struct parser *p, unsigned *ret_line, struct error *err)
{
    const char *s;
    size_t size;
    bool first = true, more = true;

    buf_clear(&p->text);
    while (more && next_line(p, &s, &size)) {
        size_t skip;

        if (is_skipped(s, size))
            continue;
        if (first)
            *ret_line = p->line;
        skip = first ? blanks(s, size) : 0;
        first = false;
        s += skip;
        size -= skip;
        more = take_continuation(p, s, &size);
        if (memchr(s, '\0', size))
            return fail(p, p->line, err, "there is a NUL byte", "");
        if (buf_append(&p->text, s, size) < 0)
            return fail(p, *ret_line, err, "the instruction is too long", "");
    }
    return !first;
}

/* ---- here-documents ---- */

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
}

/* `<<NAME`, `<<-NAME`, `<<"NAME"` at s: its name's place, or 0. */
static size_t heredoc_at(const char *s, const char **ret_name, bool *ret_tabs, bool *ret_expand)
{
    char quote = '\0';
    size_t n = 0;

    if (s[0] != '<' || s[1] != '<')
        return 0;
    s += 2;
    *ret_tabs = *s == '-';
    s += *ret_tabs;
    if (*s == '"' || *s == '\'')
        quote = *s++;
    while (is_word(s[n]))
        n++;
    if (n == 0 || s[0] == '-' || (quote && s[n] != quote))
        return 0;
    *ret_name = s;
    *ret_expand = !quote;
    return n;
}

static int read_heredoc(struct parser *p, const char *name, size_t n, bool tabs, bool expand,
                        unsigned line, struct instruction *in, struct error *err)
{
    struct heredoc *doc = &in->heredocs[in->n_heredocs];
    struct buf content;
    const char *s;
    size_t size;
    int r = 0;

    buf_init(&content, DOCKERFILE_BYTES_MAX);
    while (r == 0) {
        if (!next_line(p, &s, &size)) {
            r = fail(p, line, err, "there is no end to the here-document ", name);
            break;
        }
        while (tabs && size > 0 && *s == '\t') {
            s++;
            size--;
        }
        if (size == n && memcmp(s, name, n) == 0)
            break;
        if (memchr(s, '\0', size))
            r = fail(p, p->line, err, "there is a NUL byte", "");
        else if (buf_append(&content, s, size) < 0 || buf_append(&content, "\n", 1) < 0)
            r = fail(p, line, err, "the here-document is too long: ", name);
    }
    if (r == 0) {
        *doc = (struct heredoc){strndup(name, n), strdup(buf_string(&content)), expand};
        in->n_heredocs++;
        if (!doc->name || !doc->content)
            r = error_set(err, ENOMEM, "%s: out of memory", p->name);
    }
    buf_done(&content);
    return r;
}

static int take_heredocs(struct parser *p, struct instruction *in, struct error *err)
{
    char quote = '\0';
    bool start = true; /* of a word */
    int r = 0;

    if (in->type != INSTRUCTION_RUN && in->type != INSTRUCTION_COPY && in->type != INSTRUCTION_ADD)
        return 0;
    for (const char *s = in->text; *s && r == 0; s++) {
        bool tabs, expand;
        const char *name;
        size_t n;

        if (quote) {
            quote = *s == quote ? '\0' : quote;
        } else if (*s == '"' || *s == '\'') {
            quote = *s;
        } else if (*s == p->d->escape && s[1]) {
            s++;
        } else if (start && (n = heredoc_at(s, &name, &tabs, &expand)) > 0) {
            if (in->n_heredocs == DOCKERFILE_HEREDOCS_MAX)
                return fail(p, in->line, err, "there are too many here-documents", "");
            if (!in->heredocs)
                in->heredocs = calloc(DOCKERFILE_HEREDOCS_MAX, sizeof(in->heredocs[0]));
            if (!in->heredocs)
                return error_set(err, ENOMEM, "%s: out of memory", p->name);
            r = read_heredoc(p, name, n, tabs, expand, in->line, in, err);
            s = name + n - 1 + !expand;
        }
        start = !quote && (*s == ' ' || *s == '\t' || *s == ';' || *s == '&' || *s == '|' ||
                           (*s >= '0' && *s <= '9' && start));
    }
    return r;
}

/* ---- instructions ---- */

static int take_keyword(const struct parser *p, const char **s, struct instruction *in,
                        struct error *err)
{
    size_t n = strcspn(*s, " \t");

    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (strlen(names[i]) == n && strncasecmp(*s, names[i], n) == 0) {
            in->type = (enum instruction_type)i;
            *s += n + strspn(*s + n, " \t");
            return 0;
        }
    return error_set_code(err, ERR_INVALID_ARGUMENT, "%s:%u: unknown instruction '%.*s'", p->name,
                          in->line, (int)MIN(n, (size_t)40), *s);
}

static bool has_flags(enum instruction_type type)
{
    return type == INSTRUCTION_FROM || type == INSTRUCTION_RUN || type == INSTRUCTION_COPY ||
           type == INSTRUCTION_ADD || type == INSTRUCTION_HEALTHCHECK;
}

static int take_flags(const char **s, struct instruction *in)
{
    while (has_flags(in->type) && strncmp(*s, "--", 2) == 0) {
        size_t n = strcspn(*s, " \t");
        char *flag = strndup(*s + 2, n - 2);
        int r = flag ? strv_append(&in->flags, flag) : -ENOMEM;

        free(flag);
        if (r < 0)
            return r;
        *s += n + strspn(*s + n, " \t");
        if (n == 2)
            break;
    }
    return 0;
}

static int add_instruction(struct parser *p, unsigned line, struct error *err)
{
    struct dockerfile *d = p->d;
    const char *s = buf_string(&p->text);
    struct instruction *in, *more;
    size_t n;
    int r;

    if (d->n == DOCKERFILE_INSTRUCTIONS_MAX)
        return fail(p, line, err, "there are too many instructions", "");
    more = realloc(d->instructions, (d->n + 1) * sizeof(*more));
    if (!more)
        return error_set(err, ENOMEM, "%s: out of memory", p->name);
    d->instructions = more;
    in = &d->instructions[d->n++];
    *in = (struct instruction){.line = line};
    r = take_keyword(p, &s, in, err);
    if (r < 0)
        return r;
    if (take_flags(&s, in) < 0 || !(in->text = strdup(s)))
        return error_set(err, ENOMEM, "%s: out of memory", p->name);
    n = strlen(in->text);
    while (n > 0 && (in->text[n - 1] == ' ' || in->text[n - 1] == '\t'))
        in->text[--n] = '\0';
    if (n == 0)
        return error_set_code(err, ERR_INVALID_ARGUMENT, "%s:%u: %s: there is nothing behind it",
                              p->name, line, instruction_name(in->type));
    return take_heredocs(p, in, err);
}

int dockerfile_parse(const char *data, size_t size, const char *name, struct dockerfile *ret,
                     struct error *err)
{
    _cleanup_dockerfile_ struct dockerfile d = {.escape = '\\'};
    struct parser p = {.name = name, .at = data, .end = data + size, .d = &d};
    unsigned line = 1;
    int r;

    if (size > DOCKERFILE_BYTES_MAX)
        return error_set_code(err, ERR_LIMIT_EXCEEDED, "%s: has more than %zu bytes", name,
                              DOCKERFILE_BYTES_MAX);
    if (size >= 3 && memcmp(data, "\xef\xbb\xbf", 3) == 0)
        p.at += 3;
    buf_init(&p.text, DOCKERFILE_BYTES_MAX);
    r = take_directives(&p, err);
    while (r == 0) {
        r = next_instruction(&p, &line, err);
        if (r <= 0)
            break;
        r = add_instruction(&p, line, err);
    }
    buf_done(&p.text);
    if (r == 0 && d.n == 0)
        r = error_set_code(err, ERR_INVALID_ARGUMENT, "%s: there is no instruction in it", name);
    if (r < 0)
        return r;
    *ret = d;
    d = (struct dockerfile){0};
    return 0;
}

const char *instruction_flag(const struct instruction *in, const char *name)
{
    size_t n = strlen(name);

    for (size_t i = 0; in->flags && in->flags[i]; i++)
        if (strncmp(in->flags[i], name, n) == 0 && (in->flags[i][n] == '=' || !in->flags[i][n]))
            return in->flags[i] + n + (in->flags[i][n] == '=');
    return NULL;
}

const char *instruction_unknown_flag(const struct instruction *in, const char *const *known)
{
    for (size_t i = 0; in->flags && in->flags[i]; i++) {
        size_t n = strcspn(in->flags[i], "="), k = 0;

        while (known[k] && (strlen(known[k]) != n || strncmp(known[k], in->flags[i], n) != 0))
            k++;
        if (!known[k])
            return in->flags[i];
    }
    return NULL;
}

int instruction_exec_form(const struct instruction *in, char ***ret)
{
    _cleanup_strv_ char **v = NULL;
    json_t *json, *item;
    size_t i;
    int r = 1;

    if (in->text[0] != '[')
        return 0;
    json = json_loads(in->text, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_array(json))
        r = 0;
    json_array_foreach(json, i, item)
    {
        if (!json_is_string(item))
            r = 0;
        else if (r == 1 && strv_append(&v, json_string_value(item)) < 0)
            r = -ENOMEM;
    }
    json_decref(json);
    if (r == 1 && !v) {
        v = calloc(1, sizeof(*v));
        r = v ? 1 : -ENOMEM;
    }
    if (r == 1)
        *ret = TAKE_PTR(v);
    return r;
}
