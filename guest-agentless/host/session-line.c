#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/macros.h"
#include "host/session-script.h"

/* The units that the shell's loop is fed, see session-script.c. */

#define BLOCK_TEXT_MAX 4000u

/* One shell word. Without `one_line`, newlines stay as they are. */
static int append_quoted(struct buf *line, const char *text, size_t size, bool one_line)
{
    const char *special = one_line ? "'\n" : "'";
    int r = buf_append(line, "'", 1);

    while (r >= 0 && size > 0) {
        size_t n = strcspn(text, special);

        n = MIN(n, size);
        r = buf_append(line, text, n);
        if (r < 0 || n == size)
            break;
        /* $2 of __hearth_next is a newline. */
        r = buf_append_string(line, text[n] == '\n' ? "'\"$2\"'" : "'\\''");
        text += n + 1;
        size -= n + 1;
    }
    return r < 0 ? r : buf_append(line, "'", 1);
}

/* An option word after "set -": tells whether errexit and xtrace are in it. */
static void scan_set(const char *word, bool *errexit, bool *xtrace)
{
    size_t n = strspn(word, "abefhkmnptuvxBCEHPTo");

    if (memchr(word, 'e', n) || strstr(word, "o errexit"))
        *errexit = true;
    if (memchr(word, 'x', n))
        *xtrace = true;
}

static void scan_sets(const char *text, bool *errexit, bool *xtrace)
{
    for (const char *p = strstr(text, "set -"); p; p = strstr(p + 5, "set -"))
        scan_set(p + 5, errexit, xtrace);
}

/* 0: nothing may be appended to the text; 1: when errexit is on; 2: always, it turns errexit on. */
static int keep_flag(const char *text, size_t size)
{
    bool errexit = false, xtrace = false;

    if (size == 0 || text[size - 1] == '\\' || strstr(text, "<<") || strstr(text, "xtrace"))
        return 0;
    scan_sets(text, &errexit, &xtrace);
    if (xtrace)
        return 0;
    return errexit ? 2 : 1;
}

static bool plain_text(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if ((text[i] < ' ' || text[i] > '~') && text[i] != '\n' && text[i] != '\t')
            return false;
    return true;
}

/* What `read -N` takes as it is and counts right in every locale. */
static bool fits_block(const struct buf *line, const char *text, size_t size)
{
    return size <= BLOCK_TEXT_MAX &&
           line->size + size + 2 * SESSION_BLOCK <= SESSION_RECORD_LINE_MAX &&
           keep_flag(text, size) == 1 && plain_text(text, size) && !strstr(text, "builtin") &&
           !strstr(text, "posix") && !strstr(text, "POSIX");
}

/* Bytes of an operator between commands, 0 when there is none or one that is more difficult. */
static size_t operator_size(const char *p)
{
    size_t n = strspn(p, ";&|");

    if (n == 1)
        return *p != '&';
    return n == 2 && p[0] == p[1] && *p != ';' ? 2 : 0;
}

static bool is_reserved(const char *word, size_t size)
{
    static const char *const words[] = {"if",   "then",  "else", "elif", "fi",     "for",
                                        "case", "while", "do",   "done", "esac",   "until",
                                        "in",   "time",  "[[",   "]]",   "select", "coproc"};

    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        if (strlen(words[i]) == size && memcmp(word, words[i], size) == 0)
            return true;
    return size == strlen("function") && memcmp(word, "function", size) == 0;
}

/* Commands of plain words only, which no shell can misread. Says no when in doubt. */
static bool is_simple(const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-./,:=+@%~^*?$[]";
    bool word = false;

    for (const char *p = text + strspn(text, " "); *p; p += strspn(p, " ")) {
        size_t n = strspn(p, plain);

        if (n > 0) {
            if (is_reserved(p, n))
                return false;
            word = true;
        } else {
            n = operator_size(p);
            if (n == 0 || !word)
                return false;
            word = false;
        }
        p += n;
    }
    return word;
}

/* " TEXT" and its number as a comment, for bash to run as it is; or the text follows the block. */
static int append_block(struct buf *line, uint64_t number, const char *text, size_t size)
{
    int r;

    number %= SESSION_BLOCK_NUMBERS;
    if (size <= SESSION_BLOCK - 3 - SESSION_BLOCK_DIGITS && is_simple(text))
        return buf_printf(line, " %s #%0*" PRIu64, text, SESSION_BLOCK - 3 - (int)size, number);
    r = buf_printf(line, ":%04zu%0*" PRIu64, size, SESSION_BLOCK - 5, number);
    return r < 0 ? r : buf_append(line, text, size);
}

/* A line follows. To a shell that takes lines only, it is one that means nothing. */
static int append_line_block(struct buf *line, uint64_t number)
{
    return buf_printf(line, ",%0*" PRIu64 "%*s\n", SESSION_BLOCK_DIGITS,
                      number % SESSION_BLOCK_NUMBERS, SESSION_BLOCK - 2 - SESSION_BLOCK_DIGITS, "");
}

int session_script_run(struct buf *line, enum session_takes takes, uint64_t number,
                       const char *input, bool list_traps, const char *text, size_t size)
{
    int r = 0;

    if (takes == SESSION_TAKES_BLOCKS && !input && !list_traps && fits_block(line, text, size))
        return append_block(line, number, text, size);
    if (takes != SESSION_TAKES_LINES)
        r = append_line_block(line, number);
    if (r >= 0)
        r = buf_printf(line, "r %" PRIu64 " %s %d %d ", number, input ? input : "-",
                       list_traps ? 1 : 0, keep_flag(text, size));

    if (r >= 0)
        r = append_quoted(line, text, size, /* one_line= */ true);
    return r < 0 ? r : buf_append_string(line, " .\n");
}

int session_script_trap(struct buf *line, enum session_takes takes, const char *word, size_t size)
{
    int r = takes == SESSION_TAKES_LINES ? 0 : append_line_block(line, 0);

    if (r >= 0)
        r = buf_append_string(line, "t ");

    if (r >= 0 && size == 0)
        r = buf_append_string(line, "''");
    for (size_t i = 0; r >= 0 && i < size; i++) {
        /* The shell has quoted it: a newline stands between single quotes. */
        if (word[i] == '\n')
            r = buf_append_string(line, "'\"$2\"'");
        else
            r = buf_append(line, &word[i], 1);
    }
    return r < 0 ? r : buf_append_string(line, " .\n");
}

int session_script_probe(struct buf *line, uint64_t number)
{
    char fill[SESSION_BLOCK + 1];

    memset(fill, '\n', SESSION_BLOCK);
    fill[SESSION_BLOCK] = '\0';
    return buf_printf(line, "%sp %" PRIu64 " .\n", fill, number);
}

int session_script_restore(struct buf *line, enum session_takes takes, bool bash, const char *cwd,
                           const char *dump, size_t size)
{
    const char *prefix = bash ? "builtin " : "command ";
    _cleanup_buf_ struct buf state, text;
    int r;

    buf_init(&state, 4 * size + 65536);
    buf_init(&text, 16 * size + 262144);
    r = buf_append(&state, dump, size);
    /* A directory that is gone leaves the shell where it began, and PWD must say so. */
    if (r >= 0)
        r = buf_printf(&state, "\n__hearth_s=${OLDPWD-}; %scd -- ", prefix);
    if (r >= 0)
        r = append_quoted(&state, cwd, strlen(cwd), /* one_line= */ false);
    if (r >= 0)
        r = buf_printf(&state, " || %scd -P .; OLDPWD=$__hearth_s", prefix);
    if (r >= 0)
        r = buf_append_string(&text, bash ? "builtin command eval " : "command eval ");
    if (r >= 0)
        r = append_quoted(&text, buf_string(&state), state.size, /* one_line= */ false);
    /* Variables of ours came along; unless it was interrupted, the old shell has run its trap. */
    if (r >= 0)
        r = buf_append_string(&text, " >/dev/null 2>&1\n"
                                     "case $__hearth_int in 1) ;; *) __hearth_trap=;; esac; "
                                     "__hearth_seq=0 __hearth_s=0 __hearth_x= __hearth_a= "
                                     "__hearth_list= __hearth_int= __hearth_f=1");
    return r < 0 ? r
                 : session_script_run(line, takes, 0, NULL, false, buf_string(&text), text.size);
}

bool session_script_may_trap(const char *text)
{
    bool errexit = false, xtrace = strstr(text, "xtrace");

    scan_sets(text, &errexit, &xtrace);
    if (xtrace || strstr(text, "trap") || strstr(text, "source") || strstr(text, "eval"))
        return true;
    for (const char *p = strstr(text, ". "); p; p = strstr(p + 1, ". "))
        if (p == text || strchr(" \t\n;&|({", p[-1]))
            return true;
    return false;
}
