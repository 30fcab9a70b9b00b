#include "api/e2b/template-script.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/strv.h"

#define STEP_TEXT_MAX 400
#define DEFAULT_USER "user"
#define DEFAULT_WORKDIR "/home/user"

/* E2B's images all have this user, who may become root. Nothing but a shell is taken for granted.
 */
static const char add_user[] =
    "found=; while IFS=: read -r name rest; do [ \"$name\" = user ] && found=1; done </etc/passwd\n"
    "shell=/bin/sh; [ -x /bin/bash ] && shell=/bin/bash\n"
    "if [ -n \"$found\" ]; then :\n"
    "elif command -v useradd >/dev/null; then useradd -m -s $shell user\n"
    "elif command -v adduser >/dev/null; then adduser -D -s $shell user\n"
    "else echo user:x:1000:1000::/home/user:$shell >>/etc/passwd && echo user:x:1000: "
    ">>/etc/group\n"
    "fi || exit 1\n"
    "[ -d /home/user ] || { mkdir -p /home/user && chown user /home/user; } || exit 1\n"
    "if [ -d /etc/sudoers.d ]; then echo 'user ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/user; fi\n";

static const char make_workdir[] = "[ -d \"$0\" ] || { mkdir -p \"$0\" && chown \"$1\" \"$0\"; }";

static const char in_shell[] =
    "if [ -x /bin/bash ]; then exec /bin/bash -l -c \"$0\"; else exec /bin/sh -c \"$0\"; fi";

struct writer {
    struct template_script *script;
    char *user; /* owned: who runs the next command */
    unsigned step;
    struct error *err;
};

void template_script_done(struct template_script *script)
{
    buf_done(&script->dockerfile);
    free(script->copies);
    free(script->steps);
    *script = (struct template_script){0};
}

bool script_hash_is_valid(const char *hash)
{
    return strlen(hash) == SCRIPT_HASH_SIZE - 1 &&
           strspn(hash, "0123456789abcdef") == SCRIPT_HASH_SIZE - 1;
}

/* ---- lines ---- */

static int no_memory(struct writer *w)
{
    return error_set(w->err, ENOMEM, "out of memory");
}

/* The line is there; it belongs to the step. */
static int line_end(struct writer *w, int r)
{
    struct template_script *s = w->script;
    unsigned *steps = r < 0 ? NULL : reallocarray(s->steps, s->n_lines + 1, sizeof(*steps));

    if (r == -ENOBUFS)
        return error_set(w->err, E2BIG, "step %u: the steps are too long", w->step);
    if (!steps)
        return no_memory(w);
    s->steps = steps;
    s->steps[s->n_lines++] = w->step;
    return 0;
}

#define LINE(w, ...) line_end((w), buf_printf(&(w)->script->dockerfile, __VA_ARGS__))

/* An instruction whose words are a list. No "<<" stays in it, which would be a here-document. */
static int line_words(struct writer *w, const char *instruction, json_t *words_consume)
{
    struct buf *out = &w->script->dockerfile;
    _cleanup_free_ char *text =
        words_consume ? json_dumps(words_consume, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    int r;

    json_decref(words_consume);
    if (!text)
        return no_memory(w);
    r = buf_printf(out, "%s ", instruction);
    for (const char *c = text; r >= 0 && *c; c++)
        r = *c == '<' ? buf_append_string(out, "\\u003c") : buf_append(out, c, 1);
    return line_end(w, r >= 0 ? buf_append_string(out, "\n") : r);
}

/* As root, whoever is the user at the moment. */
static int line_root(struct writer *w, json_t *words_consume)
{
    int r = LINE(w, "USER root\n");

    if (r < 0)
        json_decref(words_consume);
    else
        r = line_words(w, "RUN", words_consume);
    return r < 0 ? r : LINE(w, "USER %s\n", w->user);
}

/* ---- steps ---- */

static int refuse(struct writer *w, const char *why)
{
    return error_set(w->err, EINVAL, "step %u: %s", w->step, why);
}

/* A text of the step's arguments; "" when it is not there. NULL: it is none. */
static const char *arg(const json_t *step, size_t index)
{
    const json_t *value = json_array_get(json_object_get(step, "args"), index);
    const char *text = json_string_value(value);

    if (!value)
        return "";
    return text && strlen(text) == json_string_length(value) ? text : NULL;
}

/* What a Dockerfile takes as it is: nothing that it would read another way. */
static bool is_plain(const char *text, const char *refused)
{
    for (const char *c = text; *c; c++) {
        if ((unsigned char)*c < ' ' || *c == 127 || strchr(refused, *c))
            return false;
    }
    return true;
}

static bool is_user(const char *text)
{
    return text && text[0] && strlen(text) <= 128 &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:-") ==
               strlen(text);
}

static int set_user(struct writer *w, const char *user)
{
    if (!is_user(user))
        return refuse(w, "not the name of a user");
    return string_set(&w->user, user) < 0 ? no_memory(w) : LINE(w, "USER %s\n", user);
}

static int step_run(struct writer *w, const json_t *step)
{
    const char *command = arg(step, 0), *user = arg(step, 1);
    int r = 0;

    if (!command || !command[0])
        return refuse(w, "RUN without a command");
    if (!user || (user[0] && !is_user(user)))
        return refuse(w, "not the name of a user");
    if (user[0])
        r = LINE(w, "USER %s\n", user);
    if (r >= 0)
        r = line_words(w, "RUN", json_pack("[s, s, s, s]", "/bin/sh", "-c", in_shell, command));
    return r >= 0 && user[0] ? LINE(w, "USER %s\n", w->user) : r;
}

static int step_copy(struct writer *w, const json_t *step)
{
    const char *from = arg(step, 0), *to = arg(step, 1), *user = arg(step, 2), *mode = arg(step, 3);
    const char *hash = json_string_value(json_object_get(step, "filesHash"));
    struct template_script *s = w->script;
    char instruction[192], path[4200];
    struct script_copy *copies;

    if (!hash || !script_hash_is_valid(hash))
        return refuse(w, "COPY without the hash of its files");
    if (!from || !from[0] || !to || !to[0] || !is_plain(from, "$\\\"'") || !is_plain(to, "$\\\"'"))
        return refuse(w, "COPY of or to a path that is empty or has one of $ \\ \" '");
    if (!user || (user[0] && !is_user(user)))
        return refuse(w, "not the name of a user");
    if (!mode || strspn(mode, "01234567") != strlen(mode) || strlen(mode) > 4)
        return refuse(w, "COPY with a mode that is not octal");
    copies = reallocarray(s->copies, s->n_copies + 1, sizeof(*copies));
    if (!copies)
        return no_memory(w);
    s->copies = copies;
    s->copies[s->n_copies].step = w->step;
    (void)snprintf(s->copies[s->n_copies++].hash, SCRIPT_HASH_SIZE, "%s", hash);
    (void)snprintf(instruction, sizeof(instruction), "COPY --chown=%s%s%s",
                   user[0] ? user : w->user, mode[0] ? " --chmod=" : "", mode);
    if ((size_t)snprintf(path, sizeof(path), "s%u/%s", w->step, from) >= sizeof(path))
        return refuse(w, "COPY of a path that is too long");
    return line_words(w, instruction, json_pack("[s, s]", path, to));
}

static bool is_variable(const char *name)
{
    for (const char *c = name; *c; c++) {
        if (*c != '_' && !isalpha((unsigned char)*c) && (c == name || !isdigit((unsigned char)*c)))
            return false;
    }
    return name[0] != '\0';
}

/* Values may hold other variables, as in a Dockerfile. */
static int step_env(struct writer *w, const json_t *step)
{
    size_t n = json_array_size(json_object_get(step, "args"));

    if (n == 0 || n % 2 != 0)
        return refuse(w, "ENV without pairs of a name and a value");
    for (size_t i = 0; i < n; i += 2) {
        const char *name = arg(step, i), *value = arg(step, i + 1);
        struct buf quoted;
        int r = 0;

        if (!name || !is_variable(name) || !value || !is_plain(value, ""))
            return refuse(w, "ENV with a name that is none, or a value of more than a line");
        buf_init(&quoted, 128 * 1024);
        for (const char *c = value; r >= 0 && *c; c++)
            r = buf_printf(&quoted, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
        r = r < 0 ? refuse(w, "ENV with a value that is too long")
                  : LINE(w, "ENV %s=\"%s\"\n", name, buf_string(&quoted));
        buf_done(&quoted);
        if (r < 0)
            return r;
    }
    return 0;
}

/* One that is not there belongs to the user, not to root as a Dockerfile's would. */
static int set_workdir(struct writer *w, const char *path)
{
    int r = 0;

    if (!path || !path[0] || !is_plain(path, "$\\\"'") || strlen(path) > 4000)
        return refuse(w, "WORKDIR is empty or has one of $ \\ \" '");
    if (path[0] != '/')
        return refuse(w, "WORKDIR is not an absolute path");
    if (strcmp(path, "/") != 0)
        r = line_root(w,
                      json_pack("[s, s, s, s, s]", "/bin/sh", "-c", make_workdir, path, w->user));
    return r < 0 ? r : LINE(w, "WORKDIR %s\n", path);
}

static int add_step(struct writer *w, const json_t *step)
{
    const char *type = json_string_value(json_object_get(step, "type"));

    if (!type || (json_object_get(step, "args") && !json_is_array(json_object_get(step, "args"))))
        return refuse(w, "has no type, or arguments that are no list");
    if (strcmp(type, "RUN") == 0)
        return step_run(w, step);
    if (strcmp(type, "COPY") == 0)
        return step_copy(w, step);
    if (strcmp(type, "ENV") == 0)
        return step_env(w, step);
    if (strcmp(type, "WORKDIR") == 0)
        return set_workdir(w, arg(step, 0));
    if (strcmp(type, "USER") == 0)
        return set_user(w, arg(step, 0));
    return error_set_code(w->err, ERR_UNSUPPORTED, "step %u: '%.32s' is not supported", w->step,
                          type);
}

static int add_base(struct writer *w, const struct script_base *base)
{
    int r;

    if (!base->image[0] || !is_plain(base->image, "$\\\"' "))
        return error_set(w->err, EINVAL, "'%.64s' is not the name of an image", base->image);
    if (string_set(&w->user, base->user ? base->user : DEFAULT_USER) < 0)
        return no_memory(w);
    r = LINE(w, "FROM %s\n", base->image);
    if (r < 0 || base->user)
        return r;
    r = line_root(w, json_pack("[s, s, s]", "/bin/sh", "-c", add_user));
    return r < 0 ? r : LINE(w, "WORKDIR " DEFAULT_WORKDIR "\n");
}

int template_script_make(const json_t *steps, const struct script_base *base,
                         struct template_script *ret, struct error *err)
{
    struct template_script script = {0};
    struct writer w = {.script = &script, .err = err};
    const json_t *step;
    size_t i;
    int r;

    if (steps && !json_is_null(steps) &&
        (!json_is_array(steps) || json_array_size(steps) > SCRIPT_STEPS_MAX))
        return error_set(err, EINVAL, "'steps': not a list of at most %u", SCRIPT_STEPS_MAX);
    buf_init(&script.dockerfile, 1000 * 1000);
    r = add_base(&w, base);
    json_array_foreach(steps, i, step)
    {
        w.step = (unsigned)i + 1;
        if (r >= 0)
            r = add_step(&w, step);
    }
    free(w.user);
    if (r < 0) {
        template_script_done(&script);
        return r;
    }
    *ret = script;
    return 0;
}

char *script_step_text(const json_t *step)
{
    const char *type = json_string_value(json_object_get(step, "type"));
    const char *first = arg(step, 0);
    char *text = string_printf("%s %.*s", type ? type : "?", STEP_TEXT_MAX, first ? first : "");

    for (char *c = text; c && *c; c++) {
        if ((unsigned char)*c < ' ')
            *c = ' ';
    }
    return text;
}

char *script_shell(const char *command)
{
    struct buf out;
    char *text = NULL;
    int r;

    /* As one word of the shell: quotes end, are escaped, and begin again. */
    buf_init(&out, 1024 * 1024);
    r = buf_append_string(&out, "/bin/sh -c '");
    if (r >= 0)
        r = buf_append_string(&out, in_shell);
    if (r >= 0)
        r = buf_append_string(&out, "' '");
    for (const char *c = command; r >= 0 && *c; c++)
        r = *c == '\'' ? buf_append_string(&out, "'\\''") : buf_append(&out, c, 1);
    if (r >= 0)
        r = buf_append_string(&out, "'");
    if (r >= 0)
        text = strdup(buf_string(&out));
    buf_done(&out);
    return text;
}
