#include "cli/command.h"

#include <stdio.h>
#include <string.h>

#include "base/macros.h"
#include "cli/verbs.h"

/* Help, the manual and completion, all printed from the tables of verbs and options. */

static void print_option(FILE *to, const struct option_def *def)
{
    char left[64];

    (void)snprintf(left, sizeof(left), "%s%c%s--%s%s%s", def->letter ? "-" : "  ",
                   def->letter ? def->letter : ' ', def->letter ? ", " : " ", def->name,
                   def->value ? " " : "", def->value ? def->value : "");
    (void)fprintf(to, "  %-24s  %s\n", left, def->help);
}

static void print_options(FILE *to, uint64_t set)
{
    for (unsigned i = 0; i < OPTION_COUNT; i++)
        if (set >> i & 1)
            print_option(to, &option_defs[i]);
}

static void print_verb_line(FILE *to, const struct command *c)
{
    (void)fprintf(to, "  %-16s  %s\n", c->name, c->help);
}

void help_print(FILE *to)
{
    (void)fputs("Sandboxes for code you do not trust: real virtual machines, from one command.\n\n"
                "Usage: hearth [OPTION...] VERB [ARG...]\n\nVerbs:\n",
                to);
    for (unsigned i = 0; i < command_count; i++)
        print_verb_line(to, &commands[i]);
    (void)fputs("\nOptions of every verb:\n", to);
    print_options(to, OPT_GLOBAL);
    (void)fputs("\nExamples:\n"
                "  hearth run -- uname -a\n"
                "  hearth run                      a shell in a fresh sandbox\n"
                "  id=$(hearth create)\n"
                "  hearth session run $id -- 'cd /tmp; x=1'\n"
                "  hearth session run $id -- 'echo $x; pwd'\n"
                "  hearth rm $id\n\n"
                "'hearth help VERB' tells more.\n",
                to);
}

/* What is the verb's own. */
static void print_command(FILE *to, const struct command *c)
{
    (void)fprintf(to, "Usage: hearth %s%s%s%s\n\n%s.\n", c->name, c->options ? " [OPTION...]" : "",
                  c->args[0] ? " " : "", c->args, c->help);
    if (c->details)
        (void)fprintf(to, "%s\n", c->details);
    if (c->alias)
        (void)fprintf(to, "Also called '%s'.\n", c->alias);
    if (c->options) {
        (void)fputs("\nOptions:\n", to);
        print_options(to, c->options);
    }
}

void help_print_command(FILE *to, const struct command *c)
{
    print_command(to, c);
    (void)fputs("\nOptions of every verb:\n", to);
    print_options(to, OPT_GLOBAL);
}

bool help_print_topic(FILE *to, const char *topic)
{
    char *words[] = {(char *)(uintptr_t)topic, NULL};
    const struct command *c;
    size_t n = strlen(topic);
    int used;

    c = command_find(1, words, &used);
    if (c) {
        help_print_command(to, c);
        return true;
    }
    if (!command_is_group(topic))
        return false;
    (void)fprintf(to, "Usage: hearth %s VERB [ARG...]\n\nVerbs:\n", topic);
    for (unsigned i = 0; i < command_count; i++)
        if (strncmp(commands[i].name, topic, n) == 0 && commands[i].name[n] == ' ')
            print_verb_line(to, &commands[i]);
    (void)fprintf(to, "\n'hearth help %s VERB' tells more.\n", topic);
    return true;
}

void help_print_markdown(FILE *to)
{
    (void)fputs("# The command line\n\n"
                "Printed by `hearth help markdown` from the program's own table; do not edit.\n\n"
                "## Options of every verb\n\n```\n",
                to);
    print_options(to, OPT_GLOBAL);
    (void)fputs("```\n", to);
    for (unsigned i = 0; i < command_count; i++) {
        (void)fprintf(to, "\n## hearth %s\n\n```\n", commands[i].name);
        print_command(to, &commands[i]);
        (void)fputs("```\n", to);
    }
}

/* ---- completion ---- */

static void print_words(FILE *to, const struct command *c)
{
    for (unsigned i = 0; i < OPTION_COUNT; i++)
        if ((c->options | OPT_GLOBAL) >> i & 1)
            (void)fprintf(to, "--%s ", option_defs[i].name);
}

static const char *completion_call(enum completion completion)
{
    switch (completion) {
    case COMPLETE_SANDBOX:
        return "_hearth_names ls";
    case COMPLETE_IMAGE:
        return "_hearth_names image ls";
    case COMPLETE_TEMPLATE:
        return "_hearth_names template ls";
    case COMPLETE_FILE:
        return "_hearth_files";
    case COMPLETE_SANDBOX_OR_FILE:
        return "_hearth_files; _hearth_names ls";
    case COMPLETE_VERB:
        return "_hearth_verbs";
    case COMPLETE_NOTHING:
        break;
    }
    return ":";
}

static void print_groups(FILE *to)
{
    const char *last = "";

    (void)fputs("_hearth_verbs() {\n    COMPREPLY=($(compgen -W \"", to);
    for (unsigned i = 0; i < command_count; i++) {
        size_t n = strcspn(commands[i].name, " ");

        if (strncmp(last, commands[i].name, n) != 0 || strcspn(last, " ") != n)
            (void)fprintf(to, "%.*s ", (int)n, commands[i].name);
        last = commands[i].name;
    }
    (void)fputs("\" -- \"$cur\"))\n}\n\n", to);
}

static void print_group_cases(FILE *to)
{
    for (unsigned i = 0; i < command_count; i++) {
        size_t n = strcspn(commands[i].name, " ");

        if (commands[i].name[n] == '\0' ||
            (i > 0 && strncmp(commands[i - 1].name, commands[i].name, n + 1) == 0))
            continue;
        (void)fprintf(to, "    %.*s) COMPREPLY=($(compgen -W \"", (int)n, commands[i].name);
        for (unsigned k = 0; k < command_count; k++)
            if (strncmp(commands[k].name, commands[i].name, n + 1) == 0)
                (void)fprintf(to, "%s ", commands[k].name + n + 1);
        (void)fputs("\" -- \"$cur\")) ;;\n", to);
    }
}

void help_print_completion(FILE *to)
{
    (void)fputs("# bash completion of hearth; printed by 'hearth completion bash'\n\n"
                "_hearth_names() {\n"
                "    COMPREPLY+=($(compgen -W \"$(HEARTH_NO_AUTOSTART=1 hearth \"$@\" --quiet "
                "2>/dev/null)\" -- \"$cur\"))\n"
                "}\n\n"
                "_hearth_files() {\n"
                "    COMPREPLY+=($(compgen -f -- \"$cur\"))\n"
                "    compopt -o filenames\n"
                "}\n\n",
                to);
    print_groups(to);
    (void)fputs("_hearth() {\n"
                "    local cur=${COMP_WORDS[COMP_CWORD]} i verb= words=() flags=\n"
                "    COMPREPLY=()\n"
                "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
                "        [[ ${COMP_WORDS[i]} == -- ]] && return\n"
                "        [[ ${COMP_WORDS[i]} == -* ]] || words+=(\"${COMP_WORDS[i]}\")\n"
                "    done\n"
                "    case \"${COMP_WORDS[COMP_CWORD - 1]}\" in\n"
                "    --image) _hearth_names image ls; return ;;\n"
                "    --template) _hearth_names template ls; return ;;\n"
                "    --socket | --state) _hearth_files; return ;;\n"
                "    --kind) COMPREPLY=($(compgen -W \"pipe tty\" -- \"$cur\")); return ;;\n"
                "    esac\n"
                "    if ((${#words[@]} == 0)); then\n"
                "        _hearth_verbs\n"
                "        return\n"
                "    fi\n"
                "    verb=${words[0]}\n"
                "    if ((${#words[@]} == 1)); then\n"
                "    case \"$verb\" in\n",
                to);
    print_group_cases(to);
    (void)fputs("    esac\n"
                "    ((${#COMPREPLY[@]})) && return\n"
                "    fi\n"
                "    case \"${words[*]} \" in\n",
                to);
    for (unsigned i = 0; i < command_count; i++) {
        (void)fprintf(to, "    \"%s \"*) flags=\"", commands[i].name);
        print_words(to, &commands[i]);
        (void)fprintf(to, "\"; [[ $cur == -* ]] || { %s; } ;;\n",
                      completion_call(commands[i].completion));
    }
    (void)fputs("    esac\n"
                "    [[ $cur == -* ]] && COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\"))\n"
                "}\n"
                "complete -F _hearth hearth\n",
                to);
}

/* ---- the verbs ---- */

int verb_help(struct cli *cli, char **args, uint32_t count)
{
    const struct command *c;
    struct error err = {0};
    int words = 0;

    if (count == 0) {
        help_print(stdout);
        return EXIT_DONE;
    }
    if (count == 1 && strcmp(args[0], "markdown") == 0) {
        help_print_markdown(stdout);
        return EXIT_DONE;
    }
    c = command_find((int)count, args, &words);
    if (c && (uint32_t)words == count) {
        help_print_command(stdout, c);
        return EXIT_DONE;
    }
    if (count == 1 && help_print_topic(stdout, args[0]))
        return EXIT_DONE;
    (void)error_set(&err, EINVAL, "there is no verb '%s%s%s'", args[0], count > 1 ? " " : "",
                    count > 1 ? args[1] : "");
    return cli_fail(cli, &err);
}

int verb_completion(struct cli *cli, char **args, uint32_t count)
{
    struct error err = {0};

    (void)count;
    if (strcmp(args[0], "bash") != 0) {
        (void)error_set(&err, EINVAL, "completion: '%s': only bash is known", args[0]);
        return cli_fail(cli, &err);
    }
    help_print_completion(stdout);
    return EXIT_DONE;
}
