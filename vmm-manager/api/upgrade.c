#include "api/request.h"

#include <stdlib.h>

#include "base/log.h"

void upgrade_begin(void *cls, struct MHD_Connection *conn, void *con_cls, const char *extra_in,
                   size_t extra_in_size, int sock, struct MHD_UpgradeResponseHandle *handle)
{
    struct request *req = cls;
    struct http_server *server = req->server;

    (void)conn;
    (void)con_cls;
    struct upgrade *up = calloc(1, sizeof(*up));
    if (!up || req->phase != REQUEST_UPGRADING) {
        free(up);
        request_finish(req, REQUEST_GONE);
        (void)MHD_upgrade_action(handle, MHD_UPGRADE_ACTION_CLOSE);
        return;
    }
    req->hup = source_free(req->hup);
    *up = (struct upgrade){
        .server = server,
        .next = server->upgrades,
        .fd = sock,
        .handle = handle,
        .extra = extra_in,
        .n_extra = extra_in_size,
        .state = req->state,
        .over = req->over,
    };
    if (up->next)
        up->next->prev = up;
    server->upgrades = up;
    req->state = NULL;
    req->over = NULL;
    req->upgraded(up, up->state);
}

void request_upgrade(struct request *req, const char *protocol, request_upgraded_fn upgraded)
{
    if (req->phase != REQUEST_HANDLED)
        return;
    struct MHD_Response *response = MHD_create_response_for_upgrade(upgrade_begin, req);
    if (response &&
        (MHD_add_response_header(response, MHD_HTTP_HEADER_UPGRADE, protocol) != MHD_YES ||
         !request_response_headers(req, response, NULL))) {
        MHD_destroy_response(response);
        response = NULL;
    }
    req->status = MHD_HTTP_SWITCHING_PROTOCOLS;
    req->response = response;
    req->upgraded = upgraded;
    req->phase = response ? REQUEST_UPGRADING : REQUEST_FAILED;
    request_wake(req);
}

int upgrade_fd(const struct upgrade *up)
{
    return up->fd;
}

const void *upgrade_extra(const struct upgrade *up, size_t *ret_size)
{
    *ret_size = up->n_extra;
    return up->extra;
}

struct upgrade *upgrade_close(struct upgrade *up)
{
    if (!up)
        return NULL;
    if (up->prev)
        up->prev->next = up->next;
    else
        up->server->upgrades = up->next;
    if (up->next)
        up->next->prev = up->prev;
    (void)MHD_upgrade_action(up->handle, MHD_UPGRADE_ACTION_CLOSE);
    server_kick(up->server);
    free(up);
    return NULL;
}
