#pragma once

#include "layers/tree.h"

/* The layers of an image, open and put together. */
struct stack {
    struct layer *layers; /* owned */
    size_t n;
    struct tree *tree; /* owned */
};
int stack_open(char *const *diff_ids, struct stack *ret, struct error *err);
void stack_done(struct stack *s);
#define _cleanup_stack_ _cleanup_(stack_done)
