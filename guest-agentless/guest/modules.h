#pragma once

#include "base/error.h"

/*
 * Loads the modules named in DIR/modules.list, in its order. No list: none needed. One that is
 * already there or built in is fine; one that cannot be loaded is told on the console and passed
 * over, since the mount that needs it says it better.
 */
int modules_load(const char *dir, struct error *err);
