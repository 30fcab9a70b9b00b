#include "layers/stack.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/strv.h"
#include "erofs/store.h"

void stack_done(struct stack *s)
{
    (void)tree_free(s->tree);
    for (size_t i = 0; i < s->n; i++)
        layer_close(&s->layers[i]);
    free(s->layers);
}

int stack_open(char *const *diff_ids, struct stack *ret, struct error *err)
{
    _cleanup_stack_ struct stack opened = {0};
    struct stack *s = &opened;
    size_t count = strv_length(diff_ids);
    int r;

    s->layers = calloc(count + 1, sizeof(s->layers[0]));
    if (!s->layers || tree_new(&s->tree) < 0)
        return error_set(err, ENOMEM, "out of memory");
    for (size_t i = 0; i < count; i++) {
        char pack[256], index[256], name[64];

        r = store_layer_paths(diff_ids[i], pack, index, err);
        if (r == 0)
            r = layer_open(pack, index, &s->layers[i], err);
        if (r < 0)
            return r;
        s->n++;
        (void)snprintf(name, sizeof(name), "layer %zu", i + 1);
        r = tree_apply(s->tree, &s->layers[i], name, err);
        if (r < 0)
            return r;
    }
    *ret = opened;
    opened = (struct stack){0};
    return 0;
}
