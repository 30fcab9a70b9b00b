#include "host/session-script.h"

#include <signal.h>
#include <string.h>

/*
 * Theory of operation. The shell runs one loop for ever. `__hearth_next` tells the end of the last
 * command on one pipe, then waits on the other for a line, which is one call of a function below:
 *
 *   r NUMBER INPUT LIST KEEP 'text' .   run this text
 *   t 'text' .                          the user's own EXIT trap
 *   p NUMBER .                          answer with this number
 *
 * Lines that do not end in " ." are the rest of a sender that died, and are ignored. bash, whose
 * `read` asks the kernel for each byte of a line, is fed blocks of SESSION_BLOCK bytes:
 *
 *    TEXT #NUMBER    run this block: the text is so plain that it cannot be misread
 *   :LENGTH NUMBER   run a text of this length (four digits), which follows
 *   ,NUMBER          a line follows; so it is after every block of another form
 *
 * Blocks are short: bash takes some 200 instructions for every byte of a word that it expands.
 *
 * Messages back end with a NUL, which no path can hold:
 *
 *   E NUMBER STATUS CWD     the command ended, or (number 0) the shell is ready
 *   BSTATUS BLOCKCWD        the same, from a shell that takes blocks: the last one it took, with a
 *                           dot in front when its text went the long way
 *   X NUMBER STATUS CWD     the shell ends; the next message is its state as shell text
 *   T TRAPS                 list of traps, before E, when LIST was 1
 *   P NUMBER                answer
 *
 * What the odd corners are for:
 * - It is all one line, so that the shell's own error messages count from line 1.
 * - The loop is not in a function: `declare`, `return`, `$@` keep their meaning at top level.
 * - The text runs by `command eval` as a plain command: a syntax error does not end dash and ash,
 *   and errexit stays in force, which it would not in a condition.
 * - A child of bash that is killed before it runs its program runs the EXIT trap too: only the
 * shell itself may say that it ends.
 * - A blank goes before the text: one that starts with a dash is not an option of `eval`.
 * - A stray `break` or `continue` in the text ends at worst the inner loop; __hearth_next, being
 * its condition, runs next in both cases.
 * - With errexit on, `! true` as the last command must not end the shell although `eval` then
 *   returns 1: KEEP allows to append a line that takes the status (not after here-documents or a
 *   final backslash).
 * - `set -x` is off outside the text and put back by a prefix of the text; `set -a` is off while
 *   our variables are set.
 * - A user's function must not stand in for a builtin: bash has `builtin` and sh has `command` for
 *   that, so functions of these two names are removed after each command.
 * - In bash the pipes are descriptors that it has put aside for the time of a redirection, which is
 *   the whole script: out of the way and closed on exec. The places below are taken while that
 *   happens, so that their numbers are known. In the EXIT trap they are still there when a function
 *   called `exit`, otherwise back in their old places. sh can name single digits only, and closes
 *   them for each command.
 * - bash's loop has a short way for a shell whose options are those of the start, after a command
 *   that succeeded, and __hearth_next for all else (__hearth_f is 1): under emulation every step
 *   counts, and a function is copied to be run. Its first test stands in the open: when a text
 *   that went the short way leaves `set -x` on, the trace shows that one test. Texts that may do so
 *   go the long way, as all do from then on; there, __hearth_next comes before the test. What might
 *   change how the short way works (`builtin`, posix mode) goes by lines, after which __hearth_next
 *   looks.
 */
/* clang-format off */
#define TRUE_COMMAND "case . in .) ;; esac"

#define EXIT_TRAP(B, CLOSE)                                                                        \
    "{ __hearth_exit \"$?\" ${1+\"$@\"}; } 2>/dev/null && " TRUE_COMMAND "; "                      \
    "case $__hearth_int in 1) ;; *) " B "eval \"$__hearth_trap\"" CLOSE ";; esac"

/* W: the pipe to us; B, S: in front of builtins and of special builtins. */
#define LINE_FUNCTIONS(W, B, S, CLOSE, RETURN)                                                     \
    "__hearth_nl=$1 __hearth_seq=0 __hearth_text= __hearth_in= __hearth_x= __hearth_a= "           \
    "__hearth_s= __hearth_status=0 __hearth_trap= __hearth_list= __hearth_keep= __hearth_int=; "   \
    "shift; "                                                                                      \
    "__hearth_r() { "                                                                              \
        "__hearth_seq=$1; "                                                                        \
        "case $2 in -) __hearth_in=;; *) __hearth_in=$2;; esac; "                                  \
        "__hearth_list=$3; __hearth_keep=$4; __hearth_text=$5; "                                   \
    "}; "                                                                                          \
    "__hearth_t() { __hearth_trap=$1; " S "trap '" EXIT_TRAP(B, CLOSE) "' EXIT; }; "               \
    "__hearth_p() { " B "printf 'P %s\\0' \"$1\" >&" W "; }; "                                     \
    "__hearth_ret() { " RETURN S "return \"$__hearth_status\"; }; "

/* FIND prepares, so that W is the pipe to us. */
#define EXIT_FUNCTION(FIND, W, NUMBER, B, S, DUMP)                                                         \
    "__hearth_exit() { " FIND                                                                      \
        "case $- in *x*) " S "set +x;; esac; "                                                     \
        "case $- in *a*) " S "set +a;; esac; "                                                     \
        B "printf 'X %s %s %s\\0' \"" NUMBER "\" \"$1\" \"${PWD-}\" >&" W "; "                     \
        S "unset __hearth_text __hearth_line __hearth_part __hearth_b; "                           \
        "{ " DUMP "; } >&" W "; "                                                                  \
        B "printf '\\0' >&" W "; "                                                                 \
        S "return \"$1\"; "                                                                        \
    "}; "

/*
 * One line into __hearth_line; without one, the sender is gone for good. `read` may be cut short by
 * a trap: it returns above 128, and what it had is kept.
 */
#define READ_LINE(READ) "__hearth_line=; " READ " || __hearth_cut \"$?\"; "
#define CUT_FUNCTION(NAME, VAR, READ, B, S)                                                        \
    NAME "() { "                                                                                   \
        "__hearth_part=$" VAR "; "                                                                 \
        "while case $1 in "                                                                        \
            "0) " B "false;; 129|1[3-9]?|2[0-9]?) ;; *) " S "trap - EXIT; " S "exit 0;; "          \
        "esac; do "                                                                                \
            VAR "=; " READ "; " S "set -- \"$?\"; "                                                \
            "__hearth_part=$__hearth_part$" VAR "; "                                               \
        "done; "                                                                                   \
        VAR "=$__hearth_part; "                                                                    \
    "}; "

/* What is seldom needed stands in functions of its own: bash copies a function to run it. */
#define SELDOM_FUNCTIONS(W, B, S, LIST)                                                            \
    "__hearth_traps() { { " B "printf 'T '; " S "trap" LIST "; " B "printf '\\0'; } >&" W "; }; "   \
    "__hearth_on() { "                                                                             \
        "case $__hearth_x in 1) "                                                                  \
            "__hearth_keep=0 "                                                                     \
            "__hearth_text=\"{ __hearth_x=; " S "set -x; } 2>/dev/null;$__hearth_text\";; "        \
        "esac; "                                                                                   \
        "case $__hearth_a$__hearth_keep$- in 2*|1*e*) "                                            \
            "__hearth_text=\"$__hearth_text$__hearth_nl\"'__hearth_s=$?';; "                       \
        "esac; "                                                                                   \
        "case $__hearth_a in a) " S "set -a;; esac; "                                              \
    "}; "

#define SH_NEXT_FUNCTION(W, B, S, OWN, LIST, READ)                                                 \
    CUT_FUNCTION("__hearth_cut", "__hearth_line", READ, B, S)                                                       \
    SELDOM_FUNCTIONS(W, B, S, LIST)                                                                \
    "__hearth_off() { "                                                                            \
        "case $- in *x*) " S "set +x; __hearth_x=1;; esac; "                                       \
        "case $- in *a*) " S "set +a; __hearth_a=a;; *) __hearth_a=;; esac; "                      \
    "}; "                                                                                          \
    "__hearth_next() { "                                                                           \
        "case $- in *[ax]*) __hearth_off;; *) __hearth_a=;; esac; "                                \
        S "unset -f " OWN "; "                                                                     \
        "__hearth_status=${__hearth_s:-$1}; "                                                      \
        "case $__hearth_list in 1) __hearth_traps;; esac; "                                        \
        B "printf 'E %s %s %s\\0' \"$__hearth_seq\" \"$__hearth_status\" \"${PWD-}\" >&" W "; "    \
        "__hearth_seq= __hearth_s=; "                                                              \
        "while case $__hearth_seq in '') ;; *) " B "false;; esac; do "                             \
            READ_LINE(READ)                                                                        \
            "case $__hearth_line in [rtp]\\ *\\ .) "                                               \
                B "eval \"__hearth_$__hearth_line\";; "                                            \
            "esac; "                                                                               \
        "done; "                                                                                   \
        "case $__hearth_x,$__hearth_a,$__hearth_keep$- in 1*|*,a*|*,2*|*e*) __hearth_on;; esac; "   \
    "}; "

#define SH_LOOP(B, S, OPTIONS, COMMAND, CLOSE, TRAP_CLOSE)                                            \
    S "trap '" EXIT_TRAP(B, TRAP_CLOSE) "' EXIT; " OPTIONS                                              \
    "while " TRUE_COMMAND "; do "                                                                  \
        "while { __hearth_next \"$?\" \"$__hearth_nl\"; } 2>/dev/null; do "                        \
            "__hearth_ret && " TRUE_COMMAND "; "                                                   \
            "case $__hearth_in in "                                                                \
                "'') " COMMAND " eval \" $__hearth_text\"" CLOSE ";; "                             \
                "*) " COMMAND " eval \" $__hearth_text\"" CLOSE " <\"$__hearth_in\";; "            \
            "esac; "                                                                               \
        "done; "                                                                                   \
    "done"

#define BASH_DUMP                                                                                  \
    "builtin umask -p; builtin declare -p; builtin declare -f; builtin alias -p; "                 \
    "case $__hearth_int in 1) "                                                                    \
        "builtin trap -p; builtin shopt -p; builtin set +o; builtin printf 'set --'; "             \
        "case ${FUNCNAME[1]-main}$# in main1) ;; main*) builtin printf ' %q' \"${@:2}\";; esac; "  \
        "builtin printf '\\n';; "                                                                  \
    "esac"
#define SH_DUMP "command printf 'umask '; command umask; set; export -p"

#define TEXT_OF(x) #x
#define NUMBER_TEXT(x) TEXT_OF(x)
#define BLOCK NUMBER_TEXT(SESSION_BLOCK)
#define BLOCK_FILL "-----------"
#define BLOCK_END "??????????????[0-9]" /* of a text's block; a sender that died did not get there */

/*
 * `read -N` takes a block at once, a line byte by byte. TMOUT may end the first try, as a trap may,
 * but none for the rest.
 */
#define BASH_READ(N, VAR) "builtin read -r -N " N " ${TMOUT:+-t999999999} -u 30 " VAR
#define BASH_READ_LINE "TMOUT= IFS= builtin read -r -u 30 __hearth_line"
#define BASH_READ_BLOCK                                                                            \
    "builtin read -rN" BLOCK " -u30 __hearth_b || __hearth_rest \"$?\"; "
#define BASH_TELL(STATUS) "builtin printf 'B" STATUS " %s\\0' "

/* All but one block: the rest of a text, or lines up to one that is whole. */
#define BASH_MORE_FUNCTION                                                                         \
    CUT_FUNCTION("__hearth_cut", "__hearth_line", BASH_READ_LINE, "builtin ", "builtin ")          \
    CUT_FUNCTION("__hearth_rest", "__hearth_b",                                                    \
                 BASH_READ("$((" BLOCK "-${#__hearth_part}))", "__hearth_b"),                      \
                 "builtin ", "builtin ")                                                           \
    CUT_FUNCTION("__hearth_body", "__hearth_text",                                                 \
                 BASH_READ("$((10#${__hearth_b:1:4}-${#__hearth_part}))", "__hearth_text"),        \
                 "builtin ", "builtin ")                                                           \
    "__hearth_lines() { "                                                                          \
        "while " TRUE_COMMAND "; do "                                                              \
            READ_LINE(BASH_READ_LINE)                                                              \
            "case $__hearth_line in [rtp]\\ *\\ .) "                                               \
                "builtin eval \"__hearth_$__hearth_line\"; builtin return;; "                      \
            "esac; "                                                                               \
        "done; "                                                                                   \
    "}; "                                                                                          \
    "__hearth_more() { "                                                                           \
        "__hearth_seq=; "                                                                          \
        "while case $__hearth_seq in '') ;; *) builtin false;; esac; do "                          \
            "case $__hearth_b in "                                                                 \
                "\\ " BLOCK_END ") __hearth_seq=m __hearth_text=${__hearth_b%%\\ #*};; "            \
                ":" BLOCK_END ") __hearth_seq=m __hearth_text=; __hearth_body 129;; "              \
                "*) __hearth_lines \"$@\"; "                                                       \
                    "case $__hearth_seq in '') " BASH_READ_BLOCK ";; esac;; "                      \
            "esac; "                                                                               \
        "done; "                                                                                   \
        "__hearth_f=${3-}1; "                                                                      \
        "case $__hearth_b in [\\ :]*) __hearth_b=.${__hearth_b:1};; esac; "                        \
        "case $__hearth_keep$__hearth_x$__hearth_a$- in 2*|?1*|?a*|*e*) __hearth_on;; esac; "      \
    "}; "

/* In a function, which a DEBUG trap does not look into. */
#define BASH_NEXT_FUNCTION                                                                         \
    BASH_MORE_FUNCTION                                                                             \
    SELDOM_FUNCTIONS("31", "builtin ", "builtin ", " -p EXIT")                                     \
    "__hearth_next() { "                                                                           \
        "case $- in *x*) builtin set +x; __hearth_x=1;; esac; "                                    \
        "case $- in *a*) builtin set +a; __hearth_a=a;; *) __hearth_a=;; esac; "                   \
        "builtin unset -f builtin; "                                                               \
        "__hearth_status=${__hearth_s:-$1}; "                                                      \
        "case $__hearth_list in 1) __hearth_traps;; esac; "                                        \
        "__hearth_s= __hearth_in= __hearth_list= __hearth_keep=1; "                                \
        "case $SHELLOPTS in *posix*) __hearth_f=${3-}1;; *) __hearth_f=${3-};; esac; "             \
        BASH_TELL("%s") "\"$__hearth_status\" \"$__hearth_b${PWD-}\" >&31; "                       \
        BASH_READ_BLOCK                                                                            \
        "case ${__hearth_f#n}$__hearth_status$__hearth_x$__hearth_a$-$__hearth_b in "              \
            "0hBc[\\ :]*) ;; "                                                                     \
            "*) __hearth_more \"$@\";; "                                                           \
        "esac; "                                                                                   \
    "}; "

/*
 * The short way is for a shell with its options as they were, after a command that succeeded: under
 * emulation, each step more is time that can be measured. bash copies a function to run it.
 */
/* DONE is "n" where the loop's test comes after it: __hearth_f begins with it then. */
#define BASH_NEXT(DONE) "{ __hearth_next \"$?\" \"$__hearth_nl\"" DONE "; } 2>&32"
#define BASH_LOOP(OPTIONS)                                                                         \
    "builtin trap '" EXIT_TRAP("builtin ", BASH_TRAP_CLOSE) "' EXIT; "                             \
    "shopt -s expand_aliases; " OPTIONS                                                            \
    "while " TRUE_COMMAND "; do "                                                                  \
        "while case $?$__hearth_f$- in "                                                           \
            "0hBc) " BASH_TELL("0") "\"$__hearth_b$PWD\" >&31; " BASH_READ_BLOCK ";; "             \
            "0nhBc) __hearth_f=;; 0n1*) ;; "                                                       \
            "*) " BASH_NEXT("") ";; "                                                              \
        "esac; do "                                                                                \
            "case $__hearth_b in "                                                                 \
                "\\ " BLOCK_END ") builtin eval \"$__hearth_b\";; "                                \
                ":" BLOCK_END ") "                                                                 \
                    "builtin read \"-rN${__hearth_b:1:4}\" -u30 __hearth_text || "                 \
                        "{ __hearth_body \"$?\"; } 2>&32; "                                        \
                    "builtin eval \" $__hearth_text\";; "                                          \
                "*) case $__hearth_f in '') "                                                      \
                        "{ __hearth_more . \"$__hearth_nl\"; } 2>&32;; "                           \
                    "esac; "                                                                       \
                    "__hearth_ret && " TRUE_COMMAND "; "                                           \
                    "case $__hearth_in in "                                                        \
                        "'') builtin command eval \" $__hearth_text\";; "                          \
                        "*) builtin command eval \" $__hearth_text\" <\"$__hearth_in\";; "         \
                    "esac; "                                                                       \
                    BASH_NEXT(" n") " || " TRUE_COMMAND ";; "                                      \
            "esac; "                                                                               \
        "done; "                                                                                   \
    "done"

/* `break` comes to the loop's test: __hearth_next is due. `set -a` may be on and exports it. */
#define BASH_RETURN "__hearth_f=1; builtin declare -g +x __hearth_f; "
#define BASH_TRAP_CLOSE " 3<&- 4>&- 29<&-"
#define BASH_BOOT(OPTIONS)                                                                         \
    "exec 10<>/dev/null 11<&10 12<&10 13<&10 14<&10 15<&10 16<&10 17<&10 18<&10 19<&10 20<&10 "    \
    "21<&10 22<&10 23<&10 24<&10 25<&10 26<&10 27<&10 28<&10 29<&10 30<&- 31<&- 32<&-; "           \
    "{ exec 10<&- 11<&- 12<&- 13<&- 14<&- 15<&- 16<&- 17<&- 18<&- 19<&- 20<&- 21<&- 22<&- 23<&- "  \
    "24<&- 25<&- 26<&- 27<&- 28<&-; "                                                              \
    LINE_FUNCTIONS("31", "builtin ", "builtin ", BASH_TRAP_CLOSE, BASH_RETURN)                     \
    EXIT_FUNCTION("case $BASHPID in $$) ;; *) builtin return \"$1\";; esac; "                      \
                  "__hearth_w=31; builtin true >&31 || __hearth_w=4; ", "$__hearth_w",             \
                  "0",                   "builtin ", "builtin ", BASH_DUMP)                                               \
    BASH_NEXT_FUNCTION                                                                             \
    "__hearth_f=1 __hearth_b=,0000" BLOCK_FILL "; "                                             \
    BASH_LOOP(OPTIONS)                                                                             \
    "; } 3<&- 4>&- 29<&-"
#define SH_CLOSE " 8<&- 9>&-"
#define SH_BOOT(OPTIONS)                                                                           \
    "exec 8<&3 9>&4 3<&- 4>&-; "                                                                   \
    LINE_FUNCTIONS("9", "command ", "", SH_CLOSE, "")                                              \
    EXIT_FUNCTION("", "9", "${__hearth_seq:-0}", "command ", "", SH_DUMP)                                                \
    SH_NEXT_FUNCTION("9", "command ", "", "command", "", "IFS= command read -r __hearth_line <&8")    \
    SH_LOOP("command ", "", OPTIONS, "command", SH_CLOSE, SH_CLOSE)
/* clang-format on */

/*
 * An interrupt ends the whole command, not only the program that runs. An error in a trap takes
 * dash and ash out of `command eval` and back to the loop. bash has no such way: it ends, and the
 * next shell takes over all that can be told, options and traps too. On a terminal ^C goes to the
 * shell as well as to programs that make their own use of it, so only one that died of it counts,
 * and bash, whose terminal would go with it, goes on; there, another signal stands for the
 * interrupt. (Job control would keep ^C away from the shell, but then bash takes a program that
 * died of it as a reason to leave all loops.)
 */
#define BASH_ABORT "__hearth_int=1; builtin exit 130"
#define SH_ABORT "__hearth_s=130; { : \"${__hearth_no?}\"; } 2>/dev/null"

#define BASH_PIPE_OPTIONS "trap '" BASH_ABORT "' INT; "
#define BASH_TTY_OPTIONS "trap : INT; trap '" BASH_ABORT "' HUP; "
#define SH_PIPE_OPTIONS "trap '" SH_ABORT "' INT; "
#define SH_TTY_OPTIONS "trap 'case $? in 130) " SH_ABORT ";; esac' INT; trap '" SH_ABORT "' HUP; "

static const char bash_pipe[] = BASH_BOOT(BASH_PIPE_OPTIONS);
static const char bash_tty[] = BASH_BOOT(BASH_TTY_OPTIONS);
static const char sh_pipe[] = SH_BOOT(SH_PIPE_OPTIONS);
static const char sh_tty[] = SH_BOOT(SH_TTY_OPTIONS);

static const char bash_exit_trap[] = "'" EXIT_TRAP("builtin ", BASH_TRAP_CLOSE) "'";
static const char sh_exit_trap[] = "'" EXIT_TRAP("command ", SH_CLOSE) "'";

const struct session_shell session_shells[] = {
    {.path = "/bin/bash", .bash = true},
    {.path = "/usr/bin/bash", .bash = true},
    {.path = "/bin/sh"},
    {.path = "/usr/bin/sh"},
    {.path = "/bin/ash"},
    {.path = "/bin/busybox", .applet = "sh"},
    {.path = NULL},
};

void session_script_argv(const struct session_shell *shell, enum session_kind kind,
                         const char *argv[static SESSION_ARGV_MAX])
{
    const char *boot = kind == SESSION_TTY ? sh_tty : sh_pipe;
    size_t n = 0;

    if (shell->bash)
        boot = kind == SESSION_TTY ? bash_tty : bash_pipe;
    argv[n++] = shell->path;
    if (shell->applet)
        argv[n++] = shell->applet;
    if (shell->bash) {
        argv[n++] = "--noprofile";
        argv[n++] = "--norc";
    }
    argv[n++] = "-c";
    argv[n++] = boot;
    argv[n++] = shell->bash ? "bash" : "sh"; /* $0, in front of the shell's messages */
    argv[n++] = "\n";                        /* $1: no line can hold it */
    argv[n] = NULL;
}

int session_script_interrupt(enum session_kind kind)
{
    return kind == SESSION_TTY ? SIGHUP : SIGINT;
}

/* ---- traps ---- */

/* Bytes of one shell-quoted word: '…', "…" and \c pieces up to a blank outside of them. */
static size_t word_size(const char *s, size_t size)
{
    char quote = '\0';

    for (size_t i = 0; i < size; i++) {
        if (quote) {
            if (s[i] == quote)
                quote = '\0';
        } else if (s[i] == '\'' || s[i] == '"') {
            quote = s[i];
        } else if (s[i] == '\\') {
            i++;
        } else if (s[i] == ' ' || s[i] == '\n') {
            return i;
        }
    }
    return size;
}

int session_script_foreign_trap(const char *list, size_t size, const char **ret_word,
                                size_t *ret_size)
{
    static const char head[] = "trap -- ", tail[] = " EXIT\n";
    size_t n;

    *ret_word = "";
    *ret_size = 0;
    /* All three shells list EXIT, their signal 0, first. */
    if (size < sizeof(head) - 1 || memcmp(list, head, sizeof(head) - 1) != 0)
        return 1;
    list += sizeof(head) - 1;
    size -= sizeof(head) - 1;
    n = word_size(list, size);
    if (size - n < sizeof(tail) - 1 || memcmp(list + n, tail, sizeof(tail) - 1) != 0)
        return 1;
    if ((n == sizeof(bash_exit_trap) - 1 && memcmp(list, bash_exit_trap, n) == 0) ||
        (n == sizeof(sh_exit_trap) - 1 && memcmp(list, sh_exit_trap, n) == 0))
        return 0;
    *ret_word = list;
    *ret_size = n;
    return 1;
}
