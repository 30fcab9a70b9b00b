#pragma once

/* HEARTH_VERSION comes from the build; a tool that compiles a file alone still gets a text. */
#ifdef HEARTH_VERSION
#define HEARTH_INIT_VERSION HEARTH_VERSION
#else
#define HEARTH_INIT_VERSION "unknown"
#endif
