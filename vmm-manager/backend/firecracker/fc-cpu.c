#include "backend/firecracker/fc-cpu.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/macros.h"

/* Appends the value of the first "KEY : value" line, if there is one. */
static void add_value(const char *text, const char *key, char *name, size_t size)
{
    const char *line = strstr(text, key), *value = line ? strchr(line, ':') : NULL;
    size_t n = strlen(name);

    if (!value)
        return;
    value += 1 + strspn(value + 1, " \t");
    (void)snprintf(name + n, size - n, "%s%.*s", n > 0 ? " " : "", (int)strcspn(value, "\n"),
                   value);
}

void fc_cpu_name(char *name, size_t size)
{
    static const char *const keys[] = {"model name", "CPU implementer", "CPU part", "CPU variant",
                                       "CPU revision"};
    _cleanup_free_ char *text = NULL;

    name[0] = '\0';
    if (file_read("/proc/cpuinfo", 16u << 20, &text, NULL, NULL) < 0) {
        (void)snprintf(name, size, "unknown");
        return;
    }
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
        add_value(text, keys[i], name, size);
}
