#include <stdlib.h>
#include <string.h>

#include "api/e2b/filter.h"
#include "api/e2b/handlers.h"
#include "api/e2b/object.h"
#include "api/front/access.h"
#include "base/strv.h"

/* Lists of sandboxes, oldest first; a page ends with the id that the next one begins behind. */
#define PAGE_DEFAULT 100u
#define PAGE_MAX 1000u

struct list {
    struct list_filter filter;
    json_t *array;
    const char *after; /* weak: the last id of the page before; NULL: none, or passed */
    size_t limit;
    const char *last; /* weak: the last one of this page */
    bool more;
};

static void add(struct sandbox *sb, void *userdata)
{
    struct list *list = userdata;
    enum sandbox_state state = sandbox_get_state(sb);

    if (list->after) {
        if (strcmp(sandbox_id(sb), list->after) == 0)
            list->after = NULL;
        return;
    }
    if (state != SANDBOX_RUNNING && state != SANDBOX_PAUSED && state != SANDBOX_PAUSING &&
        state != SANDBOX_RESUMING)
        return;
    if (!list_filter_fits(&list->filter, e2b_is_paused(sb), sandbox_get_spec(sb)->metadata))
        return;
    if (json_array_size(list->array) >= list->limit) {
        list->more = true;
        return;
    }
    list->last = sandbox_id(sb);
    (void)json_array_append_new(list->array, e2b_listed_json(sb));
}

static void answer_list(struct request *req, bool pages)
{
    const char *state = NULL, *metadata = NULL, *limit = NULL, *token = NULL;
    struct list list = {.limit = SIZE_MAX};
    struct error err = {0};
    uint64_t n = PAGE_DEFAULT;

    if (!e2b_query(req, "state", &state) || !e2b_query(req, "metadata", &metadata) ||
        !e2b_query(req, "limit", &limit) || !e2b_query(req, "nextToken", &token))
        return;
    if (limit && parse_u64(limit, 1, PAGE_MAX, &n) < 0) {
        e2b_answer_status(req, 400, "'limit': not a number of 1 to 1000");
        return;
    }
    if (list_filter_init(&list.filter, state, metadata, &err) < 0) {
        e2b_answer_error(req, &err);
        return;
    }
    list.array = json_array();
    if (pages) {
        list.limit = (size_t)n;
        list.after = token && token[0] ? token : NULL;
    }
    access_sandbox_each(req, e2b_of(req)->core, add, &list);
    if (list.more && list.last)
        (void)request_add_header(req, "X-Next-Token", list.last);
    list_filter_done(&list.filter);
    request_answer(req, 200, list.array);
}

void handle_e2b_list(struct request *req)
{
    answer_list(req, /* pages= */ true);
}

void handle_e2b_list_v1(struct request *req)
{
    answer_list(req, /* pages= */ false);
}
