#include <stdlib.h>
#include <string.h>

#include "api/native/handlers.h"
#include "api/native/native.h"
#include "api/native/ticket.h"
#include "base/worker.h"
#include "oci/pull.h"

/* Logins of registries: asked for and kept on a worker. */
struct login_job {
    struct ticket *ticket;
    char *registry, *username, *password; /* owned; without a password: logout */
    int r;
    struct error err;
};

static void job_free(struct login_job *job)
{
    if (job->password)
        explicit_bzero(job->password, strlen(job->password));
    free(job->registry);
    free(job->username);
    free(job->password);
    free(job);
}

static void login_run(void *data)
{
    struct login_job *job = data;

    job->r = job->password ? registry_login(job->registry, job->username, job->password, &job->err)
                           : registry_logout(job->registry, &job->err);
}

static void login_done(void *data, int cancelled)
{
    struct login_job *job = data;

    if (cancelled)
        job->r = error_set(&job->err, ECANCELED, "login: the daemon ends");
    ticket_answer_done(job->ticket, job->r < 0 ? &job->err : NULL);
    job_free(job);
}

static void login_start(struct request *req, const struct field *fields, size_t count)
{
    struct login_job *job = calloc(1, sizeof(*job));
    const _Atomic bool *stop;
    struct error err = {0};
    int r;

    if (!job) {
        (void)error_set(&err, ENOMEM, "login: out of memory");
        request_answer_error(req, &err);
        return;
    }
    if (!native_decode(req, fields, count, job) || !(job->ticket = ticket_new(req, NULL))) {
        job_free(job);
        return;
    }
    r = workers_submit(core_image_workers(native_of(req)->core, &stop), login_run, login_done, job);
    if (r >= 0)
        return;
    (void)ticket_take(job->ticket);
    job_free(job);
    error_fill(&err, r, "login");
    request_answer_error(req, &err);
}

#define FIELD(key, max)                                                                            \
    {                                                                                              \
#key, FIELD_STRING, offsetof(struct login_job, key), 1, max, true                          \
    }

void handle_registry_login(struct request *req)
{
    static const struct field fields[] = {FIELD(registry, 255), FIELD(username, 255),
                                          FIELD(password, 8191)};

    login_start(req, fields, ARRAY_SIZE(fields));
}

void handle_registry_logout(struct request *req)
{
    static const struct field fields[] = {FIELD(registry, 255)};

    login_start(req, fields, ARRAY_SIZE(fields));
}
