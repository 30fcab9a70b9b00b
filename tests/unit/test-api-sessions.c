#include "api-fixture.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/strv.h"

static json_t *run(struct api_fixture *f, const char *session, const char *text)
{
    char path[128];
    json_t *body = json_pack("{s:s}", "text", text), *answer;
    char *dumped = json_dumps(body, 0);
    (void)snprintf(path, sizeof(path), "/sessions/%s/run", session);
    unsigned status = api_ask_box(f, "POST", path, dumped, &answer);
    if (status != 200)
        test_fail(__FILE__, __LINE__, "%u %s", status, api_string(answer, "message"));
    free(dumped);
    json_decref(body);
    return answer;
}

TEST(the_default_session_keeps_its_state)
{
    struct api_fixture f;
    json_t *answer;
    api_begin(&f);
    json_decref(run(&f, "default", "cd /usr; X=1; f() { echo $X; }"));
    answer = run(&f, "default", "f; pwd; echo err >&2; (exit 3)");
    ASSERT_STREQ(api_string(answer, "stdout"), "1\n/usr\n");
    ASSERT_STREQ(api_string(answer, "stderr"), "err\n");
    ASSERT_STREQ(api_string(answer, "cwd"), "/usr");
    ASSERT_EQ(api_int(answer, "exit_code"), 3);
    ASSERT_EQ(api_int(answer, "command"), 2);
    ASSERT_TRUE(json_is_false(json_object_get(answer, "shell_exited")));
    json_decref(answer);
    ASSERT_EQ(api_ask_box(&f, "GET", "/sessions", NULL, &answer), 200);
    ASSERT_STREQ(api_string(json_array_get(json_object_get(answer, "sessions"), 0), "name"),
                 "default");
    json_decref(answer);
    api_end(&f);
}

TEST(sessions_are_made_named_and_removed)
{
    struct api_fixture f;
    json_t *answer;
    api_begin(&f);
    ASSERT_EQ(api_ask_box(&f, "POST", "/sessions",
                          "{\"name\": \"work\", \"cwd\": \"/usr\", \"env\": {\"A\": \"b c\"}}",
                          &answer),
              201);
    ASSERT_STREQ(api_string(answer, "name"), "work");
    json_decref(answer);
    answer = run(&f, "work", "pwd; echo \"$A\"");
    ASSERT_STREQ(api_string(answer, "stdout"), "/usr\nb c\n");
    json_decref(answer);
    api_fails(&f, "POST", "sessions", "{\"name\": \"work\"}", 409, "already_exists");
    api_fails(&f, "POST", "sessions", "{\"name\": \"x\", \"kind\": \"odd\"}", 400,
              "invalid_argument");
    api_fails(&f, "POST", "sessions/none/run", "{\"text\": \"true\"}", 404, "session_not_found");
    ASSERT_EQ(api_ask_box(&f, "DELETE", "/sessions/work", NULL, NULL), 204);
    api_fails(&f, "DELETE", "sessions/work", NULL, 404, "session_not_found");
    api_end(&f);
}

TEST(a_command_is_streamed_with_its_input)
{
    struct api_fixture f;
    struct client c;
    struct buf out;
    unsigned type;
    api_begin(&f);
    buf_init(&out, 4096);
    api_upgrade(&f, &c, "/sessions/default/run",
                "{\"text\": \"read a; echo got $a; cat\", \"stdin\": true}");
    struct frame frame = api_frame(&c);
    ASSERT_EQ(frame.type, STREAM_STARTED);
    ASSERT_TRUE(strstr(frame.payload, "\"command\":1") != NULL);
    ASSERT_TRUE(strstr(frame.payload, "\"session\":\"default\"") != NULL);
    api_frame_send(&c, STREAM_STDIN, "line\nrest", 9);
    api_frame_send(&c, STREAM_STDIN_EOF, NULL, 0);
    json_t *last = api_finish(&c, &out, &type);
    ASSERT_EQ(type, STREAM_EXIT);
    ASSERT_STREQ(buf_string(&out), "got line\nrest");
    ASSERT_EQ(api_int(last, "exit_code"), 0);
    json_decref(last);
    client_close(&c);
    buf_done(&out);
    api_end(&f);
}

TEST(a_command_outlives_its_client_and_is_attached_again)
{
    struct api_fixture f;
    struct client c;
    struct buf out;
    unsigned type;
    api_begin(&f);
    _cleanup_free_ char *go = string_printf("%s/session-go", test_tmpdir());
    char *body = string_printf("{\"text\": \"echo one; until test -e %s; do sleep 0.05; done;"
                               "echo two; (exit 4)\"}",
                               go);
    api_upgrade(&f, &c, "/sessions/default/run", body);
    free(body);
    while (api_frame(&c).type != STREAM_STDOUT)
        continue;
    client_close(&c);
    client_run_for(f.core.loop, 100);
    ASSERT_OK(file_write_atomic(go, "", 0, 0600, NULL));
    buf_init(&out, 4096);
    api_upgrade(&f, &c, "/sessions/default/attach", "{}");
    json_t *last = api_finish(&c, &out, &type);
    ASSERT_EQ(type, STREAM_EXIT);
    ASSERT_EQ(api_int(last, "exit_code"), 4);
    ASSERT_STREQ(buf_string(&out), "one\ntwo\n");
    json_decref(last);
    client_close(&c);
    buf_done(&out);
    api_end(&f);
}

TEST(a_command_that_stalls_holds_up_its_session_only)
{
    struct api_fixture f;
    struct client c;
    json_t *answer;
    api_begin(&f);
    ASSERT_EQ(api_ask_box(&f, "POST", "/sessions", "{\"name\": \"stall\"}", NULL), 201);
    api_upgrade(&f, &c, "/sessions/stall/run", "{\"text\": \"yes\"}");
    while (api_frame(&c).type != STREAM_STDOUT)
        continue;
    answer = run(&f, "default", "echo ok");
    ASSERT_STREQ(api_string(answer, "stdout"), "ok\n");
    json_decref(answer);
    /* Removed under its client's feet: the client hears of it. */
    ASSERT_EQ(api_ask_box(&f, "DELETE", "/sessions/stall", NULL, NULL), 204);
    unsigned type;
    json_decref(api_finish(&c, NULL, &type));
    client_close(&c);
    api_end(&f);
}
