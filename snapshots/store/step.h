#pragma once

/*
 * Where a write of the store can fail or the process can die: every step of consequence asks here
 * first. Outside tests nobody listens and the answer is 0. A test sets the hook to return a
 * negative errno or to end the process at the n-th step, and so walks all of them.
 */
typedef int (*store_step_fn)(const char *step, void *userdata);
void store_step_listen(store_step_fn fn, void *userdata); /* NULL: nobody; not while in use */
int store_step(const char *step);
