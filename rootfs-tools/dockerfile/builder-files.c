#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/strv.h"
#include "dockerfile/builder-private.h"

/* Steps that make files without a guest: COPY, ADD, WORKDIR. */

/* What one COPY needs while it is made. */
struct copying {
    struct builder *b;            /* weak */
    struct stage_state *s;        /* weak */
    const struct instruction *in; /* weak */
    struct stack from, into;      /* owned */
    struct stage_state image;     /* owned: of --from */
    char **words, **sources;      /* owned */
    char *dest;                   /* owned */
    struct heredoc *texts;        /* owned, contents too */
    size_t n_texts;
    struct copy_spec spec;
};

static void copying_done(struct copying *c)
{
    stack_done(&c->from);
    stack_done(&c->into);
    state_done(&c->image);
    (void)strv_free(c->words);
    (void)strv_free(c->sources);
    for (size_t i = 0; i < c->n_texts; i++)
        free(c->texts[i].content);
    free(c->texts);
    free(c->dest);
}

static bool is_url(const char *s)
{
    return strstr(s, "://") || strncmp(s, "git@", 4) == 0;
}

/* The last word is where to; here-documents are sources too. */
static int take_words(struct copying *c, struct error *err)
{
    const struct instruction *in = c->in;
    size_t n;
    int r = state_words(c->s, &c->b->plan, in, &c->words, err);

    if (r < 0)
        return r;
    n = strv_length(c->words);
    if (n < 2)
        return error_set(err, EINVAL, "expected SOURCE… DESTINATION");
    c->dest = state_path(c->s, c->words[n - 1]);
    c->texts = calloc(in->n_heredocs + 1, sizeof(c->texts[0]));
    if (!c->dest || !c->texts)
        return error_set(err, ENOMEM, "out of memory");
    for (size_t i = 0; r == 0 && i + 1 < n; i++) {
        if (in->n_heredocs > 0 && strncmp(c->words[i], "<<", 2) == 0)
            continue;
        if (is_url(c->words[i]))
            return error_set_code(err, ERR_UNSUPPORTED,
                                  "'%.100s': sources on the network are not supported; get it in a "
                                  "RUN step",
                                  c->words[i]);
        r = strv_append(&c->sources, c->words[i]);
    }
    for (size_t i = 0; r == 0 && i < in->n_heredocs; i++) {
        const struct heredoc *doc = &in->heredocs[i];
        struct heredoc *text = &c->texts[c->n_texts];

        *text = (struct heredoc){.name = doc->name};
        if (doc->expand)
            r = state_expand(c->s, &c->b->plan, doc->content, true, &text->content, err);
        else
            r = (text->content = strdup(doc->content)) ? 0 : -ENOMEM;
        c->n_texts += r == 0;
    }
    return error_fill(err, r, "out of memory");
}

static int take_owner(struct copying *c, struct error *err)
{
    const char *chown = instruction_flag(c->in, "chown"), *chmod = instruction_flag(c->in, "chmod");
    _cleanup_free_ char *owner = NULL;
    char *end;
    unsigned long mode;
    int r;

    c->spec.mode = -1;
    if (chmod) {
        mode = strtoul(chmod, &end, 8);
        if (*chmod < '0' || *chmod > '7' || *end || mode > 07777)
            return error_set(err, EINVAL, "--chmod=%.20s: expected an octal number", chmod);
        c->spec.mode = (int)mode;
    }
    if (!chown)
        return 0;
    r = state_expand(c->s, &c->b->plan, chown, false, &owner, err);
    if (r == 0)
        r = copy_owner(&c->into, owner, &c->spec.uid, &c->spec.gid, err);
    c->spec.own = true;
    return r;
}

/* 1: files of an image are needed first. */
static int take_source(struct copying *c, struct error *err)
{
    const char *from = instruction_flag(c->in, "from");
    size_t stage;
    int r;

    c->spec.from = &c->b->context;
    c->spec.ignore = &c->b->ignore;
    if (!from)
        return 0;
    if (c->in->type == INSTRUCTION_ADD)
        return error_set(err, EINVAL, "unknown option '--from'");
    c->spec.from = &c->from;
    c->spec.ignore = NULL;
    c->spec.keep_owner = true;
    stage = plan_find_stage(&c->b->plan, from, c->b->stage);
    if (stage != STAGE_NONE)
        return stack_open(c->b->states[stage].layers, &c->from, err);
    r = builder_image(c->b, from, NULL, &c->image, err);
    return r != 0 ? r : stack_open(c->image.layers, &c->from, err);
}

/* The layer of a list, or what the cache has for it. */
static int add_files(struct builder *b, struct stage_state *s, const struct copy_list *list,
                     const char *kind, bool *ret_cached, struct error *err)
{
    char digest[65], key[65], tar[288], diff_id[DIGEST_SIZE], name[REFERENCE_SIZE];
    char **layers = NULL;
    int r = copy_digest(list, digest, err);

    if (r < 0)
        return r;
    state_files_key(s, kind, digest, key);
    if (!b->no_cache && step_find(key, &layers) == 1) {
        (void)strv_free(s->layers);
        s->layers = layers;
        *ret_cached = true;
        return 0;
    }
    (void)snprintf(tar, sizeof(tar), "%s/copy.tar", b->work.dir);
    r = copy_write(list, tar, &b->cancel, err);
    if (r == 0)
        r = step_add_layer(b->work.dir, tar, kind, &b->cancel, diff_id, err);
    (void)unlink(tar);
    if (r == 0 && diff_id[0] && strv_append(&s->layers, diff_id) < 0)
        r = error_set(err, ENOMEM, "out of memory");
    return r < 0 ? r : step_publish(key, s, name, err);
}

int builder_copy(struct builder *b, bool *ret_cached, struct error *err)
{
    static const char *const known[] = {"from", "chown", "chmod", "link", NULL};
    _cleanup_(copying_done) struct copying c = {
        .b = b, .s = &b->states[b->stage], .in = builder_instruction(b)};
    _cleanup_copy_list_ struct copy_list list = {0};
    const char *unknown = instruction_unknown_flag(c.in, known);
    int r;

    if (unknown)
        return error_set_code(err, ERR_UNSUPPORTED, "'--%.60s' is not supported", unknown);
    r = take_words(&c, err);
    if (r == 0)
        r = stack_open(c.s->layers, &c.into, err);
    if (r == 0)
        r = take_source(&c, err);
    if (r != 0)
        return r;
    r = take_owner(&c, err);
    if (r < 0)
        return r;
    c.spec.into = &c.into;
    c.spec.sources = c.sources;
    c.spec.texts = c.texts;
    c.spec.n_texts = c.n_texts;
    c.spec.dest = c.dest;
    c.spec.unpack = c.in->type == INSTRUCTION_ADD;
    r = copy_plan(&c.spec, &list, err);
    return r < 0 ? r : add_files(b, c.s, &list, "copy", ret_cached, err);
}

int builder_workdir(struct builder *b, struct error *err)
{
    struct stage_state *s = &b->states[b->stage];
    _cleanup_stack_ struct stack into = {0};
    _cleanup_copy_list_ struct copy_list list = {0};
    struct copy_spec spec = {.from = &into, .into = &into, .dest = s->config.workdir, .mode = -1};
    bool cached;
    int r = stack_open(s->layers, &into, err);

    if (r < 0 || tree_lookup(into.tree, s->config.workdir))
        return r;
    r = copy_plan_dir(&spec, &list, err);
    return r < 0 ? r : add_files(b, s, &list, "workdir", &cached, err);
}
