#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <termios.h>

/* Our terminal while a guest's terminal is shown on it. */
struct terminal {
    bool raw;
    struct termios saved;
};

/* Raw mode on stdin. 0, or a negative errno when stdin is no terminal. */
int terminal_raw(struct terminal *t);
/* As it was before; safe at any time and more than once. */
void terminal_restore(struct terminal *t);
/* After SIGCONT: whoever stopped us may have changed the mode. */
void terminal_again(struct terminal *t);
/* Size of whichever of our streams is a terminal; -ENOTTY when none is. */
int terminal_size(uint16_t *ret_rows, uint16_t *ret_cols);
