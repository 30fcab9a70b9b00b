#pragma once

#include <stdbool.h>
#include <stdint.h>

/*
 * Whether hearth-init runs before everything else in the guest. It does while it answers: what a
 * shell has said goes out at once, not when the shell has next to wait, and a guest whose programs
 * take all of its CPUs still hears its host. It does not while output comes without end: then the
 * programs fill their pipes meanwhile, and it takes much at a time. A request, and a pause of the
 * output, end that.
 */
struct urgency {
    bool output;      /* was read since the last turn */
    unsigned streak;  /* turns with output, one soon after the other and without input between */
    uint64_t at_usec; /* of the last such turn */
};

static inline void urgency_output(struct urgency *u)
{
    u->output = true;
}

/* Of a program, or something that the host asks for. */
static inline void urgency_input(struct urgency *u)
{
    u->streak = 0;
}

/* What it should be from the turn that ends now, until the next. */
bool urgency_turn(struct urgency *u, uint64_t now_usec);

/* When it is urgent again although nothing happens, USEC_INFINITY: it is urgent. */
uint64_t urgency_deadline(const struct urgency *u);

/* Does it: the first of the real-time processes, or one among all; children are the latter. */
void urgency_apply(bool urgent);
