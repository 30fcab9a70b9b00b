#include "api/native/once.h"

#include <stdlib.h>
#include <string.h>

#include "api/native/native.h"
#include "base/strv.h"

static void answer_again(struct request *req, struct once_answer *answer)
{
    const char *accept = request_header(req, "Accept");

    (void)request_add_header(req, "Idempotency-Replayed", "true");
    if (accept && strstr(accept, "application/x-ndjson")) {
        _cleanup_free_ char *line = string_printf("{\"sandbox\":%s}\n", answer->body);
        request_answer_text(req, "application/x-ndjson", line ? line : "", line ? strlen(line) : 0);
    } else {
        request_answer_bytes(req, answer->status, "application/json", answer->body,
                             strlen(answer->body));
    }
    free(answer->body);
}

bool native_once(struct request *req, struct once **ret)
{
    const char *key = request_header(req, "Idempotency-Key");
    _cleanup_free_ char *scope = NULL, *asked = NULL;
    struct once_answer answer;
    struct error err = {0};
    int r;

    *ret = NULL;
    if (!key)
        return true;
    scope = string_printf("%s %s %s", request_principal(req)->tenant, request_method(req),
                          request_target(req));
    asked = json_dumps(request_json(req), JSON_COMPACT | JSON_SORT_KEYS);
    r = scope && asked ? once_begin(native_of(req)->core, scope, key, asked, ret, &answer, &err)
                       : error_set(&err, ENOMEM, "out of memory");
    if (r == 0)
        return true;
    if (r > 0)
        answer_again(req, &answer);
    else
        request_answer_error(req, &err);
    return false;
}

void native_once_done(struct once *once, unsigned status, const json_t *json)
{
    _cleanup_free_ char *body = NULL;

    if (!once)
        return;
    body = json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (body)
        once_done(once, status, body);
    else
        (void)once_free(once);
}
