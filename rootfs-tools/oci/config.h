#pragma once

#include <jansson.h>
#include <stddef.h>

#include "base/error.h"
#include "oci/reference.h"

/* What an image says about how to run it, and which layers it is made of. Everything owned. */
struct image_config {
    char **env;        /* "K=V" */
    char **entrypoint; /* NULL: none */
    char **cmd;        /* NULL: none */
    char **ports;      /* "8080/tcp" */
    char **labels;     /* "K=V" */
    char *user;        /* NULL: root */
    char *workdir;     /* NULL: "/" */
    char os[32], architecture[32], variant[16];
};

void image_config_done(struct image_config *config);
#define _cleanup_image_config_ _cleanup_(image_config_done)
int image_config_copy(const struct image_config *from, struct image_config *to);

/*
 * Reads an image's configuration, foreign bytes. *ret_diff_ids is a strv of digests of the
 * uncompressed layers, from the bottom up, owned by the caller.
 */
int image_config_parse(const char *data, size_t size, struct image_config *ret,
                       char ***ret_diff_ids, struct error *err);

/* The part of the form {"Env": […], …} that both ends use; also how records keep it. */
json_t *image_config_to_json(const struct image_config *config); /* NULL: out of memory */
int image_config_from_json(const json_t *json, struct image_config *ret, struct error *err);
