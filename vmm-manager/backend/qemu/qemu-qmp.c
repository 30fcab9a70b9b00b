#include "backend/qemu/qemu-qmp.h"

#include <libvirt/libvirt-qemu.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fd.h"

/* How long to trust in the event before asking. */
#define EVENT_TRUST_USEC (100 * USEC_PER_MSEC)

static void json_cleanup(json_t **j)
{
    json_decref(*j);
}

/*
 * What QEMU answered: {"return": …} or {"error": {"desc": …}}. The name comes as text because
 * asking libvirt for it makes it forget the error of the call before.
 */
static int read_reply(const char *id, const char *text, json_t **ret_reply, struct error *err)
{
    _cleanup_(json_cleanup) json_t *json = json_loads(text, JSON_DECODE_ANY, NULL);
    const char *desc = json_string_value(json_object_get(json_object_get(json, "error"), "desc"));
    json_t *value = json_object_get(json, "return");

    if (!value)
        return error_set_code(err, ERR_BACKEND_FAILED, "QEMU of '%s' refused: %s", id,
                              desc ? desc : "no reason given");
    if (ret_reply)
        *ret_reply = json_incref(value);
    return 0;
}

int qmp_command(virDomainPtr dom, const char *command, json_t **ret_reply, struct error *err)
{
    const char *id = virDomainGetName(dom);
    _cleanup_free_ char *text = NULL;

    if (virDomainQemuMonitorCommand(dom, command, &text, 0) < 0)
        return driver_error(err, "command QEMU of", id);
    return read_reply(id, text, ret_reply, err);
}

/*
 * Hands QEMU a descriptor under the name "state". A file: address exists from QEMU 8.2 on only, and
 * libvirt's seccomp filter forbids exec:; fd: works in all of them.
 */
static int send_fd(virDomainPtr dom, int fd, struct error *err)
{
    const char *id = virDomainGetName(dom);
    _cleanup_free_ char *text = NULL;
    unsigned int n_out = 0;
    int *out = NULL, r;

    r = virDomainQemuMonitorCommandWithFiles(
        dom, "{\"execute\":\"getfd\",\"arguments\":{\"fdname\":\"state\"}}", 1, &fd, &n_out, &out,
        &text, 0);
    for (unsigned int i = 0; r >= 0 && i < n_out; i++)
        (void)fd_close(out[i]);
    free(out);
    if (r < 0)
        return driver_error(err, "pass the state file to QEMU of", id);
    return read_reply(id, text, NULL, err);
}

/* The truth when no event came; -EINPROGRESS while it goes on. */
static int ask_migration(virDomainPtr dom, struct error *err)
{
    _cleanup_(json_cleanup) json_t *reply = NULL;
    const char *status, *why;
    int r;

    r = qmp_command(dom, "{\"execute\":\"query-migrate\"}", &reply, err);
    if (r < 0)
        return r;
    status = json_string_value(json_object_get(reply, "status"));
    if (status && strcmp(status, "completed") == 0)
        return 0;
    if (!status || (strcmp(status, "failed") != 0 && strcmp(status, "cancelled") != 0))
        return -EINPROGRESS;
    why = json_string_value(json_object_get(reply, "error-desc"));
    return error_set_code(err, ERR_BACKEND_FAILED, "QEMU of '%s' cannot move its state: %s",
                          virDomainGetName(dom), why ? why : "no reason given");
}

static int migrate(struct driver *d, virDomainPtr dom, const char *command, uint64_t deadline_usec,
                   struct error *err)
{
    struct migration_wait wait;
    int r;

    driver_migration_begin(d, &wait, virDomainGetName(dom));
    r = qmp_command(dom, command, NULL, err);
    if (r >= 0)
        r = -EINPROGRESS;
    while (r == -EINPROGRESS) {
        uint64_t now = clock_now_usec();

        if (now >= deadline_usec) {
            r = error_set(err, ETIMEDOUT, "state of '%s' did not move in time",
                          virDomainGetName(dom));
            break;
        }
        switch (driver_migration_wait(d, &wait, MIN(deadline_usec, now + EVENT_TRUST_USEC))) {
        case MIGRATION_COMPLETED:
            r = 0;
            break;
        case MIGRATION_RUNS:
            r = ask_migration(dom, err);
            break;
        case MIGRATION_FAILED:
            r = ask_migration(dom, err);
            if (r == 0 || r == -EINPROGRESS)
                r = error_set_code(err, ERR_BACKEND_FAILED, "QEMU of '%s' cannot move its state",
                                   virDomainGetName(dom));
            break;
        }
    }
    driver_migration_end(d, &wait);
    return r;
}

static int set_ignore_shared(virDomainPtr dom, struct error *err)
{
    return qmp_command(dom,
                       "{\"execute\":\"migrate-set-capabilities\",\"arguments\":{\"capabilities\":"
                       "[{\"capability\":\"x-ignore-shared\",\"state\":true}]}}",
                       NULL, err);
}

int qmp_migrate_out(struct driver *d, virDomainPtr dom, int fd, uint64_t deadline_usec,
                    struct error *err)
{
    int r;

    r = set_ignore_shared(dom, err);
    if (r >= 0)
        r = qmp_command(dom,
                        "{\"execute\":\"migrate-set-parameters\",\"arguments\":"
                        "{\"max-bandwidth\":9223372036853727232}}",
                        NULL, err);
    if (r >= 0)
        r = send_fd(dom, fd, err);
    if (r >= 0)
        r = migrate(d, dom, "{\"execute\":\"migrate\",\"arguments\":{\"uri\":\"fd:state\"}}",
                    deadline_usec, err);
    return r;
}

int qmp_migrate_in(struct driver *d, virDomainPtr dom, int fd, bool ignore_shared,
                   uint64_t deadline_usec, struct error *err)
{
    int r = 0;

    if (ignore_shared)
        r = set_ignore_shared(dom, err);
    if (r >= 0)
        r = send_fd(dom, fd, err);
    if (r >= 0)
        r = migrate(d, dom,
                    "{\"execute\":\"migrate-incoming\",\"arguments\":{\"uri\":\"fd:state\"}}",
                    deadline_usec, err);
    return r;
}

/*
 * Made for Xen, which moves memory itself, but nothing in it needs Xen. Not `live`: that would hand
 * the disks over to another QEMU.
 */
int qmp_save_devices(virDomainPtr dom, const char *path, struct error *err)
{
    _cleanup_(json_cleanup) json_t *json =
        json_pack("{s:s, s:{s:s, s:b}}", "execute", "xen-save-devices-state", "arguments",
                  "filename", path, "live", 0);
    _cleanup_free_ char *command = json ? json_dumps(json, JSON_COMPACT) : NULL;

    if (!command)
        return error_set(err, EINVAL, "cannot say '%s' to QEMU", path);
    return qmp_command(dom, command, NULL, err);
}
