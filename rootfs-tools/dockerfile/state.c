#include "dockerfile/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strv.h"
#include "dockerfile/expand.h"
#include "erofs/digest.h"

#define PORT_RANGE_MAX 1000u
#define PORTS_MAX 4096u
/* Changes whenever the same step would have another result. */
#define KEY_FORMAT "hearth step 1\n"

void state_done(struct stage_state *s)
{
    (void)strv_free(s->layers);
    image_config_done(&s->config);
    (void)strv_free(s->shell);
    (void)strv_free(s->args);
    *s = (struct stage_state){0};
}

int state_copy(const struct stage_state *from, struct stage_state *to)
{
    _cleanup_state_ struct stage_state copy = {.cmd_set = from->cmd_set};

    if (strv_copy(from->layers, &copy.layers) < 0 ||
        (from->shell && strv_copy(from->shell, &copy.shell) < 0) ||
        strv_copy(from->args, &copy.args) < 0 || image_config_copy(&from->config, &copy.config) < 0)
        return -ENOMEM;
    *to = copy;
    copy = (struct stage_state){0};
    return 0;
}

bool instruction_makes_files(const struct instruction *in)
{
    return in->type == INSTRUCTION_RUN || in->type == INSTRUCTION_COPY ||
           in->type == INSTRUCTION_ADD || in->type == INSTRUCTION_WORKDIR;
}

/* ---- words ---- */

static const char *lookup(const char *name, void *userdata)
{
    const struct stage_state *s = userdata;
    const char *value = pairs_get(s->config.env, name);

    return value ? value : pairs_get(s->args, name);
}

int state_expand(const struct stage_state *s, const struct build_plan *plan, const char *word,
                 bool raw, char **ret, struct error *err)
{
    return expand_word(word, plan->dockerfile.escape, raw, lookup, (void *)(uintptr_t)s, ret, err);
}

int state_words(const struct stage_state *s, const struct build_plan *plan,
                const struct instruction *in, char ***ret, struct error *err)
{
    _cleanup_strv_ char **words = NULL;
    int r = instruction_exec_form(in, &words);

    if (r == 0)
        r = expand_split(in->text, plan->dockerfile.escape, &words, err);
    for (size_t i = 0; r >= 0 && words[i]; i++) {
        char *word = NULL;

        r = state_expand(s, plan, words[i], false, &word, err);
        if (r == 0) {
            free(words[i]);
            words[i] = word;
        }
    }
    if (r < 0)
        return error_fill(err, r, "out of memory");
    *ret = TAKE_PTR(words);
    return 0;
}

char *state_path(const struct stage_state *s, const char *path)
{
    const char *from = path[0] == '/' ? "" : s->config.workdir ? s->config.workdir : "/";
    _cleanup_free_ char *full = string_printf("/%s/%s", from, path);
    size_t size = full ? strlen(full) : 0, used = 0;
    bool dir;

    if (!full)
        return NULL;
    dir = full[size - 1] == '/' || (size > 1 && strcmp(full + size - 2, "/.") == 0);
    for (const char *in = full; *in;) {
        size_t n = strcspn(in, "/");
        const char *word = in;

        in += n + (in[n] == '/');
        if (n == 0 || (n == 1 && word[0] == '.'))
            continue;
        if (n == 2 && word[0] == '.' && word[1] == '.') {
            while (used > 0 && full[--used] != '/')
                ;
            continue;
        }
        full[used++] = '/'; /* never past `word`: a slash was before it */
        memmove(full + used, word, n);
        used += n;
    }
    if (used == 0 || dir)
        full[used++] = '/';
    full[used] = '\0';
    return TAKE_PTR(full);
}

/* ---- instructions ---- */

struct applying {
    struct stage_state *s;
    const struct build_plan *plan;
    const struct instruction *in;
    struct error *err;
};

/* K=V words, or the old form `K V V V`. Everything is replaced before anything is set. */
static int take_pairs(const struct applying *a, char ***pairs)
{
    _cleanup_strv_ char **words = NULL, **values = NULL;
    char escape = a->plan->dockerfile.escape;
    int r = expand_split(a->in->text, escape, &words, a->err);

    if (r < 0)
        return r;
    if (words[0] && !strchr(words[0], '=')) {
        const char *rest = a->in->text + strlen(words[0]);

        rest += strspn(rest, " \t");
        if (*rest == '\0')
            return error_set(a->err, EINVAL, "'%.80s' has no value", words[0]);
        free(words[0]);
        words[0] = NULL;
        for (size_t i = 1; words[i]; i++) {
            free(words[i]);
            words[i] = NULL;
        }
        words[0] = string_printf("%.*s=%s", (int)strcspn(a->in->text, " \t"), a->in->text, rest);
        if (!words[0])
            return error_set(a->err, ENOMEM, "out of memory");
    }
    for (size_t i = 0; r == 0 && words[i]; i++) {
        _cleanup_free_ char *word = NULL;

        r = state_expand(a->s, a->plan, words[i], false, &word, a->err);
        if (r == 0 && (!strchr(word, '=') || word[0] == '='))
            r = error_set(a->err, EINVAL, "'%.80s' is not KEY=VALUE", word);
        if (r == 0)
            r = strv_append(&values, word);
    }
    for (size_t i = 0; r == 0 && values && values[i]; i++) {
        char *equals = strchr(values[i], '=');

        *equals = '\0';
        r = pairs_set(pairs, values[i], equals + 1);
    }
    return error_fill(a->err, r, "out of memory");
}

static int take_args(const struct applying *a)
{
    _cleanup_strv_ char **words = NULL;
    int r = expand_split(a->in->text, a->plan->dockerfile.escape, &words, a->err);

    for (size_t i = 0; r == 0 && words[i]; i++) {
        char *equals = strchr(words[i], '=');
        _cleanup_free_ char *value = NULL;
        const char *given;

        if (equals)
            *equals = '\0';
        given = pairs_get(a->plan->build_args, words[i]);
        if (!given && !equals)
            given = pairs_get(a->plan->globals, words[i]);
        if (given)
            r = (value = strdup(given)) ? 0 : -ENOMEM;
        else if (equals)
            r = state_expand(a->s, a->plan, equals + 1, false, &value, a->err);
        if (r == 0 && value)
            r = pairs_set(&a->s->args, words[i], value);
    }
    return error_fill(a->err, r, "out of memory");
}

static int add_port(const struct applying *a, uint64_t port, const char *protocol)
{
    _cleanup_free_ char *text = string_printf("%llu/%s", (unsigned long long)port, protocol);
    char **ports = a->s->config.ports;

    if (!text)
        return -ENOMEM;
    for (size_t i = 0; ports && ports[i]; i++)
        if (strcmp(ports[i], text) == 0)
            return 0;
    if (strv_length(ports) >= PORTS_MAX)
        return error_set(a->err, E2BIG, "more than %u ports", PORTS_MAX);
    return strv_append(&a->s->config.ports, text);
}

static int take_port(const struct applying *a, char *word)
{
    char *slash = strchr(word, '/'), *dash;
    const char *protocol = slash ? slash + 1 : "tcp";
    uint64_t from, to;
    int r = 0;

    if (slash)
        *slash = '\0';
    dash = strchr(word, '-');
    if (dash)
        *dash = '\0';
    if (parse_u64(word, 1, 65535, &from) < 0 ||
        parse_u64(dash ? dash + 1 : word, from, 65535, &to) < 0 ||
        (strcmp(protocol, "tcp") != 0 && strcmp(protocol, "udp") != 0 &&
         strcmp(protocol, "sctp") != 0))
        return error_set(a->err, EINVAL, "'%.40s' is no port", word);
    if (to - from > PORT_RANGE_MAX)
        return error_set(a->err, E2BIG, "a range of more than %u ports", PORT_RANGE_MAX);
    for (uint64_t port = from; r == 0 && port <= to; port++)
        r = add_port(a, port, protocol);
    return r;
}

static int take_ports(const struct applying *a)
{
    _cleanup_strv_ char **words = NULL, **parts = NULL;
    int r = state_words(a->s, a->plan, a->in, &words, a->err);

    for (size_t i = 0; r == 0 && words[i]; i++) {
        _cleanup_strv_ char **more = NULL; /* a variable may hold several */

        r = expand_split(words[i], '\0', &more, a->err);
        for (size_t k = 0; r == 0 && more[k]; k++)
            r = take_port(a, more[k]);
    }
    return error_fill(a->err, r, "out of memory");
}

/* The strv of CMD or ENTRYPOINT, in either form. */
static int take_command(const struct applying *a, char ***to)
{
    _cleanup_strv_ char **argv = NULL;
    int r = state_run_argv(a->s, a->in, &argv, a->err);

    if (r < 0)
        return r;
    (void)strv_free(*to);
    *to = argv[0] ? TAKE_PTR(argv) : NULL;
    return 0;
}

static int take_shell(const struct applying *a)
{
    _cleanup_strv_ char **argv = NULL;
    int r = instruction_exec_form(a->in, &argv);

    if (r < 0)
        return error_set(a->err, ENOMEM, "out of memory");
    if (r == 0 || !argv[0])
        return error_set(a->err, EINVAL, "expected a JSON array, as [\"/bin/bash\", \"-c\"]");
    (void)strv_free(a->s->shell);
    a->s->shell = TAKE_PTR(argv);
    return 0;
}

static int take_string(const struct applying *a, char **to)
{
    char *value = NULL;
    int r = state_expand(a->s, a->plan, a->in->text, false, &value, a->err);

    if (r < 0)
        return r;
    if (value[0] == '\0') {
        free(value);
        return error_set(a->err, EINVAL, "'%.80s' is empty", a->in->text);
    }
    free(*to);
    *to = value;
    return 0;
}

static int take_workdir(const struct applying *a)
{
    _cleanup_free_ char *word = NULL;
    char *path;
    size_t n;
    int r = take_string(a, &word);

    if (r < 0)
        return r;
    path = state_path(a->s, word);
    if (!path)
        return error_set(a->err, ENOMEM, "out of memory");
    n = strlen(path);
    if (n > 1 && path[n - 1] == '/')
        path[n - 1] = '\0';
    free(a->s->config.workdir);
    a->s->config.workdir = path;
    return 0;
}

int state_apply(struct stage_state *s, const struct build_plan *plan, const struct instruction *in,
                state_warn_fn warn, void *userdata, struct error *err)
{
    const struct applying a = {s, plan, in, err};
    char text[96];
    int r;

    switch (in->type) {
    case INSTRUCTION_ENV:
        return take_pairs(&a, &s->config.env);
    case INSTRUCTION_LABEL:
        return take_pairs(&a, &s->config.labels);
    case INSTRUCTION_ARG:
        return take_args(&a);
    case INSTRUCTION_EXPOSE:
        return take_ports(&a);
    case INSTRUCTION_CMD:
        s->cmd_set = true;
        return take_command(&a, &s->config.cmd);
    case INSTRUCTION_ENTRYPOINT:
        r = take_command(&a, &s->config.entrypoint);
        if (r == 0 && !s->cmd_set) /* arguments of another program */
            s->config.cmd = strv_free(s->config.cmd);
        return r;
    case INSTRUCTION_SHELL:
        return take_shell(&a);
    case INSTRUCTION_USER:
        return take_string(&a, &s->config.user);
    case INSTRUCTION_WORKDIR:
        return take_workdir(&a);
    case INSTRUCTION_HEALTHCHECK:
    case INSTRUCTION_MAINTAINER:
    case INSTRUCTION_STOPSIGNAL:
    case INSTRUCTION_VOLUME:
        (void)snprintf(text, sizeof(text), "%s:%u: %s means nothing to sandboxes, ignoring it",
                       plan->file, in->line, instruction_name(in->type));
        warn(text, userdata);
        return 0;
    case INSTRUCTION_ONBUILD:
        return error_set_code(err, ERR_UNSUPPORTED, "is not supported");
    case INSTRUCTION_ADD:
    case INSTRUCTION_COPY:
    case INSTRUCTION_FROM:
    case INSTRUCTION_RUN:
        break;
    }
    return 0;
}

/* ---- RUN ---- */

/* `RUN <<EOF` alone runs the text; any other here-document is the shell's own affair. */
static char *run_text(const struct instruction *in)
{
    const char *rest = in->text;
    size_t size;
    char *text;

    if (in->n_heredocs == 0)
        return strdup(in->text);
    rest += strspn(rest, "<-\"'");
    rest += strncmp(rest, in->heredocs[0].name, strlen(in->heredocs[0].name)) == 0
                ? strlen(in->heredocs[0].name)
                : 0;
    rest += strspn(rest, "\"'");
    if (in->n_heredocs == 1 && in->text[0] == '<' && *rest == '\0')
        return strdup(in->heredocs[0].content);
    size = strlen(in->text) + 2;
    for (size_t i = 0; i < in->n_heredocs; i++)
        size += strlen(in->heredocs[i].content) + strlen(in->heredocs[i].name) + 1;
    text = malloc(size);
    if (!text)
        return NULL;
    (void)snprintf(text, size, "%s\n", in->text);
    for (size_t i = 0; i < in->n_heredocs; i++) {
        size_t used = strlen(text);

        (void)snprintf(text + used, size - used, "%s%s\n", in->heredocs[i].content,
                       in->heredocs[i].name);
    }
    return text;
}

int state_run_argv(const struct stage_state *s, const struct instruction *in, char ***ret,
                   struct error *err)
{
    _cleanup_strv_ char **argv = NULL;
    _cleanup_free_ char *text = NULL;
    int r = instruction_exec_form(in, &argv);

    if (r == 0) {
        text = run_text(in);
        r = text ? 0 : -ENOMEM;
        if (r == 0 && in->n_heredocs > 0 && strncmp(text, "#!", 2) == 0)
            return error_set_code(err, ERR_UNSUPPORTED,
                                  "a here-document with an interpreter line is not supported");
        if (r == 0 && s->shell)
            r = strv_copy(s->shell, &argv);
        else if (r == 0 && (strv_append(&argv, "/bin/sh") < 0 || strv_append(&argv, "-c") < 0))
            r = -ENOMEM;
        if (r == 0)
            r = strv_append(&argv, text);
    }
    if (r < 0)
        return error_set(err, ENOMEM, "out of memory");
    if (!argv[0] && in->type == INSTRUCTION_RUN)
        return error_set(err, EINVAL, "the array is empty");
    *ret = TAKE_PTR(argv);
    return 0;
}

int state_run_env(const struct stage_state *s, char ***ret)
{
    _cleanup_strv_ char **env = NULL;
    int r = strv_copy(s->config.env, &env);

    for (size_t i = 0; r >= 0 && s->args && s->args[i]; i++) {
        _cleanup_free_ char *key = strndup(s->args[i], strcspn(s->args[i], "="));

        if (!key)
            r = -ENOMEM;
        else if (!pairs_get(s->config.env, key))
            r = strv_append(&env, s->args[i]);
    }
    if (r < 0)
        return r;
    *ret = TAKE_PTR(env);
    return 0;
}

/* ---- keys ---- */

static void add_text(struct digest *d, const char *text)
{
    digest_update(d, text ? text : "", text ? strlen(text) + 1 : 1);
}

static void add_list(struct digest *d, const char *name, char *const *list)
{
    char count[32];

    (void)snprintf(count, sizeof(count), "%s %zu", name, strv_length(list));
    add_text(d, count);
    for (size_t i = 0; list && list[i]; i++)
        add_text(d, list[i]);
}

void state_run_key(const struct stage_state *s, char *const *argv, char *const *env, char ret[65])
{
    struct digest d;

    digest_init(&d);
    add_text(&d, KEY_FORMAT);
    add_list(&d, "layers", s->layers);
    add_list(&d, "run", argv);
    add_list(&d, "env", env);
    add_text(&d, s->config.user);
    add_text(&d, s->config.workdir);
    digest_final(&d, ret);
}

void state_files_key(const struct stage_state *s, const char *kind, const char *extra, char ret[65])
{
    struct digest d;

    digest_init(&d);
    add_text(&d, KEY_FORMAT);
    add_list(&d, "layers", s->layers);
    add_text(&d, kind);
    add_text(&d, extra);
    digest_final(&d, ret);
}
