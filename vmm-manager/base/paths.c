#include "base/paths.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Filled once; the first call of each comes from main, before there are threads. */
static const char *from_env(const char *variable, const char *fallback, char *text, size_t size)
{
    const char *value;
    size_t n;

    if (text[0])
        return text;
    value = getenv(variable);
    if (!value || value[0] == '\0')
        value = fallback;
    if (value[0] == '/') {
        (void)snprintf(text, size, "%s", value);
    } else {
        char cwd[PATH_MAX / 2];

        if (!getcwd(cwd, sizeof(cwd)))
            cwd[0] = '\0';
        (void)snprintf(text, size, "%s/%s", cwd, value);
    }
    n = strlen(text);
    while (n > 1 && text[n - 1] == '/')
        text[--n] = '\0';
    return text;
}

const char *paths_cache_dir(void)
{
    static char text[PATH_MAX];

    return from_env("HEARTH_CACHE", "/var/cache/hearth", text, sizeof(text));
}

const char *paths_state_dir(void)
{
    static char text[PATH_MAX];

    return from_env("HEARTH_STATE", "/var/lib/hearth", text, sizeof(text));
}

const char *paths_socket(void)
{
    static char text[PATH_MAX], fallback[PATH_MAX + 16];

    (void)snprintf(fallback, sizeof(fallback), "%s/hearthd.sock", paths_state_dir());
    return from_env("HEARTH_SOCKET", fallback, text, sizeof(text));
}

const char *paths_program_dir(void)
{
    static char text[PATH_MAX];
    ssize_t n;
    char *slash;

    if (text[0])
        return text;
    n = readlink("/proc/self/exe", text, sizeof(text) - 1);
    if (n <= 0)
        (void)snprintf(text, sizeof(text), "/usr/bin/hearth");
    else
        text[n] = '\0';
    slash = strrchr(text, '/');
    if (slash && slash != text)
        *slash = '\0';
    return text;
}
