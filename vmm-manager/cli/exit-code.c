#include "cli/exit-code.h"

#include "cli/cli.h"

int exit_code_of_error(enum error_code code)
{
    switch (code) {
    case ERR_COMMAND_NOT_FOUND:
        return 127;
    case ERR_COMMAND_NOT_EXECUTABLE:
        return 126;
    case ERR_INVALID_ARGUMENT:
        return EXIT_USAGE;
    default:
        return EXIT_FAILED;
    }
}

int exit_code_of_result(const json_t *result)
{
    const json_t *code = json_object_get(result, "exit_code");
    const json_t *signo = json_object_get(result, "signal");
    json_int_t value;

    if (json_is_true(json_object_get(result, "timed_out")))
        return 124;
    if (json_is_integer(code)) {
        value = json_integer_value(code);
        return value >= 0 && value <= 255 ? (int)value : EXIT_FAILED;
    }
    value = json_integer_value(signo);
    return value > 0 && value < 128 ? 128 + (int)value : EXIT_FAILED;
}
