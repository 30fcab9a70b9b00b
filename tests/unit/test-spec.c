#include "harness/test.h"

#include <stdlib.h>

#include "base/strv.h"
#include "model/spec.h"
#include "model/state.h"
#include "model/text.h"

static int decode_spec(const char *text, struct sandbox_spec *spec, struct error *err)
{
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    ASSERT_TRUE(json != NULL);
    sandbox_spec_init(spec);
    int r = sandbox_spec_from_json(json, spec, err);
    json_decref(json);
    return r;
}

static int decode_exec(const char *text, struct exec_request *req, struct error *err)
{
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    ASSERT_TRUE(json != NULL);
    *req = (struct exec_request){0};
    int r = exec_request_from_json(json, req, err);
    json_decref(json);
    return r;
}

static void spec_fails(const char *text, int errnum, const char *says)
{
    struct sandbox_spec spec;
    struct error err = {0};
    ASSERT_ERR(decode_spec(text, &spec, &err), errnum);
    if (!strstr(err.text, says))
        test_fail(__FILE__, __LINE__, "'%s' does not say '%s'", err.text, says);
    sandbox_spec_done(&spec);
}

static void exec_fails(const char *text, int errnum, const char *says)
{
    struct exec_request req;
    struct error err = {0};
    ASSERT_ERR(decode_exec(text, &req, &err), errnum);
    if (!strstr(err.text, says))
        test_fail(__FILE__, __LINE__, "'%s' does not say '%s'", err.text, says);
    exec_request_done(&req);
}

TEST(empty_spec_keeps_defaults)
{
    struct sandbox_spec spec;
    struct error err = {0};
    ASSERT_OK(decode_spec("{}", &spec, &err));
    ASSERT_STREQ(spec.image, "base");
    ASSERT_EQ(spec.cpus, 1);
    ASSERT_EQ(spec.memory_mib, 256);
    ASSERT_EQ(spec.disk_mib, 4096);
    ASSERT_EQ(spec.timeout_sec, 0);
    ASSERT_TRUE(spec.name == NULL && spec.template == NULL && spec.env == NULL);
    sandbox_spec_done(&spec);
}

TEST(spec_survives_json_and_copy)
{
    struct sandbox_spec a, b, c;
    struct error err = {0};
    ASSERT_OK(decode_spec("{\"name\": \"x-1\", \"image\": \"debian\", \"backend\": \"qemu\","
                          "\"user\": \"user\", \"workdir\": \"/srv\", \"cpus\": 2,"
                          "\"memory_mib\": 512, \"disk_mib\": 64, \"timeout_sec\": 60,"
                          "\"env\": {\"A\": \"1=2\", \"B\": {\"base64\": \"/w==\"}, \"C\": \"\"}}",
                          &a, &err));
    ASSERT_STREQ(a.env[0], "A=1=2");
    ASSERT_STREQ(a.env[1], "B=\xff");
    ASSERT_STREQ(a.env[2], "C=");
    json_t *json = sandbox_spec_to_json(&a);
    ASSERT_TRUE(json != NULL);
    sandbox_spec_init(&b);
    ASSERT_OK(sandbox_spec_from_json(json, &b, &err));
    json_t *again = sandbox_spec_to_json(&b);
    ASSERT_TRUE(json_equal(json, again));
    ASSERT_OK(sandbox_spec_copy(&b, &c));
    json_t *copied = sandbox_spec_to_json(&c);
    ASSERT_TRUE(json_equal(json, copied));
    json_decref(json);
    json_decref(again);
    json_decref(copied);
    sandbox_spec_done(&a);
    sandbox_spec_done(&b);
    sandbox_spec_done(&c);
}

TEST(template_replaces_the_default_image)
{
    struct sandbox_spec spec;
    struct error err = {0};
    ASSERT_OK(decode_spec("{\"template\": \"t\"}", &spec, &err));
    ASSERT_TRUE(spec.image == NULL);
    ASSERT_STREQ(spec.template, "t");
    sandbox_spec_done(&spec);
    spec_fails("{\"template\": \"t\", \"image\": \"base\"}", EINVAL, "'image' and 'template'");
}

TEST(spec_errors_name_the_key_and_what_was_expected)
{
    spec_fails("[]", EINVAL, "expected an object, got an array");
    spec_fails("{\"cpu\": 1}", EINVAL, "'cpu': unknown key");
    spec_fails("{\"cpus\": \"1\"}", EINVAL, "'cpus': is a string, expected an integer");
    spec_fails("{\"cpus\": 1.0}", EINVAL, "'cpus': is a real number");
    spec_fails("{\"cpus\": 0}", EINVAL, "'cpus': 0 is not within 1 and 32");
    spec_fails("{\"cpus\": -1}", EINVAL, "'cpus': -1 is not within");
    spec_fails("{\"cpus\": 4294967297}", EINVAL, "is not within");
    spec_fails("{\"memory_mib\": 1}", EINVAL, "'memory_mib': 1 is not within 64");
    spec_fails("{\"name\": \"No\"}", EINVAL, "'name': 'No' is no name");
    spec_fails("{\"name\": \"../x\"}", EINVAL, "is no name");
    spec_fails("{\"image\": \"\"}", EINVAL, "'image': is empty");
    spec_fails("{\"image\": true}", EINVAL, "'image': is a boolean, expected a string");
    spec_fails("{\"workdir\": \"tmp\"}", EINVAL, "not an absolute path");
    spec_fails("{\"env\": []}", EINVAL, "'env': is an array");
    spec_fails("{\"env\": {\"A=B\": \"\"}}", EINVAL, "'A=B' is not a variable's name");
    spec_fails("{\"env\": {\"\": \"\"}}", EINVAL, "not a variable's name");
    spec_fails("{\"env\": {\"A\": 1}}", EINVAL, "'env.A': is an integer");
    spec_fails("{\"env\": {\"A\": \"x\\u0000y\"}}", EINVAL, "'env.A': has a NUL byte");
    spec_fails("{\"env\": {\"A\": {\"base64\": \"AA==\"}}}", EINVAL, "has a NUL byte");
    spec_fails("{\"env\": {\"A\": {\"base64\": \"!\"}}}", EINVAL, "'env.A'");
}

TEST(exec_request_decodes_every_key)
{
    struct exec_request req;
    struct error err = {0};
    ASSERT_OK(decode_exec("{\"argv\": [\"sh\", \"-c\", {\"base64\": \"gA==\"}],"
                          "\"env\": {\"A\": \"b\"}, \"cwd\": \"/tmp\", \"user\": \"user\","
                          "\"tty\": true, \"stdin\": true, \"keep\": true, \"rows\": 40,"
                          "\"cols\": 100, \"timeout_ms\": 1500, \"memory_max_bytes\": 1048576,"
                          "\"pids_max\": 10, \"detach\": false}",
                          &req, &err));
    ASSERT_EQ(strv_length(req.argv), 3);
    ASSERT_STREQ(req.argv[2], "\x80");
    ASSERT_STREQ(req.env[0], "A=b");
    ASSERT_STREQ(req.cwd, "/tmp");
    ASSERT_STREQ(req.user, "user");
    ASSERT_TRUE(req.tty && req.stdin_open && req.keep && !req.detach);
    ASSERT_EQ(req.rows, 40);
    ASSERT_EQ(req.cols, 100);
    ASSERT_EQ(req.timeout_msec, 1500);
    ASSERT_EQ(req.memory_max_bytes, 1048576);
    ASSERT_EQ(req.pids_max, 10);
    exec_request_done(&req);
}

TEST(exec_request_refuses_what_cannot_run)
{
    exec_fails("{}", EINVAL, "'argv': is missing");
    exec_fails("{\"argv\": null}", EINVAL, "'argv': is missing");
    exec_fails("{\"argv\": []}", EINVAL, "'argv': is empty");
    exec_fails("{\"argv\": [\"\"]}", EINVAL, "'argv[0]': is empty");
    exec_fails("{\"argv\": \"ls\"}", EINVAL, "'argv': is a string, expected an array");
    exec_fails("{\"argv\": [\"a\", 1]}", EINVAL, "'argv[1]': is an integer");
    exec_fails("{\"argv\": [\"a\", \"b\\u0000\"]}", EINVAL, "'argv[1]': has a NUL byte");
    exec_fails("{\"argv\": [\"a\"], \"rows\": 65536}", EINVAL, "'rows': 65536");
    exec_fails("{\"argv\": [\"a\"], \"detach\": true, \"stdin\": true}", EINVAL, "'detach'");
}

static json_t *argv_of(size_t count, size_t bytes)
{
    char *text = malloc(bytes + 1);
    ASSERT_TRUE(text != NULL);
    memset(text, 'x', bytes);
    text[bytes] = '\0';
    json_t *argv = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(argv, json_string(text));
    free(text);
    return json_pack("{s:o}", "argv", argv);
}

TEST(exec_request_limits_arguments_and_environment)
{
    struct exec_request req = {0};
    struct error err = {0};
    json_t *json = argv_of(1, 300 * 1024);
    ASSERT_ERR(exec_request_from_json(json, &req, &err), E2BIG);
    ASSERT_TRUE(strstr(err.text, "'argv[0]': the argument has 307200 bytes, at most 131071") !=
                NULL);
    json_decref(json);

    json = argv_of(8, 128 * 1024 - 1);
    ASSERT_ERR(exec_request_from_json(json, &req, &err), E2BIG);
    ASSERT_TRUE(strstr(err.text, "in all") != NULL);
    json_decref(json);

    json = argv_of(4, 50 * 1024);
    ASSERT_OK(exec_request_from_json(json, &req, &err));
    exec_request_done(&req);

    json_t *env = json_object();
    for (unsigned i = 0; i <= SPEC_ENV_MAX; i++) {
        char key[16];
        (void)snprintf(key, sizeof(key), "V%u", i);
        json_object_set_new(env, key, json_string("1"));
    }
    json_object_set_new(json, "env", env);
    ASSERT_ERR(exec_request_from_json(json, &req, &err), E2BIG);
    ASSERT_TRUE(strstr(err.text, "1025 variables") != NULL);
    exec_request_done(&req);
    json_decref(json);
}

TEST(utf8_refuses_overlong_surrogates_and_cut_sequences)
{
    static const char *const good[] = {"",
                                       "abc",
                                       "\xc3\xa4",
                                       "\xe2\x82\xac",
                                       "\xf0\x9f\x94\xa5",
                                       "\xed\x9f\xbf",
                                       "\xf4\x8f\xbf\xbf"};
    static const char *const bad[] = {"\x80",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xe0\x80\x80",
                                      "\xed\xa0\x80",
                                      "\xf0\x80\x80\x80",
                                      "\xf4\x90\x80\x80",
                                      "\xf5",
                                      "\xc3",
                                      "\xe2\x82",
                                      "a\xff"
                                      "b"};
    for (size_t i = 0; i < ARRAY_SIZE(good); i++)
        ASSERT_TRUE(utf8_is_valid(good[i], strlen(good[i])));
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        ASSERT_FALSE(utf8_is_valid(bad[i], strlen(bad[i])));
    ASSERT_TRUE(utf8_is_valid("\0x", 2));
}

TEST(bytes_take_the_base64_key_when_they_are_not_text)
{
    json_t *o = json_object();
    ASSERT_OK(json_object_set_bytes(o, "stdout", "a\0b", 3));
    ASSERT_OK(json_object_set_bytes(o, "stderr", "\xff\xfe", 2));
    ASSERT_EQ(json_string_length(json_object_get(o, "stdout")), 3);
    ASSERT_TRUE(json_object_get(o, "stderr") == NULL);
    ASSERT_STREQ(json_string_value(json_object_get(o, "stderr_base64")), "//4=");
    json_decref(o);
}

TEST(stored_bytes_come_back_from_a_strict_reader)
{
    static const struct {
        const char *data;
        size_t size;
    } cases[] = {{"", 0}, {"text", 4}, {"a\0b", 3}, {"\0", 1}, {"\xff", 1}};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        json_t *json = json_bytes(cases[i].data, cases[i].size), *back;
        char *text = json_dumps(json, JSON_ENCODE_ANY), *owned = NULL;
        const char *data;
        size_t size;

        back = json_loads(text, JSON_DECODE_ANY, NULL);
        ASSERT_OK(json_bytes_get(back, &data, &size, &owned));
        ASSERT_EQ(size, cases[i].size);
        ASSERT_MEMEQ(data, cases[i].data, size);
        free(owned);
        free(text);
        json_decref(json);
        json_decref(back);
    }
}

TEST(every_state_has_a_name_that_leads_back)
{
    for (int i = 0; i < SANDBOX_STATE_COUNT; i++)
        ASSERT_EQ(sandbox_state_from_string(sandbox_state_name((enum sandbox_state)i)), i);
    ASSERT_ERR(sandbox_state_from_string("alive"), EINVAL);
}
