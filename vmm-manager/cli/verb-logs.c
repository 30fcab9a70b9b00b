#include "cli/verbs.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/strv.h"
#include "cli/client.h"

int verb_logs(struct cli *cli, char **args, uint32_t count)
{
    _cleanup_free_ char *path = NULL;
    struct http_request request = {.method = "GET", .accept = "text/plain"};
    struct error err = {0};
    char tail[24];
    bool empty = true;
    int r;

    (void)count;
    (void)snprintf(tail, sizeof(tail), "%" PRIu64, cli->options.tail_bytes);
    path = cli->options.tail_bytes > 0 ? client_path("/v1/sandboxes/{}/logs?tail={}", args[0], tail)
                                       : client_path("/v1/sandboxes/{}/logs", args[0]);
    if (!path)
        return EXIT_FAILED;
    request.target = path;
    r = client_open(cli, &request, &err);
    while (r >= 0) {
        const uint8_t *data;
        size_t size;

        r = http_read(&cli->http, &data, &size, &err);
        if (r >= 0 && size == 0) {
            if (empty)
                cli_note(cli, "the guest's kernel has printed nothing");
            return EXIT_DONE;
        }
        empty = false;
        if (r >= 0 && fwrite(data, 1, size, stdout) != size)
            return EXIT_FAILED;
    }
    return cli_fail(cli, &err);
}
