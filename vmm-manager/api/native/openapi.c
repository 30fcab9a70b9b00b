#include <stddef.h>

#include "api/native/handlers.h"
#include "api/native/openapi.h"
#include "api/http.h"

/* The file as it stands beside this one, taken in by the assembler. */
__asm__(".section .rodata\n"
        ".global openapi_start\n.global openapi_end\n"
        "openapi_start: .incbin \"" HEARTH_OPENAPI_FILE "\"\n"
        "openapi_end: .byte 0\n"
        ".previous\n");
extern const char openapi_start[], openapi_end[];

const char *openapi_text(size_t *ret_size)
{
    *ret_size = (size_t)(openapi_end - openapi_start);
    return openapi_start;
}

void handle_openapi(struct request *req)
{
    size_t size;
    const char *text = openapi_text(&size);

    request_answer_text(req, "application/yaml", text, size);
}
