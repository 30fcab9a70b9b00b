#include "dockerfile/expand.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/strv.h"

struct expander {
    char escape;
    bool raw;
    expand_fn lookup;
    void *userdata;
    struct buf out;
    struct error *err;
};

static int put(struct expander *x, const char *s, size_t size)
{
    int r = buf_append(&x->out, s, size);

    return r < 0 ? error_set(x->err, -r, "the value is too long") : 0;
}

static bool is_name(char c, bool first)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (!first && c >= '0' && c <= '9');
}

static int expand(struct expander *x, const char **s, char end, unsigned depth);

/* The word behind ${x:- up to its brace, into a buffer of its own. */
static int expand_inner(struct expander *x, const char **s, unsigned depth, char **ret)
{
    struct buf outer = x->out;
    int r;

    buf_init(&x->out, EXPAND_BYTES_MAX);
    r = expand(x, s, '}', depth + 1);
    if (r == 0) {
        *ret = strdup(buf_string(&x->out));
        r = *ret ? 0 : error_set(x->err, ENOMEM, "out of memory");
    }
    buf_done(&x->out);
    x->out = outer;
    return r;
}

/* At the byte behind "${". */
static int expand_braces(struct expander *x, const char **s, unsigned depth)
{
    _cleanup_free_ char *name = NULL, *word = NULL;
    const char *value;
    bool colon, set;
    size_t n = 0;
    char op;
    int r;

    while (is_name((*s)[n], n == 0) || (n == 0 && (*s)[0] >= '0' && (*s)[0] <= '9'))
        n++;
    name = strndup(*s, n);
    if (!name)
        return error_set(x->err, ENOMEM, "out of memory");
    if (n == 0)
        return error_set(x->err, EINVAL, "'${%.20s' names no variable", *s);
    *s += n;
    value = x->lookup(name, x->userdata);
    if (**s == '}') {
        (*s)++;
        return value ? put(x, value, strlen(value)) : 0;
    }
    colon = **s == ':';
    op = (*s)[colon];
    if (op == '\0')
        return error_set(x->err, EINVAL, "'${%s' has no closing brace", name);
    if (op != '-' && op != '+' && op != '?')
        return error_set(x->err, EINVAL, "'${%s%.10s': this substitution is not supported", name,
                         *s);
    *s += colon + 1;
    r = expand_inner(x, s, depth, &word);
    if (r < 0)
        return r;
    set = value && (!colon || value[0]);
    if (op == '?' && !set)
        return error_set(x->err, EINVAL, "%s: %.200s", name, word[0] ? word : "is not set");
    if (op == '+')
        return set ? put(x, word, strlen(word)) : 0;
    return set ? put(x, value, strlen(value)) : put(x, word, strlen(word));
}

/* At the byte behind "$". */
static int expand_variable(struct expander *x, const char **s, unsigned depth)
{
    _cleanup_free_ char *name = NULL;
    const char *value;
    size_t n = 0;

    if (**s == '{') {
        (*s)++;
        return expand_braces(x, s, depth);
    }
    while (is_name((*s)[n], n == 0))
        n++;
    if (n == 0)
        return put(x, "$", 1);
    name = strndup(*s, n);
    if (!name)
        return error_set(x->err, ENOMEM, "out of memory");
    *s += n;
    value = x->lookup(name, x->userdata);
    return value ? put(x, value, strlen(value)) : 0;
}

static int expand_double(struct expander *x, const char **s, unsigned depth)
{
    int r = 0;

    while (r == 0 && **s != '"') {
        char c = **s;

        if (c == '\0')
            return error_set(x->err, EINVAL, "a double quote is not closed");
        (*s)++;
        if (c == '$') {
            r = expand_variable(x, s, depth);
        } else if (c == x->escape && (**s == '"' || **s == '$' || **s == x->escape)) {
            r = put(x, (*s)++, 1);
        } else {
            r = put(x, &c, 1);
        }
    }
    (*s)++;
    return r;
}

static int expand_single(struct expander *x, const char **s)
{
    size_t n = strcspn(*s, "'");
    int r;

    if ((*s)[n] == '\0')
        return error_set(x->err, EINVAL, "a single quote is not closed");
    r = put(x, *s, n);
    *s += n + 1;
    return r;
}

/* Up to and with `end`, or to the end of the text when it is 0. */
static int expand(struct expander *x, const char **s, char end, unsigned depth)
{
    int r = 0;

    if (depth > EXPAND_DEPTH_MAX)
        return error_set(x->err, EINVAL, "substitutions are nested too deep");
    while (r == 0 && **s != end) {
        char c = **s;

        if (c == '\0')
            return error_set(x->err, EINVAL, "'${' has no closing brace");
        (*s)++;
        if (c == '$') {
            r = expand_variable(x, s, depth);
        } else if (c == x->escape && x->raw && **s != '$' && **s != x->escape) {
            r = put(x, &c, 1);
        } else if (c == x->escape) {
            r = **s ? put(x, (*s)++, 1) : 0;
        } else if (c == '\'' && !x->raw) {
            r = expand_single(x, s);
        } else if (c == '"' && !x->raw) {
            r = expand_double(x, s, depth);
        } else {
            r = put(x, &c, 1);
        }
    }
    if (r == 0 && end)
        (*s)++;
    return r;
}

int expand_word(const char *word, char escape, bool raw, expand_fn lookup, void *userdata,
                char **ret, struct error *err)
{
    struct expander x = {escape, raw, lookup, userdata, {0}, err};
    int r;

    buf_init(&x.out, EXPAND_BYTES_MAX);
    r = expand(&x, &word, '\0', 0);
    if (r == 0) {
        *ret = strdup(buf_string(&x.out));
        r = *ret ? 0 : error_set(err, ENOMEM, "out of memory");
    }
    buf_done(&x.out);
    return r;
}

int expand_split(const char *text, char escape, char ***ret, struct error *err)
{
    _cleanup_strv_ char **v = NULL;

    for (const char *s = text + strspn(text, " \t"); *s; s += strspn(s, " \t")) {
        _cleanup_free_ char *word = NULL;
        const char *begin = s;
        char quote = '\0';

        for (; *s && (quote || (*s != ' ' && *s != '\t')); s++) {
            if (*s == escape && quote != '\'' && s[1])
                s++;
            else if (quote)
                quote = *s == quote ? '\0' : quote;
            else if (*s == '"' || *s == '\'')
                quote = *s;
        }
        if (quote)
            return error_set(err, EINVAL, "a quote is not closed");
        word = strndup(begin, (size_t)(s - begin));
        if (!word || strv_append(&v, word) < 0)
            return error_set(err, ENOMEM, "out of memory");
    }
    if (!v && !(v = calloc(1, sizeof(*v))))
        return error_set(err, ENOMEM, "out of memory");
    *ret = TAKE_PTR(v);
    return 0;
}
