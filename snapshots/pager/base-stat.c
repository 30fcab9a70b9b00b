#include "pager/base-stat.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

int base_stat_print(const char *path, char ret[BASE_STAT_SIZE])
{
    struct stat st;

    if (stat(path, &st) < 0)
        return -errno;
    (void)snprintf(ret, BASE_STAT_SIZE, "%ju:%ju:%jd:%jd.%09ld:%jd.%09ld", (uintmax_t)st.st_dev,
                   (uintmax_t)st.st_ino, (intmax_t)st.st_size, (intmax_t)st.st_mtim.tv_sec,
                   st.st_mtim.tv_nsec, (intmax_t)st.st_ctim.tv_sec, st.st_ctim.tv_nsec);
    return 0;
}

int base_stat_check(const struct snapshot *snap, const char *text, struct error *err)
{
    const char *id = snap->layers[snap->n_layers - 1].manifest.info.parent.template_id;
    struct template_base base = {0};
    char now[BASE_STAT_SIZE];
    int r;

    if (text) {
        r = base_stat_print(snap->base.memory, now);
        if (r < 0)
            return error_set(err, -r, "'%s': %s", snap->base.memory, errno_text(-r));
        if (strcmp(text, now) == 0)
            return 0;
        return error_set_code(err, ERR_SNAPSHOT_INVALID, "'%s' has changed since it was verified",
                              snap->base.memory);
    }
    r = template_base_open(snap->store->templates, id, /* digest= */ true, &base, err);
    template_base_done(&base);
    return r;
}
