#include "api-fixture.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/strv.h"

TEST(tells_what_it_is)
{
    struct api_fixture f;
    json_t *answer;
    api_begin(&f);
    ASSERT_EQ(api_ask(&f, "GET", "/v1/version", NULL, &answer), 200);
    ASSERT_EQ(api_int(answer, "api"), 1);
    ASSERT_EQ(api_int(answer, "pid"), getpid());
    ASSERT_TRUE(api_string(answer, "binary_id")[0] != '\0');
    json_decref(answer);
    ASSERT_EQ(api_ask(&f, "GET", "/v1/kernels", NULL, &answer), 200);
    const json_t *kernel = json_array_get(json_object_get(answer, "kernels"), 0);
    ASSERT_STREQ(api_string(kernel, "name"), "minimal");
    ASSERT_TRUE(json_is_true(json_object_get(kernel, "default")));
    json_decref(answer);
    ASSERT_EQ(api_ask(&f, "GET", "/v1/templates", NULL, &answer), 200);
    ASSERT_TRUE(json_is_array(json_object_get(answer, "templates")));
    json_decref(answer);
    ASSERT_EQ(api_ask(&f, "GET", "/v1/doctor", NULL, &answer), 200);
    ASSERT_TRUE(json_is_array(json_object_get(answer, "checks")));
    json_decref(answer);
    api_end(&f);
}

TEST(lists_finds_and_removes_sandboxes)
{
    struct api_fixture f;
    json_t *answer;
    api_begin(&f);
    ASSERT_EQ(api_ask(&f, "GET", "/v1/sandboxes", NULL, &answer), 200);
    ASSERT_EQ(json_array_size(json_object_get(answer, "sandboxes")), 1);
    json_decref(answer);
    ASSERT_EQ(api_ask_box(&f, "GET", "", NULL, &answer), 200);
    ASSERT_STREQ(api_string(answer, "id"), f.id);
    ASSERT_STREQ(api_string(answer, "state"), "running");
    json_decref(answer);
    ASSERT_EQ(api_ask_box(&f, "GET", "/stats", NULL, &answer), 200);
    ASSERT_TRUE(api_int(answer, "memory_total") > 0);
    ASSERT_TRUE(api_int(json_object_get(answer, "host"), "rss_bytes") > 0);
    json_decref(answer);
    api_fails(&f, "GET", "/v1/sandboxes/none", NULL, 404, "sandbox_not_found");
    api_fails(&f, "POST", "/v1/sandboxes/none/exec", "{\"argv\": [\"true\"]}", 404,
              "sandbox_not_found");
    ASSERT_EQ(api_ask_box(&f, "DELETE", "", NULL, NULL), 204);
    api_fails(&f, "DELETE", "", NULL, 404, "sandbox_not_found");
    api_end(&f);
}

TEST(creates_with_progress_in_lines)
{
    struct api_fixture f;
    struct client c;
    api_begin(&f);
    client_connect(&c, f.core.loop, f.path);
    client_send_text(&c,
                     "POST /v1/sandboxes HTTP/1.1\r\nHost: h\r\nAccept: application/x-ndjson\r\n"
                     "Content-Length: 30\r\n\r\n{\"name\":\"lines\",\"disk_mib\":16} ");
    client_wait_text(&c, "\r\n0\r\n\r\n");
    ASSERT_TRUE(strstr(buf_string(&c.in), "{\"progress\":{\"id\":\"") != NULL);
    ASSERT_TRUE(strstr(buf_string(&c.in), "{\"sandbox\":{") != NULL);
    client_close(&c);
    ASSERT_EQ(api_ask(&f, "GET", "/v1/sandboxes/lines", NULL, NULL), 200);
    api_fails(&f, "POST", "/v1/sandboxes", "{\"name\": \"lines\"}", 409, "already_exists");
    api_fails(&f, "POST", "/v1/sandboxes", "{\"image\": \"none\"}", 404, "image_not_found");
    api_fails(&f, "POST", "/v1/sandboxes", "{\"cpus\": 0}", 400, "invalid_argument");
    api_end(&f);
}

TEST(a_creation_whose_client_is_gone_is_undone)
{
    struct api_fixture f;
    struct client c;
    api_begin(&f);
    fake_knobs.restore_mode = "mute";
    client_connect(&c, f.core.loop, f.path);
    client_send_text(&c, "POST /v1/sandboxes HTTP/1.1\r\nHost: h\r\nContent-Length: 30\r\n\r\n"
                         "{\"name\":\"never\",\"disk_mib\":16} ");
    client_run_for(f.core.loop, 50);
    ASSERT_TRUE(sandbox_find(f.core.core, "never", NULL) != NULL);
    client_close(&c);
    fixture_wait_state(&f.core, "never", -1);
    fake_knobs.restore_mode = NULL;
    api_end(&f);
}

TEST(exec_answers_with_the_whole_result)
{
    struct api_fixture f;
    json_t *answer;
    api_begin(&f);
    ASSERT_EQ(api_ask_box(&f, "POST", "/exec",
                          "{\"argv\": [\"sh\", \"-c\", \"echo out; echo $A >&2; pwd; exit 7\"],"
                          "\"env\": {\"A\": \"x y\"}, \"cwd\": \"/usr\"}",
                          &answer),
              200);
    ASSERT_EQ(api_int(answer, "exit_code"), 7);
    ASSERT_STREQ(api_string(answer, "stdout"), "out\n/usr\n");
    ASSERT_STREQ(api_string(answer, "stderr"), "x y\n");
    ASSERT_TRUE(json_is_false(json_object_get(answer, "timed_out")));
    ASSERT_TRUE(api_int(answer, "process_id") > 0);
    json_decref(answer);
    ASSERT_EQ(
        api_ask_box(&f, "POST", "/exec", "{\"argv\": [\"printf\", \"a\\\\377\\\\000b\"]}", &answer),
        200);
    ASSERT_STREQ(api_string(answer, "stdout_base64"), "Yf8AYg==");
    ASSERT_STREQ(api_string(answer, "stderr"), "");
    json_decref(answer);
    ASSERT_EQ(api_ask_box(&f, "POST", "/exec",
                          "{\"argv\": [\"sh\", \"-c\", \"echo part; sleep 100\"],"
                          "\"timeout_ms\": 300}",
                          &answer),
              200);
    ASSERT_EQ(api_int(answer, "exit_code"), 124);
    ASSERT_TRUE(json_is_true(json_object_get(answer, "timed_out")));
    ASSERT_STREQ(api_string(answer, "stdout"), "part\n");
    json_decref(answer);
    /* Ended and delivered: forgotten. */
    ASSERT_EQ(api_ask_box(&f, "GET", "/processes", NULL, &answer), 200);
    ASSERT_EQ(json_array_size(json_object_get(answer, "processes")), 0);
    json_decref(answer);
    api_end(&f);
}

TEST(exec_that_cannot_start_says_why)
{
    struct api_fixture f;
    struct client c;
    unsigned type;
    api_begin(&f);
    api_fails(&f, "POST", "exec", "{\"argv\": [\"/no/such\"]}", 422, "command_not_found");
    api_fails(&f, "POST", "exec", "{\"argv\": [\"/etc/passwd\"]}", 422, "command_not_executable");
    api_fails(&f, "POST", "exec", "{\"argv\": [\"true\"], \"cwd\": \"/no/such\"}", 422,
              "cwd_not_found");
    api_fails(&f, "POST", "exec", "{\"argv\": [\"true\"], \"user\": \"nobody-here\"}", 422,
              "user_not_found");
    api_fails(&f, "POST", "exec", "{\"argv\": [\"true\"], \"stdin\": true}", 400,
              "invalid_argument");
    api_upgrade(&f, &c, "/exec", "{\"argv\": [\"/no/such\"]}");
    json_t *last = api_finish(&c, NULL, &type);
    ASSERT_EQ(type, STREAM_ERROR);
    ASSERT_STREQ(api_string(last, "code"), "command_not_found");
    json_decref(last);
    client_wait_eof(&c);
    client_close(&c);
    api_end(&f);
}

TEST(capture_is_cut_at_its_limit_and_the_process_goes_on)
{
    struct api_fixture f;
    json_t *answer;
    api_begin(&f);
    ASSERT_EQ(api_ask_box(&f, "POST", "/exec",
                          "{\"argv\": [\"sh\", \"-c\","
                          "\"head -c 9000000 /dev/zero | tr '\\\\0' x; exit 3\"]}",
                          &answer),
              200);
    ASSERT_EQ(api_int(answer, "exit_code"), 3);
    ASSERT_EQ(json_string_length(json_object_get(answer, "stdout")), 8 * 1024 * 1024);
    const json_t *cut = json_object_get(answer, "truncated");
    ASSERT_TRUE(json_is_true(json_object_get(cut, "stdout")));
    ASSERT_TRUE(json_is_false(json_object_get(cut, "stderr")));
    json_decref(answer);
    api_end(&f);
}

TEST(stream_carries_input_and_output_within_windows)
{
    struct api_fixture f;
    struct client c;
    unsigned type;
    size_t total = 1000000, sent = 0, window = STREAM_STDIN_WINDOW, got = 0;
    api_begin(&f);
    api_upgrade(&f, &c, "/exec", "{\"argv\": [\"cat\"], \"stdin\": true}");
    struct frame frame = api_frame(&c);
    ASSERT_EQ(frame.type, STREAM_STARTED);
    char *data = malloc(total);
    ASSERT_TRUE(data != NULL);
    for (size_t i = 0; i < total; i++)
        data[i] = (char)(i * 7 + i / 251);
    while (got < total) {
        size_t piece = MIN(MIN(window, total - sent), (size_t)10000);
        if (piece > 0) {
            api_frame_send(&c, STREAM_STDIN, data + sent, piece);
            sent += piece;
            window -= piece;
            if (sent == total)
                api_frame_send(&c, STREAM_STDIN_EOF, NULL, 0);
            continue;
        }
        frame = api_frame(&c);
        if (frame.type == STREAM_WINDOW) {
            const uint8_t *p = (const uint8_t *)frame.payload;
            window += (size_t)p[0] << 24 | (size_t)p[1] << 16 | (size_t)p[2] << 8 | p[3];
        } else {
            ASSERT_EQ(frame.type, STREAM_STDOUT);
            ASSERT_MEMEQ(frame.payload, data + got, frame.size);
            got += frame.size;
        }
    }
    json_t *last = api_finish(&c, NULL, &type);
    ASSERT_EQ(type, STREAM_EXIT);
    ASSERT_EQ(api_int(last, "exit_code"), 0);
    json_decref(last);
    client_wait_eof(&c);
    client_close(&c);
    free(data);
    api_end(&f);
}

static void breaks(struct api_fixture *f, unsigned frame_type, const void *data, size_t size,
                   unsigned times)
{
    struct client c;
    unsigned type;
    api_upgrade(f, &c, "/exec", "{\"argv\": [\"sleep\", \"100\"], \"stdin\": true}");
    for (unsigned i = 0; i < times; i++)
        api_frame_send(&c, (enum stream_type)frame_type, data, size);
    json_t *last = api_finish(&c, NULL, &type);
    ASSERT_EQ(type, STREAM_ERROR);
    ASSERT_STREQ(api_string(last, "code"), "invalid_argument");
    json_decref(last);
    client_wait_eof(&c);
    client_close(&c);
}

TEST(a_client_that_breaks_the_stream_is_told_and_dropped)
{
    static const char input[65536];
    struct api_fixture f;
    api_begin(&f);
    breaks(&f, STREAM_EXIT, "{}", 2, 1);
    breaks(&f, STREAM_SIGNAL, "", 1, 1);
    breaks(&f, STREAM_RESIZE, "xx", 2, 1);
    breaks(&f, 77, NULL, 0, 1);
    /* More than was granted: sleep reads nothing, the guest's pipe takes some. */
    breaks(&f, STREAM_STDIN, input, sizeof(input), 30);
    ASSERT_EQ(api_ask_box(&f, "POST", "/exec", "{\"argv\": [\"true\"]}", NULL), 200);
    api_end(&f);
}

TEST(signals_reach_the_process)
{
    struct api_fixture f;
    struct client c;
    unsigned type;
    api_begin(&f);
    api_upgrade(&f, &c, "/exec",
                "{\"argv\": [\"sh\", \"-c\", \"trap 'echo got; exit 5' TERM; echo up;"
                "while :; do sleep 0.05; done\"]}");
    while (api_frame(&c).type != STREAM_STDOUT)
        continue;
    api_frame_send(&c, STREAM_SIGNAL, "\x0f", 1);
    json_t *last = api_finish(&c, NULL, &type);
    ASSERT_EQ(api_int(last, "exit_code"), 5);
    json_decref(last);
    client_close(&c);
    api_end(&f);
}

TEST(a_reader_that_stops_stalls_only_itself)
{
    struct api_fixture f;
    struct client stalled[3];
    api_begin(&f);
    for (int i = 0; i < 3; i++)
        api_upgrade(&f, &stalled[i], "/exec", "{\"argv\": [\"yes\"]}");
    client_run_for(f.core.loop, 200);
    for (int i = 0; i < 5; i++) {
        json_t *answer;
        ASSERT_EQ(api_ask_box(&f, "POST", "/exec", "{\"argv\": [\"echo\", \"ok\"]}", &answer), 200);
        ASSERT_STREQ(api_string(answer, "stdout"), "ok\n");
        json_decref(answer);
    }
    for (int i = 0; i < 3; i++)
        client_close(&stalled[i]);
    api_end(&f);
}

/* Runs the loop until the process is gone, or it must stay for a while. */
static bool process_ends(struct api_fixture *f, pid_t pid, unsigned msec)
{
    uint64_t deadline = clock_now_usec() + msec * USEC_PER_MSEC;
    while (kill(pid, 0) == 0 && clock_now_usec() < deadline)
        ASSERT_OK(loop_run_once(f->core.loop, 5 * USEC_PER_MSEC));
    return kill(pid, 0) < 0;
}

static pid_t started_pid(struct client *c, uint64_t *ret_id)
{
    struct frame frame = api_frame(c);
    ASSERT_EQ(frame.type, STREAM_STARTED);
    json_t *json = json_loads(frame.payload, 0, NULL);
    pid_t pid = (pid_t)api_int(json, "pid");
    if (ret_id)
        *ret_id = (uint64_t)api_int(json, "process_id");
    json_decref(json);
    return pid;
}

TEST(a_vanished_client_hangs_up_on_its_process)
{
    struct api_fixture f;
    struct client c;
    api_begin(&f);
    api_upgrade(&f, &c, "/exec", "{\"argv\": [\"sleep\", \"300\"]}");
    pid_t pid = started_pid(&c, NULL);
    client_close(&c);
    ASSERT_TRUE(process_ends(&f, pid, 4000));

    /* One that ignores SIGHUP is killed. */
    api_upgrade(&f, &c, "/exec",
                "{\"argv\": [\"sh\", \"-c\", \"trap '' HUP; echo up; sleep 300\"]}");
    pid = started_pid(&c, NULL);
    while (api_frame(&c).type != STREAM_STDOUT)
        continue;
    client_close(&c);
    ASSERT_FALSE(process_ends(&f, pid, 1000));
    ASSERT_TRUE(process_ends(&f, pid, 9000));

    /* A plain exec likewise. */
    client_connect(&c, f.core.loop, f.path);
    char *request = string_printf("POST /v1/sandboxes/%s/exec HTTP/1.1\r\nHost: h\r\n"
                                  "Content-Length: 26\r\n\r\n{\"argv\": [\"sleep\", \"301\"]}",
                                  f.id);
    client_send_text(&c, request);
    free(request);
    json_t *answer = NULL;
    size_t count = 0;
    for (int i = 0; i < 100 && count == 0; i++) {
        json_decref(answer);
        ASSERT_EQ(api_ask_box(&f, "GET", "/processes", NULL, &answer), 200);
        count = json_array_size(json_object_get(answer, "processes"));
    }
    pid = (pid_t)api_int(json_array_get(json_object_get(answer, "processes"), 0), "pid");
    json_decref(answer);
    client_close(&c);
    ASSERT_TRUE(process_ends(&f, pid, 4000));
    api_end(&f);
}

TEST(a_kept_process_is_attached_again_where_it_was)
{
    struct api_fixture f;
    struct client c;
    struct buf out;
    uint64_t id;
    unsigned type;
    char path[64], body[64];
    api_begin(&f);
    (void)snprintf(path, sizeof(path), "%s/go", test_tmpdir());
    char *request =
        string_printf("{\"argv\": [\"sh\", \"-c\", \"echo one; until test -e %s; do sleep"
                      " 0.05; done; echo two\"], \"keep\": true}",
                      path);
    api_upgrade(&f, &c, "/exec", request);
    free(request);
    pid_t pid = started_pid(&c, &id);
    struct frame frame = api_frame(&c);
    ASSERT_STREQ(frame.payload, "one\n");
    client_close(&c);
    ASSERT_FALSE(process_ends(&f, pid, 300));
    ASSERT_OK(file_write_atomic(path, "", 0, 0600, NULL));

    buf_init(&out, 4096);
    (void)snprintf(path, sizeof(path), "/processes/%llu/attach", (unsigned long long)id);
    (void)snprintf(body, sizeof(body), "{\"from\": {\"stdout\": 2, \"stderr\": 0}}");
    api_upgrade(&f, &c, path, body);
    frame = api_frame(&c);
    ASSERT_EQ(frame.type, STREAM_STARTED);
    ASSERT_TRUE(strstr(frame.payload, "\"stdout\":2") != NULL);
    json_t *last = api_finish(&c, &out, &type);
    ASSERT_EQ(type, STREAM_EXIT);
    ASSERT_STREQ(buf_string(&out), "e\ntwo\n");
    json_decref(last);
    client_close(&c);
    buf_done(&out);
    api_fails(&f, "POST", "processes/x/signal", "{\"signal\": 9}", 404, "process_not_found");
    api_end(&f);
}

TEST(detached_processes_are_listed_and_signalled)
{
    struct api_fixture f;
    json_t *answer;
    char path[64];
    api_begin(&f);
    ASSERT_EQ(api_ask_box(&f, "POST", "/exec", "{\"argv\": [\"sleep\", \"300\"], \"detach\": true}",
                          &answer),
              201);
    json_int_t id = api_int(answer, "process_id");
    pid_t pid = (pid_t)api_int(answer, "pid");
    json_decref(answer);
    ASSERT_EQ(api_ask_box(&f, "GET", "/processes", NULL, &answer), 200);
    const json_t *one = json_array_get(json_object_get(answer, "processes"), 0);
    ASSERT_EQ(api_int(one, "process_id"), id);
    ASSERT_TRUE(json_is_true(json_object_get(one, "running")));
    ASSERT_TRUE(strstr(api_string(one, "command"), "sleep 300") != NULL);
    json_decref(answer);
    (void)snprintf(path, sizeof(path), "processes/%lld/signal", (long long)id);
    api_fails(&f, "POST", path, "{\"signal\": \"NONE\"}", 400, "invalid_argument");
    (void)snprintf(path, sizeof(path), "/processes/%lld/signal", (long long)id);
    ASSERT_EQ(api_ask_box(&f, "POST", path, "{\"signal\": \"SIGTERM\", \"tree\": true}", NULL),
              204);
    ASSERT_TRUE(process_ends(&f, pid, 4000));
    api_end(&f);
}

TEST(the_end_of_a_sandbox_is_told_to_all_who_wait)
{
    struct api_fixture f;
    struct client stream, plain;
    unsigned type;
    api_begin(&f);
    api_upgrade(&f, &stream, "/exec", "{\"argv\": [\"sleep\", \"300\"]}");
    client_connect(&plain, f.core.loop, f.path);
    char *request = string_printf("POST /v1/sandboxes/%s/exec HTTP/1.1\r\nHost: h\r\n"
                                  "Content-Length: 26\r\n\r\n{\"argv\": [\"sleep\", \"301\"]}",
                                  f.id);
    client_send_text(&plain, request);
    free(request);
    while (api_frame(&stream).type != STREAM_STARTED)
        continue;
    client_run_for(f.core.loop, 50);
    ASSERT_OK(kill(sandbox_pid(f.sb), SIGUSR1)); /* babbles: breaks the protocol */
    json_t *last = api_finish(&stream, NULL, &type);
    ASSERT_EQ(type, STREAM_ERROR);
    ASSERT_STREQ(api_string(last, "code"), "guest_protocol_error");
    json_decref(last);
    client_wait_text(&plain, "guest_protocol_error");
    client_close(&stream);
    client_close(&plain);
    fixture_wait_state(&f.core, f.id, SANDBOX_FAILED);
    api_fails(&f, "POST", "exec", "{\"argv\": [\"true\"]}", 409, "sandbox_failed");

    struct sandbox *other = fixture_sandbox(&f.core, NULL, NULL);
    (void)snprintf(f.id, sizeof(f.id), "%s", sandbox_id(other));
    api_upgrade(&f, &stream, "/exec", "{\"argv\": [\"sleep\", \"300\"]}");
    ASSERT_EQ(api_ask_box(&f, "DELETE", "", NULL, NULL), 204);
    last = api_finish(&stream, NULL, &type);
    ASSERT_EQ(type, STREAM_ERROR);
    json_decref(last);
    client_close(&stream);
    api_end(&f);
}

TEST(shutdown_ends_the_loop_and_processes_go_on)
{
    struct api_fixture f;
    struct client c, stream;
    api_begin(&f);
    api_upgrade(&f, &stream, "/exec", "{\"argv\": [\"sleep\", \"300\"]}");
    pid_t pid = started_pid(&stream, NULL);
    client_connect(&c, f.core.loop, f.path);
    client_send_text(&c, "POST /v1/shutdown HTTP/1.1\r\nHost: h\r\n\r\n");
    ASSERT_EQ(loop_run(f.core.loop), 0);
    api_close(&f);
    ASSERT_FALSE(file_exists(f.path));
    client_wait_text(&c, "HTTP/1.1 202");
    client_wait_eof(&stream);
    ASSERT_EQ(kill(pid, 0), 0);
    client_close(&c);
    client_close(&stream);
    fixture_end(&f.core);
}

TEST(a_new_server_takes_the_socket_over)
{
    struct api_fixture f;
    struct api_fixture first;
    struct stat st;
    api_begin(&f);
    ASSERT_OK(stat(f.path, &st));
    ASSERT_EQ(st.st_mode & 07777, 0600);
    first = f;
    api_serve(&f);
    api_close(&first);
    ASSERT_TRUE(file_exists(f.path)); /* no longer ours to remove */
    ASSERT_EQ(api_ask(&f, "GET", "/v1/version", NULL, NULL), 200);
    api_end(&f);
    ASSERT_FALSE(file_exists(f.path));
}

TEST(streams_that_alternate_byte_by_byte_stay_whole)
{
    struct api_fixture f;
    struct client c;
    size_t count[3] = {0};
    struct frame frame;
    api_begin(&f);
    api_upgrade(
        &f, &c, "/exec",
        "{\"argv\": [\"sh\", \"-c\", \"i=0; while [ $i -lt 5000 ]; do printf a; printf b >&2;"
        "i=$((i+1)); done\"]}");
    client_run_for(f.core.loop, 500); /* nobody reads: more pieces wait than are kept in order */
    do {
        frame = api_frame(&c);
        if (frame.type == STREAM_STDOUT || frame.type == STREAM_STDERR) {
            for (size_t i = 0; i < frame.size; i++)
                ASSERT_EQ(frame.payload[i], frame.type == STREAM_STDOUT ? 'a' : 'b');
            count[frame.type] += frame.size;
        }
    } while (frame.type != STREAM_EXIT);
    ASSERT_EQ(count[STREAM_STDOUT], 5000);
    ASSERT_EQ(count[STREAM_STDERR], 5000);
    client_close(&c);
    api_end(&f);
}

/* Sends an import and gives the whole answer. */
static void import(struct api_fixture *f, struct client *c, const char *name, const char *path)
{
    char *body = string_printf("{\"name\": \"%s\", \"path\": \"%s\"}", name, path);
    char *request = string_printf("POST /v1/images/import HTTP/1.1\r\nHost: h\r\n"
                                  "Content-Length: %zu\r\n\r\n%s",
                                  strlen(body), body);
    client_connect(c, f->core.loop, f->path);
    client_send_text(c, request);
    client_wait_text(c, "\r\n0\r\n\r\n");
    free(body);
    free(request);
}

TEST(images_are_imported_listed_and_removed)
{
    struct api_fixture f;
    struct client c;
    json_t *answer;
    char path[128];
    api_begin(&f);
    (void)snprintf(path, sizeof(path), "%s/other-root/bin", test_tmpdir());
    ASSERT_OK(dir_create(path, 0755, NULL));
    (void)snprintf(path, sizeof(path), "%s/other-root", test_tmpdir());
    import(&f, &c, "other", path);
    ASSERT_TRUE(strstr(buf_string(&c.in), "{\"image\":{\"name\":\"other\"") != NULL);
    client_close(&c);
    import(&f, &c, "broken", "/no/such/tree");
    ASSERT_TRUE(strstr(buf_string(&c.in), "{\"error\":{\"code\":") != NULL);
    ASSERT_TRUE(strstr(buf_string(&c.in), "/no/such/tree") != NULL);
    client_close(&c);

    ASSERT_EQ(api_ask(&f, "GET", "/v1/images", NULL, &answer), 200);
    ASSERT_EQ(json_array_size(json_object_get(answer, "images")), 2);
    json_decref(answer);
    ASSERT_EQ(api_ask(&f, "GET", "/v1/images/other", NULL, &answer), 200);
    ASSERT_EQ(strlen(api_string(answer, "sha256")), 64);
    json_decref(answer);
    ASSERT_EQ(api_ask(&f, "DELETE", "/v1/images/other", NULL, NULL), 204);
    api_fails(&f, "GET", "/v1/images/other", NULL, 404, "image_not_found");
    api_fails(&f, "DELETE", "/v1/images/other", NULL, 404, "image_not_found");
    api_fails(&f, "DELETE", "/v1/images/base", NULL, 409, "image_in_use");
    api_fails(&f, "POST", "/v1/images/import", "{\"name\": \"../x\", \"path\": \"/tmp\"}", 400,
              "invalid_argument");
    api_end(&f);
}

TEST(shows_the_end_of_the_guests_log)
{
    struct api_fixture f;
    struct client c;
    api_begin(&f);
    char *request =
        string_printf("GET /v1/sandboxes/%s/logs?tail=12 HTTP/1.1\r\nHost: h\r\n\r\n", f.id);
    ASSERT_EQ(client_exchange(&c, f.core.loop, f.path, request), 200);
    ASSERT_STREQ(buf_string(&c.in), "mode normal\n");
    client_close(&c);
    free(request);
    api_fails(&f, "GET", "logs?tail=x", NULL, 400, "invalid_argument");
    api_end(&f);
}
