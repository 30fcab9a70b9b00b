#include "dockerfile/ignore.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

/*
 * Theory of operation. A pattern becomes a row of tokens; matching keeps the set of tokens that the
 * path read so far may stand before, so no pattern takes longer than its length times the path's.
 */
enum token_type {
    TOKEN_BYTE,
    TOKEN_ONE,   /* ? */
    TOKEN_STAR,  /* * */
    TOKEN_ALL,   /* ** */
    TOKEN_DIRS,  /* **, with the slash behind it: none, or any directories */
    TOKEN_CLASS, /* [a-z] */
};

struct token {
    enum token_type type;
    uint8_t byte;
    uint8_t set[32]; /* of a class */
};

struct glob {
    size_t n;
    struct token tokens[];
};

static bool in_class(const struct token *t, uint8_t c)
{
    return t->set[c / 8] & (1u << (c % 8));
}

/* At the byte behind '['; the bytes taken, or -EINVAL. */
static int take_class(const char *s, struct token *t)
{
    const char *begin = s;
    bool negate = *s == '^' || *s == '!';

    *t = (struct token){.type = TOKEN_CLASS};
    s += negate;
    do {
        uint8_t from, to;

        if (*s == '\\')
            s++;
        if (*s == '\0')
            return -EINVAL;
        from = to = (uint8_t)*s++;
        if (*s == '-' && s[1] && s[1] != ']') {
            s++;
            if (*s == '\\' && s[1])
                s++;
            to = (uint8_t)*s++;
        }
        if (from > to)
            return -EINVAL;
        for (unsigned c = from; c <= to; c++)
            t->set[c / 8] = (uint8_t)(t->set[c / 8] | 1u << (c % 8));
    } while (*s != ']');
    for (size_t i = 0; negate && i < sizeof(t->set); i++)
        t->set[i] = (uint8_t)~t->set[i];
    t->set['/' / 8] = (uint8_t)(t->set['/' / 8] & ~(1u << ('/' % 8)));
    return (int)(s + 1 - begin);
}

int glob_new(const char *pattern, struct glob **ret)
{
    size_t size = strlen(pattern);
    struct glob *g;
    int r;

    if (size > GLOB_BYTES_MAX)
        return -E2BIG;
    g = calloc(1, sizeof(*g) + (size + 1) * sizeof(g->tokens[0]));
    if (!g)
        return -ENOMEM;
    for (const char *s = pattern; *s;) {
        struct token *t = &g->tokens[g->n++];

        if (s[0] == '*' && s[1] == '*') {
            s += strspn(s, "*");
            t->type = *s == '/' ? TOKEN_DIRS : TOKEN_ALL;
            s += *s == '/';
        } else if (*s == '*') {
            t->type = TOKEN_STAR;
            s++;
        } else if (*s == '?') {
            t->type = TOKEN_ONE;
            s++;
        } else if (*s == '[') {
            r = take_class(s + 1, t);
            if (r < 0) {
                free(g);
                return r;
            }
            s += 1 + r;
        } else {
            if (*s == '\\' && s[1])
                s++;
            t->byte = (uint8_t)*s++;
        }
    }
    *ret = g;
    return 0;
}

struct glob *glob_free(struct glob *g)
{
    free(g);
    return NULL;
}

/* Tokens that can stand for nothing let the next one begin. */
static void spread(const struct glob *g, bool *at)
{
    for (size_t i = 0; i < g->n; i++)
        if (at[i] && (g->tokens[i].type == TOKEN_STAR || g->tokens[i].type == TOKEN_ALL ||
                      g->tokens[i].type == TOKEN_DIRS))
            at[i + 1] = true;
}

static void advance(const struct glob *g, const bool *at, uint8_t c, bool *next)
{
    memset(next, 0, g->n + 1);
    for (size_t i = 0; i < g->n; i++) {
        const struct token *t = &g->tokens[i];

        if (!at[i])
            continue;
        switch (t->type) {
        case TOKEN_BYTE:
            next[i + 1] |= t->byte == c;
            break;
        case TOKEN_ONE:
            next[i + 1] |= c != '/';
            break;
        case TOKEN_CLASS:
            next[i + 1] |= in_class(t, c);
            break;
        case TOKEN_STAR:
            next[i] |= c != '/';
            break;
        case TOKEN_ALL:
            next[i] = true;
            break;
        case TOKEN_DIRS:
            next[i] = true;
            break;
        }
    }
}

/* Inside of TOKEN_DIRS only a slash lets the next token begin. */
static void spread_after(const struct glob *g, bool *at, uint8_t c)
{
    for (size_t i = 0; i < g->n; i++)
        if (at[i] && (g->tokens[i].type == TOKEN_STAR || g->tokens[i].type == TOKEN_ALL ||
                      (g->tokens[i].type == TOKEN_DIRS && c == '/')))
            at[i + 1] = true;
}

bool glob_match(const struct glob *g, const char *path, bool or_below)
{
    bool a[GLOB_BYTES_MAX + 2] = {false}, b[GLOB_BYTES_MAX + 2];
    bool *at = a, *next = b;

    at[0] = true;
    spread(g, at);
    for (const char *s = path; *s; s++) {
        bool *swap = at;

        if (*s == '/' && or_below && s > path && at[g->n])
            return true;
        advance(g, at, (uint8_t)*s, next);
        /* A DIRS that was only just entered by this byte has not begun yet: it may still be empty.
         */
        for (size_t i = 0; i < g->n; i++)
            if (next[i] && g->tokens[i].type == TOKEN_DIRS && !at[i])
                next[i + 1] = true;
        spread_after(g, next, (uint8_t)*s);
        at = next;
        next = swap;
    }
    return at[g->n];
}

bool glob_has_magic(const char *pattern)
{
    return strpbrk(pattern, "*?[\\") != NULL;
}

/* ---- .dockerignore ---- */

void ignore_done(struct ignore *ignore)
{
    for (size_t i = 0; i < ignore->n; i++)
        (void)glob_free(ignore->rules[i].glob);
    free(ignore->rules);
    *ignore = (struct ignore){0};
}

/* Takes `.`, empty components and `..` out, and slashes at the ends. */
static void clean(char *s)
{
    char *out = s, *in = s;

    while (*in) {
        size_t n = strcspn(in, "/");
        char *word = in;

        in += n + (in[n] == '/');
        if (n == 0 || (n == 1 && word[0] == '.'))
            continue;
        if (n == 2 && memcmp(word, "..", 2) == 0) {
            while (out > s && *--out != '/')
                ;
            continue;
        }
        if (out > s)
            *out++ = '/';
        memmove(out, word, n);
        out += n;
    }
    *out = '\0';
}

static int add_rule(struct ignore *ignore, char *line, unsigned number, struct error *err)
{
    struct ignore_rule rule = {0};
    size_t n;
    int r;

    line += strspn(line, " \t");
    n = strlen(line);
    while (n > 0 && (line[n - 1] == ' ' || line[n - 1] == '\t' || line[n - 1] == '\r'))
        line[--n] = '\0';
    if (line[0] == '!') {
        rule.keep = true;
        line++;
        line += strspn(line, " \t");
    }
    clean(line);
    if (line[0] == '\0')
        return 0;
    if (ignore->n == IGNORE_RULES_MAX)
        return error_set_code(err, ERR_LIMIT_EXCEEDED, ".dockerignore:%u: too many patterns",
                              number);
    r = glob_new(line, &rule.glob);
    if (r < 0)
        return error_set(err, -r, ".dockerignore:%u: '%.80s' is no pattern", number, line);
    ignore->rules[ignore->n++] = rule;
    return 0;
}

int ignore_parse(const char *data, size_t size, struct ignore *ret, struct error *err)
{
    _cleanup_ignore_ struct ignore ignore = {.rules =
                                                 calloc(IGNORE_RULES_MAX, sizeof(*ignore.rules))};
    unsigned number = 0;
    int r = 0;

    if (!ignore.rules)
        return error_set(err, ENOMEM, ".dockerignore: out of memory");
    while (size > 0 && r == 0) {
        const char *newline = memchr(data, '\n', size);
        size_t n = newline ? (size_t)(newline - data) : size;
        _cleanup_free_ char *line = strndup(data, n);

        number++;
        if (!line)
            return error_set(err, ENOMEM, ".dockerignore: out of memory");
        if (line[0] != '#')
            r = add_rule(&ignore, line, number, err);
        n += newline ? 1 : 0;
        data += n;
        size -= n;
    }
    if (r < 0)
        return r;
    *ret = ignore;
    ignore = (struct ignore){0};
    return 0;
}

bool ignore_match(const struct ignore *ignore, const char *path)
{
    bool ignored = false;

    for (size_t i = 0; i < ignore->n; i++)
        if (ignored == ignore->rules[i].keep &&
            glob_match(ignore->rules[i].glob, path, /* or_below= */ true))
            ignored = !ignore->rules[i].keep;
    return ignored;
}

bool ignore_has_keeps(const struct ignore *ignore)
{
    for (size_t i = 0; i < ignore->n; i++)
        if (ignore->rules[i].keep)
            return true;
    return false;
}
