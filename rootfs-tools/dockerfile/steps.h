#pragma once

#include "dockerfile/state.h"
#include "erofs/store.h"
#include "layers/stack.h"

/*
 * Results of steps in the image store. Each has a name of its own there, "@" and its key, that no
 * list shows and nobody can pull; its layers stay until images need their room. All block.
 */

/* 1: its layers are in *ret_layers (a strv, owned by the caller). 0: it has to be done. */
int step_find(const char key[65], char ***ret_layers);
/* Remembers a result. The sandbox of a later step boots from it by `ret_name`. */
int step_publish(const char key[65], const struct stage_state *s, char ret_name[REFERENCE_SIZE],
                 struct error *err);
/* The name of what a stage has come to, remembered or not. */
void step_state_key(const struct stage_state *s, char ret[65]);

/*
 * Makes a layer of a tar, in the store. ret_diff_id "" when there is nothing in it. `dir` is a
 * place to work in.
 */
int step_add_layer(const char *dir, const char *tar_path, const char *name,
                   const _Atomic bool *cancel, char ret_diff_id[DIGEST_SIZE], struct error *err);
/* A tar as a tree that is in no store: the context of a build. */
int step_open_context(const char *dir, const char *tar_path, const _Atomic bool *cancel,
                      struct stack *ret, struct error *err);
/* Names the end result; the name is seen from here on. */
int step_publish_image(const char *name, const struct stage_state *s, struct image *ret,
                       struct error *err);
