#pragma once

#include <jansson.h>

#include "api/http.h"

/*
 * Answers a list: all of it, or with ?limit= and ?cursor= a page in the order of `keys` (names of
 * string members that together are unique and do not change; NULL ends them) and `next_cursor` when
 * there is more. What is made meanwhile may come on a later page; nothing comes twice.
 */
#define PAGE_MAX 1000u
void native_answer_list(struct request *req, const char *name, json_t *array_consume,
                        const char *const *keys);
