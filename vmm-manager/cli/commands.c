#include "cli/command.h"

#include <string.h>

#include "base/macros.h"
#include "cli/verbs.h"

#define NEVER OPTIONS_NEVER_END

/* The table of verbs, in the order of help; two words before the one that they begin with. Help,
 * completion and the manual are printed from it. */
const struct command commands[] = {
    {"run", "[IMAGE] [--] [COMMAND [ARG...]]", 0, ARGS_ANY,
     OPT_SPEC | OPT_STDIO | OPT(TIMEOUT) | OPT(ENTRYPOINT), 0, COMPLETE_NOTHING, verb_run,
     "Run a command in a sandbox of its own, then remove it",
     "Passes stdin, stdout, stderr, signals and the exit status through. Without a command it\n"
     "starts what the image says, or else its shell. A second Ctrl-C kills the command.\n"
     "IMAGE is a word before '--', or one with a tag like python:3.12; it is pulled when it is\n"
     "not there.",
     NULL},
    {"code-run", "[FILE]", 0, 1, OPT(LANGUAGE) | OPT(CODE) | OPT(TIMEOUT) | OPT(INTERACTIVE), NEVER,
     COMPLETE_FILE, verb_code_run, "Run a program in a locked-up sandbox of its own",
     "Without network, with a read-only root, a small writable /sandbox, 256 MiB and 50 "
     "processes.\n"
     "The program is FILE, --code, or else stdin; with --interactive it reads our stdin. The exit\n"
     "status is the program's; 124 after --timeout (30s). Needs the image 'code'.",
     NULL},
    {"create", "", 0, 0, OPT_SPEC | OPT_LIFE, NEVER, COMPLETE_NOTHING, verb_create,
     "Make a sandbox and print its id", NULL, NULL},
    {"ls", "", 0, 0, 0, NEVER, COMPLETE_NOTHING, verb_ls, "List sandboxes",
     "With --quiet: the ids only.", "ps"},
    {"inspect", "ID...", 1, ARGS_ANY, 0, NEVER, COMPLETE_SANDBOX, verb_inspect,
     "Show all about a sandbox, as JSON", NULL, NULL},
    {"exec", "ID [--] COMMAND [ARG...]", 2, ARGS_ANY,
     OPT(ENV) | OPT(USER) | OPT(WORKDIR) | OPT_STDIO | OPT(DETACH) | OPT(TIMEOUT), 1,
     COMPLETE_SANDBOX, verb_exec, "Run a command in a sandbox",
     "The exit status is the command's; 128+N when signal N ended it, 124 after --timeout,\n"
     "127 when it was not found and 126 when it cannot be executed.",
     NULL},
    {"shell", "ID", 1, 1, OPT(ENV) | OPT(USER) | OPT(WORKDIR), NEVER, COMPLETE_SANDBOX, verb_shell,
     "Open a terminal in a sandbox", NULL, NULL},
    {"session run", "ID [--] TEXT...", 2, ARGS_ANY,
     OPT(SESSION) | OPT(TIMEOUT) | OPT(INTERACTIVE) | OPT(NO_STDIN), 1, COMPLETE_SANDBOX,
     verb_session_run, "Run shell text in a sandbox's persistent shell",
     "Directory, variables, functions and jobs stay for the next one. The session is made on\n"
     "first use. Several words are joined with spaces.",
     NULL},
    {"session ls", "ID", 1, 1, 0, NEVER, COMPLETE_SANDBOX, verb_session_ls,
     "List the sessions of a sandbox", NULL, NULL},
    {"session new", "ID NAME", 2, 2, OPT(KIND) | OPT(ENV) | OPT(USER) | OPT(WORKDIR), NEVER,
     COMPLETE_SANDBOX, verb_session_new, "Start a session", NULL, NULL},
    {"session attach", "ID [NAME]", 1, 2, OPT(SESSION), NEVER, COMPLETE_SANDBOX,
     verb_session_attach, "Follow the command that a session runs, or ran last", NULL, NULL},
    {"session close", "ID [NAME]", 1, 2, OPT(SESSION), NEVER, COMPLETE_SANDBOX, verb_session_close,
     "End a session and all it started", NULL, NULL},
    {"cp", "SOURCE... TARGET", 2, ARGS_ANY, OPT(USER), NEVER, COMPLETE_SANDBOX_OR_FILE, verb_cp,
     "Copy files and directories in or out",
     "A path in a sandbox is written ID:/path; '-' is stdin or stdout. Directories are copied\n"
     "whole: files, symbolic links and modes.",
     NULL},
    {"rex", "ID", 1, 1, OPT(PORT) | OPT(TOKEN), NEVER, COMPLETE_SANDBOX, verb_rex,
     "Serve a sandbox as a SWE-ReX runtime on a port of its own",
     "For clients that want one at the root of a host and port. Prints URL and token, then serves\n"
     "until a signal ends it; the daemon may be restarted meanwhile.",
     NULL},
    {"logs", "ID", 1, 1, OPT(TAIL), NEVER, COMPLETE_SANDBOX, verb_logs,
     "Show what the guest's kernel printed", NULL, NULL},
    {"rm", "ID...", 0, ARGS_ANY, OPT(ALL), NEVER, COMPLETE_SANDBOX, verb_rm,
     "Remove sandboxes, whatever runs in them", NULL, NULL},
    {"hibernate", "ID...", 1, ARGS_ANY, 0, NEVER, COMPLETE_SANDBOX, verb_hibernate,
     "Put sandboxes to sleep: no process is left",
     "Memory, processes, sessions and open files are kept and go on where they were. Whoever\n"
     "uses a sleeping sandbox wakes it.",
     "pause"},
    {"resume", "ID...", 1, ARGS_ANY, 0, NEVER, COMPLETE_SANDBOX, verb_resume,
     "Wake sandboxes; using them does so too", NULL, NULL},
    {"fork", "[ID]", 0, 1, OPT(CHILDREN) | OPT(FROM) | OPT(NAME), NEVER, COMPLETE_SANDBOX,
     verb_fork, "Make copies of a running sandbox and print their ids",
     "Memory, processes, sessions and disk as they are now; the sandbox itself goes on. With\n"
     "--from: as they were at a checkpoint.",
     NULL},
    {"checkpoint ls", "ID", 1, 1, OPT(TREE), NEVER, COMPLETE_SANDBOX, verb_checkpoint_ls,
     "List the checkpoints of a sandbox and those it goes back to", NULL, NULL},
    {"checkpoint", "ID", 1, 1, OPT(NAME), NEVER, COMPLETE_SANDBOX, verb_checkpoint,
     "Keep the state of a sandbox to go back to, and print its id", NULL, NULL},
    {"rollback", "ID CHECKPOINT", 2, 2, 0, NEVER, COMPLETE_SANDBOX, verb_rollback,
     "Bring a sandbox back to a checkpoint",
     "What it is now is lost. The checkpoint is checked to the last byte before.", NULL},
    {"snapshot ls", "", 0, 0, 0, NEVER, COMPLETE_NOTHING, verb_snapshot_ls,
     "List snapshots of all kinds", "With --quiet: the ids only.", NULL},
    {"snapshot verify", "ID...", 1, ARGS_ANY, 0, NEVER, COMPLETE_NOTHING, verb_snapshot_verify,
     "Check every byte of snapshots", NULL, NULL},
    {"snapshot repair", "ID...", 1, ARGS_ANY, 0, NEVER, COMPLETE_NOTHING, verb_snapshot_repair,
     "Mend damaged snapshots where that can be",
     "One that does not need the damaged part of what it lies over is put directly over its "
     "template. One that does is left as it is, with the reason; `hearth snapshot rm` removes it.",
     NULL},
    {"snapshot rm", "ID...", 1, ARGS_ANY, 0, NEVER, COMPLETE_NOTHING, verb_snapshot_rm,
     "Remove snapshots that no sandbox needs", NULL, NULL},
    {"image ls", "", 0, 0, 0, NEVER, COMPLETE_NOTHING, verb_image_ls, "List images", NULL, NULL},
    {"image pull", "REFERENCE...", 1, ARGS_ANY, OPT(PLATFORM), NEVER, COMPLETE_IMAGE,
     verb_image_pull, "Get images from a registry",
     "A reference is [HOST/]NAME[:TAG][@DIGEST]. What is there already is not downloaded again,\n"
     "and a download that broke off goes on where it was.",
     NULL},
    {"image build", "[-f FILE] [-t NAME] CONTEXT", 1, 1,
     OPT(DOCKERFILE) | OPT(TAG) | OPT(BUILD_ARG) | OPT(TARGET) | OPT(NO_CACHE) | OPT(RUN_TIMEOUT) |
         OPT(PLATFORM) | OPT(CPUS) | OPT(MEMORY) | OPT(DISK) | OPT(BACKEND),
     NEVER, COMPLETE_FILE, verb_image_build, "Build an image from a Dockerfile",
     "CONTEXT is a directory, or - for a tar on stdin. Every RUN step is a command in a sandbox\n"
     "of the size that the options say. Steps that were taken before with the same files,\n"
     "commands and arguments are not taken again.",
     NULL},
    {"image inspect", "NAME", 1, 1, 0, NEVER, COMPLETE_IMAGE, verb_image_inspect,
     "Show all about an image, as JSON", NULL, NULL},
    {"image import", "--name NAME PATH", 1, 1, OPT(NAME), NEVER, COMPLETE_FILE, verb_image_import,
     "Make an image from a directory or a root tar", NULL, NULL},
    {"image export", "NAME FILE", 2, 2, 0, NEVER, COMPLETE_IMAGE, verb_image_export,
     "Write an image as an OCI archive", "With '-' for the file it goes to stdout.", NULL},
    {"image base", "", 0, 0, OPT(FORCE) | OPT(TAR), NEVER, COMPLETE_NOTHING, verb_image_base,
     "Make the image 'base' from the distribution's packages", NULL, NULL},
    {"image code", "", 0, 0, OPT(FORCE) | OPT(TAR), NEVER, COMPLETE_NOTHING, verb_image_code,
     "Make the image 'code' of code-run from the distribution's packages", NULL, NULL},
    {"image rm", "NAME...", 1, ARGS_ANY, 0, NEVER, COMPLETE_IMAGE, verb_image_rm, "Remove images",
     NULL, NULL},
    {"image prune", "", 0, 0, OPT(ALL), NEVER, COMPLETE_NOTHING, verb_image_prune,
     "Remove what no image needs any more",
     "With --all also pulled images that nothing uses. What a sandbox or a template stands on\n"
     "stays.",
     NULL},
    {"login", "HOST", 1, 1, OPT(USERNAME) | OPT(PASSWORD_STDIN), NEVER, COMPLETE_NOTHING,
     verb_login, "Keep user name and password for a registry", NULL, NULL},
    {"logout", "HOST", 1, 1, 0, NEVER, COMPLETE_NOTHING, verb_logout,
     "Forget user name and password for a registry", NULL, NULL},
    {"kernel ls", "", 0, 0, 0, NEVER, COMPLETE_NOTHING, verb_kernel_ls, "List guest kernels", NULL,
     NULL},
    {"kernel fetch", "", 0, 0, OPT(FORCE), NEVER, COMPLETE_NOTHING, verb_kernel_fetch,
     "Take the guest kernel from the distribution's package", NULL, NULL},
    {"kernel build", "", 0, 0, OPT(FORCE) | OPT(JOBS), NEVER, COMPLETE_NOTHING, verb_kernel_build,
     "Build a minimal guest kernel that boots faster",
     "Takes some ten minutes of CPU time, once; it is the default from then on.", NULL},
    {"firecracker install", "", 0, 0, OPT(URL) | OPT(SHA256) | OPT(DIR) | OPT(FORCE), NEVER,
     COMPLETE_NOTHING, verb_firecracker_install,
     "Download Firecracker, the backend for hosts with KVM",
     "The release that Hearth is tested with, checked by the SHA-256 that is published beside\n"
     "it, or by --sha256.",
     NULL},
    {"template build", "NAME", 1, 1,
     OPT(IMAGE) | OPT(CPUS) | OPT(MEMORY) | OPT(DISK) | OPT(BACKEND) | OPT(RUN) | OPT(COPY) |
         OPT(READY) | OPT(READY_TIMEOUT) | OPT(WARM),
     NEVER, COMPLETE_TEMPLATE, verb_template_build,
     "Set up a machine once and keep it as a template",
     "Boots the image, takes the steps in order and keeps memory and disk as they are then: every\n"
     "sandbox of `--template NAME` starts there, with what runs in it. Built again with the same\n"
     "steps, and the same content of what they copy, it is there at once.",
     "  hearth template build api --image base --copy ./app:/srv/app \\\n"
     "      --run 'cd /srv/app && python3 -m compileall .' \\\n"
     "      --run 'setsid python3 -m http.server 8000 >/dev/null 2>&1 &' \\\n"
     "      --ready 'python3 -c \"import socket; socket.create_connection((\\\"127.0.0.1\\\", "
     "8000))\"'\n"
     "  hearth run --template api -- ps"},
    {"template inspect", "NAME", 1, 1, 0, NEVER, COMPLETE_TEMPLATE, verb_template_inspect,
     "Show a template and how it was made", NULL, NULL},
    {"template ls", "", 0, 0, 0, NEVER, COMPLETE_NOTHING, verb_template_ls, "List templates", NULL,
     NULL},
    {"template rm", "NAME...", 1, ARGS_ANY, 0, NEVER, COMPLETE_TEMPLATE, verb_template_rm,
     "Remove templates",
     "Snapshots keep a template. With sandboxes on it only its name goes; the template follows\n"
     "when nobody needs it any more and there are more than 32 such.",
     NULL},
    {"pool ls", "", 0, 0, 0, NEVER, COMPLETE_NOTHING, verb_pool_ls, "List warm pools",
     "A pool keeps sandboxes of a template running and ready; `run` and `create` take one of them\n"
     "when it fits. CLAIMS were served that way, MISSES found none ready.",
     NULL},
    {"pool set", "TEMPLATE N", 2, 2, 0, NEVER, COMPLETE_TEMPLATE, verb_pool_set,
     "Say how many warm sandboxes a template keeps",
     "0: none. What is not set here is kept as the daemon was told: HEARTH_POOL, 1.", NULL},
    {"key create", "", 0, 0, OPT(TENANT) | OPT(ROLE) | OPT(NAME) | OPT(QUOTA), NEVER,
     COMPLETE_NOTHING, verb_key_create, "Make a key for the API's port and print it",
     "It is shown this once; only its hash is kept. Give it to clients as X-API-Key, or as\n"
     "E2B_API_KEY.",
     NULL},
    {"key ls", "", 0, 0, OPT(TENANT), NEVER, COMPLETE_NOTHING, verb_key_ls, "List keys", NULL,
     NULL},
    {"key revoke", "ID...", 1, ARGS_ANY, 0, NEVER, COMPLETE_NOTHING, verb_key_revoke,
     "Revoke keys, from the next request on", NULL, NULL},
    {"daemon status", "", 0, 0, 0, NEVER, COMPLETE_NOTHING, verb_daemon_status,
     "Show whether the daemon runs", NULL, NULL},
    {"daemon start", "", 0, 0, 0, NEVER, COMPLETE_NOTHING, verb_daemon_start,
     "Start the daemon; every other verb does so when it must", NULL, NULL},
    {"daemon stop", "", 0, 0, 0, NEVER, COMPLETE_NOTHING, verb_daemon_stop,
     "End the daemon; sandboxes stay and are found again", NULL, NULL},
    {"bench", "[WHAT...]", 0, ARGS_ANY,
     OPT(OUT) | OPT(ROUNDS) | OPT(IMAGE) | OPT(TEMPLATE) | OPT(BACKEND) | OPT(CPUS) | OPT(MEMORY),
     NEVER, COMPLETE_NOTHING, verb_bench, "Measure this machine: a table, and histograms as SVG",
     "WHAT is claim, create, exec, session, fork, hibernate, pause, store or restore; without it\n"
     "all of them. Each is measured through the API, as any client sees it, and long ones less\n"
     "often. A RATIO compares two medians of one run: claim, exec and session with an empty call\n"
     "(a request for which the daemon does nothing), a fork of 8 with one restore, bytes written\n"
     "for a sleep with the memory that had changed, a snapshot's write with a plain one. REACH is\n"
     "what we aim for. The pool's size is put back and all that was made removed, also after\n"
     "Ctrl-C.",
     NULL},
    {"doctor", "", 0, 0, 0, NEVER, COMPLETE_NOTHING, verb_doctor,
     "Say what this host can do, and how to fix what it cannot", NULL, NULL},
    {"version", "", 0, 0, 0, NEVER, COMPLETE_NOTHING, verb_version, "Show the versions", NULL,
     NULL},
    {"completion", "bash", 1, 1, 0, NEVER, COMPLETE_NOTHING, verb_completion,
     "Print the completion script of a shell", "Load it with: source <(hearth completion bash)",
     NULL},
    {"help", "[VERB...]", 0, 2, 0, NEVER, COMPLETE_VERB, verb_help, "Show help",
     "'hearth help markdown' prints the help of all verbs as one page.", NULL},
};
const unsigned command_count = ARRAY_SIZE(commands);

static bool two_words_are(const char *name, const char *first, const char *second)
{
    size_t n = strlen(first);

    return strncmp(name, first, n) == 0 && name[n] == ' ' && strcmp(name + n + 1, second) == 0;
}

const struct command *command_find(int argc, char **argv, int *ret_words)
{
    for (unsigned i = 0; i < command_count; i++) {
        const struct command *c = &commands[i];

        if (argc > 1 && two_words_are(c->name, argv[0], argv[1])) {
            *ret_words = 2;
            return c;
        }
        if (argc > 0 &&
            (strcmp(c->name, argv[0]) == 0 || (c->alias && strcmp(c->alias, argv[0]) == 0))) {
            *ret_words = 1;
            return c;
        }
    }
    return NULL;
}

bool command_is_group(const char *word)
{
    size_t n = strlen(word);

    for (unsigned i = 0; i < command_count; i++)
        if (strncmp(commands[i].name, word, n) == 0 && commands[i].name[n] == ' ')
            return true;
    return false;
}
