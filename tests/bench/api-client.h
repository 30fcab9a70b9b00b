#pragma once

#include <stddef.h>

/* As plain a client of the API as the bare side of a benchmark is one: blocking, no library. */
#define API_ANSWER_MAX 65536u

struct api_answer {
    char data[API_ANSWER_MAX + 1]; /* head and body, and what came behind them; ends with a NUL */
    size_t size;
    size_t head; /* bytes up to the body */
    int status;
};

/* A connected socket; the caller closes it. */
int api_connect(const char *path);

/* Sends a request that is ready and reads its answer; of one that upgrades, only the head. */
int api_ask(int fd, const char *request, size_t size, struct api_answer *ret);
