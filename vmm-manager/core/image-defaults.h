#pragma once

#include "model/spec.h"
#include "oci/config.h"

/*
 * Fills what a spec leaves open from the image's configuration: user, directory, environment (the
 * spec's own variables win), entrypoint and command. A spec with an entrypoint of its own does not
 * take the image's command. 0 or -ENOMEM.
 */
int image_defaults(struct sandbox_spec *spec, const struct image_config *config);
