#include "host/exec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host/call.h"
#include "host/exec-internal.h"

#define LIST_MAX 4096u /* processes of one guest */

struct list_call {
    struct call base;
    exec_list_fn fn;
    struct exec_info *infos; /* owned */
    size_t count, capacity;
};

static void take_command(const Hearth__V1__ProcessInfo *from, struct exec_info *to)
{
    size_t used = 0;

    for (size_t i = 0; i < from->n_argv && used < sizeof(to->command) - 1; i++) {
        if (i > 0)
            to->command[used++] = ' ';
        used += wire_escape(to->command + used, sizeof(to->command) - used, from->argv[i].data,
                            from->argv[i].len);
    }
    to->command[used] = '\0';
}

static int take_info(const Hearth__V1__ProcessInfo *from, struct exec_info *to, struct error *err)
{
    int r;

    *to = (struct exec_info){
        .process_id = from->process_id,
        .pid = from->pid,
        .running = from->running,
        .tty = from->tty,
        .started_wall_usec = from->started_realtime_usec,
    };
    (void)wire_escape_string(to->label, sizeof(to->label), from->label);
    take_command(from, to);
    r = exec_take_ranges(from->streams, from->n_streams, to->ranges, err);
    if (r >= 0 && from->exit)
        r = exec_take_exit(from->exit, &to->exit, err);
    return r;
}

static int list_reply(struct call *call, const Hearth__V1__Event *event, struct error *err)
{
    struct list_call *list = container_of(call, struct list_call, base);
    size_t n;

    if (event->event_case != HEARTH__V1__EVENT__EVENT_LIST)
        return channel_unexpected(event, "instead of ListReply", err);
    n = event->list->n_processes;
    if (n > LIST_MAX - list->count || (n == 0 && event->list->more))
        return error_set_code(err, ERR_GUEST_PROTOCOL, "guest lists %s processes",
                              n == 0 ? "no" : "too many");
    if (list->count + n > list->capacity) {
        size_t capacity = MAX(list->count + n, MIN(2 * list->capacity, (size_t)LIST_MAX));
        struct exec_info *grown = reallocarray(list->infos, capacity, sizeof(*grown));

        if (!grown)
            return error_set(err, ENOMEM, "listing the guest's processes");
        list->infos = grown;
        list->capacity = capacity;
    }
    for (size_t i = 0; i < n; i++) {
        int r = take_info(event->list->processes[i], &list->infos[list->count], err);

        if (r < 0)
            return r;
        list->count++;
    }
    return !event->list->more;
}

static void list_finish(struct call *call, const struct error *err)
{
    struct list_call *list = container_of(call, struct list_call, base);

    list->fn(call->console, list->infos, err ? 0 : list->count, err, call->userdata);
}

static void list_done(struct call *call)
{
    free(container_of(call, struct list_call, base)->infos);
}

int exec_list(struct console *c, uint64_t deadline_usec, exec_list_fn done, void *userdata)
{
    Hearth__V1__List message = HEARTH__V1__LIST__INIT;
    Hearth__V1__Request request = HEARTH__V1__REQUEST__INIT;
    struct list_call *list = calloc(1, sizeof(*list));

    if (!list)
        return -ENOMEM;
    list->fn = done;
    list->base.what = "listing the guest's processes";
    list->base.reply = list_reply;
    list->base.finish = list_finish;
    list->base.done = list_done;
    list->base.userdata = userdata;
    request.op_case = HEARTH__V1__REQUEST__OP_LIST;
    request.list = &message;
    return call_start_consume(c, &list->base, &request, deadline_usec);
}
