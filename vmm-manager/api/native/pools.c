#include "api/native/handlers.h"
#include "api/native/native.h"

void handle_pools(struct request *req)
{
    request_answer(req, 200, json_pack("{s:o}", "pools", core_pools_to_json(native_of(req)->core)));
}

void handle_pool_set(struct request *req)
{
    struct {
        uint32_t size;
    } body = {0};
    static const struct field fields[] = {
        {"size", FIELD_U32, 0, 0, UINT32_MAX, true},
    };
    struct error err = {0};
    json_t *pool = NULL;

    if (!native_decode(req, fields, ARRAY_SIZE(fields), &body))
        return;
    if (core_pool_set(native_of(req)->core, request_param(req, 0), body.size, &pool, &err) < 0)
        request_answer_error(req, &err);
    else
        request_answer(req, 200, pool);
}

void handle_pool_unset(struct request *req)
{
    struct error err = {0};

    if (core_pool_unset(native_of(req)->core, request_param(req, 0), &err) < 0)
        request_answer_error(req, &err);
    else
        request_answer_empty(req, 204);
}
