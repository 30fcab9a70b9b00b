#include "api/e2b/process-pick.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/strv.h"

#define TAG_MAX 120u

struct process_pick {
    struct api_e2b *e2b;         /* weak */
    struct sandbox *sb;          /* weak, while watch is there */
    struct sandbox_watch *watch; /* owned */
    process_picked_fn fn;        /* NULL: nobody waits any more, only exec_list() has it */
    void *userdata;
    uint32_t pid;
    char tag[TAG_MAX + 1];
};

static void pick_free(struct process_pick *pick)
{
    pick->watch = sandbox_watch_free(pick->watch);
    free(pick);
}

struct process_pick *process_pick_free(struct process_pick *pick)
{
    if (pick)
        pick->fn = NULL;
    return NULL;
}

/* No callback comes from a console that is gone. */
static void on_gone(struct sandbox *sb, const struct error *reason, void *userdata)
{
    struct process_pick *pick = userdata;

    (void)sb;
    if (pick->fn)
        pick->fn(NULL, NULL, reason, pick->userdata);
    pick_free(pick);
}

static int not_found(struct error *err)
{
    return error_set_code(err, ERR_NOT_FOUND, "the process was not found");
}

static void on_listed(struct console *c, const struct exec_info *infos, size_t count,
                      const struct error *err, void *userdata)
{
    struct process_pick *pick = userdata;
    struct e2b_process *p = NULL;
    struct error none = {0};

    for (size_t i = 0; pick->fn && !err && !p && i < count; i++) {
        const char *label = infos[i].label;

        if (!string_starts_with(label, PROCESS_LABEL))
            continue;
        if (pick->pid ? infos[i].pid == pick->pid
                      : strcmp(label + strlen(PROCESS_LABEL), pick->tag) == 0)
            p = e2b_process_known(pick->e2b, pick->sb, &infos[i]);
    }
    if (!err && !p) {
        (void)not_found(&none);
        err = &none;
    }
    if (pick->fn)
        pick->fn(p, c, p ? NULL : err, pick->userdata);
    pick_free(pick);
}

int process_pick(struct api_e2b *e2b, struct sandbox *sb, struct console *c, const json_t *message,
                 process_picked_fn fn, void *userdata, struct e2b_process **ret,
                 struct process_pick **ret_pick, struct error *err)
{
    const json_t *selector = pb_get(message, "process", "process");
    const char *tag = pb_string(selector, "tag", "tag");
    struct process_pick *pick;
    uint64_t pid = 0;
    int r;

    if (pb_u64(selector, "pid", "pid", UINT32_MAX, &pid) < 0 || (pid == 0 && !tag))
        return error_set(err, EINVAL, "'process': neither a pid nor a tag");
    *ret = e2b_process_find(e2b, sandbox_id(sb), (uint32_t)pid, tag);
    if (*ret)
        return 1;
    if (pid == 0 && (tag[0] == '\0' || strlen(tag) > TAG_MAX))
        return not_found(err);
    pick = calloc(1, sizeof(*pick));
    if (!pick)
        return error_set(err, ENOMEM, "out of memory");
    pick->e2b = e2b;
    pick->sb = sb;
    pick->fn = fn;
    pick->userdata = userdata;
    pick->pid = (uint32_t)pid;
    (void)snprintf(pick->tag, sizeof(pick->tag), "%s", pid == 0 ? tag : "");
    r = sandbox_watch_new(sb, on_gone, pick, &pick->watch);
    if (r >= 0)
        r = exec_list(c, clock_now_usec() + E2B_CALL_USEC, on_listed, pick);
    if (r < 0) {
        pick_free(pick);
        return error_fill(err, r, "sandbox '%s': its processes", sandbox_id(sb));
    }
    *ret_pick = pick;
    return 0;
}
