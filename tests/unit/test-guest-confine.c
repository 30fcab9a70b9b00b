#include <string.h>
#include <unistd.h>

#include "guest-client.h"
#include "harness/test.h"

/* Exec with Confine and no_new_privileges, by guest_serve() in this machine's own root. */

static const struct guest_options open_options = {.thawed_from_start = true, .fake_identity = true};

struct confined {
    struct exec_args args;
    Hearth__V1__Confine confine;
    Hearth__V1__Scratch scratch[6], *scratches[6];
    Hearth__V1__StartFile file[200], *files[200];
};

static ProtobufCBinaryData data_of(const char *text)
{
    return (ProtobufCBinaryData){.data = (uint8_t *)(uintptr_t)text, .len = strlen(text)};
}

static void confined_init(struct confined *c, const char *const *argv)
{
    exec_args_init(&c->args, argv);
    hearth__v1__confine__init(&c->confine);
    c->confine.scratch = c->scratches;
    c->confine.files = c->files;
    c->args.exec.confine = &c->confine;
    c->args.exec.no_new_privileges = true;
}

static void add_scratch(struct confined *c, const char *path, uint64_t size)
{
    size_t i = c->confine.n_scratch++;

    hearth__v1__scratch__init(&c->scratch[i]);
    c->scratch[i].path = data_of(path);
    c->scratch[i].size_bytes = size;
    c->scratches[i] = &c->scratch[i];
}

static void add_file(struct confined *c, const char *path, const char *content)
{
    size_t i = c->confine.n_files++;

    hearth__v1__start_file__init(&c->file[i]);
    c->file[i].path = data_of(path);
    c->file[i].content = data_of(content);
    c->files[i] = &c->file[i];
}

static void expect_invalid(struct client *client, struct confined *c)
{
    struct run *r = client_exec(client, &c->args, 0);

    CLIENT_WAIT(client, r->failed || r->closed);
    ASSERT_EQ(r->code, HEARTH__V1__CODE__CODE_INVALID);
}

TEST(confinement_beyond_its_limits_is_refused)
{
    static const char *const argv[] = {"true", NULL};
    struct confined c;
    struct client client;
    char path[600];

    client_start(&client, &open_options);
    confined_init(&c, argv);
    add_scratch(&c, "relative", 65536);
    expect_invalid(&client, &c);
    confined_init(&c, argv);
    add_scratch(&c, "/mnt", 100);
    expect_invalid(&client, &c);
    confined_init(&c, argv);
    add_scratch(&c, "/mnt", UINT64_C(1) << 40);
    expect_invalid(&client, &c);
    confined_init(&c, argv);
    for (unsigned i = 0; i < 5; i++)
        add_scratch(&c, "/mnt", 65536);
    expect_invalid(&client, &c);
    confined_init(&c, argv);
    for (unsigned i = 0; i < 129; i++)
        add_file(&c, "/mnt/x", "");
    expect_invalid(&client, &c);
    confined_init(&c, argv);
    add_file(&c, "", "");
    expect_invalid(&client, &c);
    memset(path, 'a', sizeof(path) - 1);
    path[0] = '/';
    path[sizeof(path) - 1] = '\0';
    confined_init(&c, argv);
    add_file(&c, path, "");
    expect_invalid(&client, &c);
    confined_init(&c, argv);
    add_file(&c, "/mnt/x", "");
    c.file[0].path.len = 7; /* with its NUL */
    expect_invalid(&client, &c);
    client_stop(&client);
}

TEST(confined_process_has_scratch_files_and_nothing_else_to_write)
{
    static const char *const argv[] = {
        "sh", "-c",
        "cat dir/a; grep NoNewPrivs /proc/self/status; touch /var/tmp/x /etc/x /dev/shm/x 2>&1 |"
        " grep -c 'Read-only'; echo fine >b && cat b; head -c 200000 /dev/zero >big; echo $?",
        NULL};
    struct confined c;
    struct client client;
    struct run *r;

    if (geteuid() != 0)
        test_skip("needs root");
    confined_init(&c, argv);
    add_scratch(&c, "/mnt", 65536);
    add_file(&c, "/mnt/dir/a", "content\n");
    c.args.exec.cwd = data_of("/mnt");
    client_start(&client, &open_options);
    r = client_exec(&client, &c.args, 65536);
    CLIENT_WAIT(&client, r->closed || r->failed);
    ASSERT_STREQ(r->message, "");
    ASSERT_STREQ(buf_string(&r->out[1]), "content\nNoNewPrivs:\t1\n3\nfine\n1\n");
    ASSERT_TRUE(strstr(buf_string(&r->out[2]), "No space left"));
    ASSERT_ERR(access("/mnt/dir", F_OK) < 0 ? -errno : 0, ENOENT); /* its own, not ours */
    client_stop(&client);
}

TEST(confined_files_that_cannot_be_written_stop_the_start)
{
    static const char *const argv[] = {"true", NULL};
    struct confined c;
    struct client client;
    struct run *r;

    if (geteuid() != 0)
        test_skip("needs root");
    client_start(&client, &open_options);
    confined_init(&c, argv);
    add_file(&c, "/etc/hearth-test", "x");
    r = client_exec(&client, &c.args, 0);
    CLIENT_WAIT(&client, r->failed || r->closed);
    ASSERT_EQ(r->code, HEARTH__V1__CODE__CODE_SYSTEM);
    ASSERT_TRUE(strstr(r->message, "Read-only"));
    confined_init(&c, argv);
    add_scratch(&c, "/mnt", 65536);
    add_file(&c, "/mnt/a", "x");
    add_file(&c, "/mnt/a/b", "x");
    r = client_exec(&client, &c.args, 0);
    CLIENT_WAIT(&client, r->failed || r->closed);
    ASSERT_EQ(r->code, HEARTH__V1__CODE__CODE_SYSTEM);
    client_stop(&client);
}
