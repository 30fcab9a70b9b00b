#pragma once

#include <stdbool.h>

#include "base/error.h"

/*
 * What the host's configuration says about registries: /etc/hearth/registries.json, or the file
 * that HEARTH_REGISTRIES names: {"insecure": ["HOST:PORT"], "mirrors": {"HOST": ["HOST:PORT"]}}.
 * HEARTH_INSECURE_REGISTRIES adds hosts, separated by commas. Only hosts named insecure are spoken
 * to in plain HTTP.
 */
struct registries {
    char **insecure; /* owned strv */
    char **mirrors;  /* owned strv of "HOST=MIRROR", in order */
};

int registries_load(struct registries *ret, struct error *err);
void registries_done(struct registries *r);
bool registries_is_insecure(const struct registries *r, const char *host);
