#include <stdlib.h>
#include <string.h>

#include "api/e2b/e2b.h"
#include "api/e2b/envd-proto.h"
#include "base/strv.h"
#include "harness/test.h"

/* Bytes are what E2B's own schemas gave with the protobuf library of its SDK. */
#define BYTES(text) (text), sizeof(text) - 1

static const struct envd_rpc *rpc(const char *path)
{
    const struct envd_rpc *found = envd_rpc_find(path);

    ASSERT_TRUE(found);
    return found;
}

static void reads(const char *path, const void *data, size_t size, const char *wanted)
{
    struct error err = {0};
    json_t *json = NULL, *other = json_loads(wanted, 0, NULL);

    ASSERT_TRUE(other);
    ASSERT_OK(proto_decode(rpc(path)->request, data, size, &json, &err));
    if (!json_equal(json, other))
        test_fail(__FILE__, __LINE__, "%s: %s", path, json_dumps(json, JSON_COMPACT));
    json_decref(json);
    json_decref(other);
}

static void refuses(const char *path, const void *data, size_t size, const char *why)
{
    struct error err = {0};
    json_t *json = NULL;

    ASSERT_ERR(proto_decode(rpc(path)->request, data, size, &json, &err), EINVAL);
    ASSERT_TRUE(!json);
    if (!strstr(err.text, why))
        test_fail(__FILE__, __LINE__, "'%s' says nothing of '%s'", err.text, why);
}

static void writes(const char *path, const char *text, const void *wanted, size_t size)
{
    json_t *json = json_loads(text, 0, NULL);
    struct error err = {0};
    struct buf out;

    ASSERT_TRUE(json);
    buf_init(&out, PROTO_ENCODED_MAX);
    ASSERT_OK(proto_encode(rpc(path)->answer, json, &out, &err));
    ASSERT_EQ(out.size, size);
    ASSERT_TRUE(size == 0 || memcmp(buf_data(&out), wanted, size) == 0);
    buf_done(&out);
    json_decref(json);
}

TEST(requests_are_read_as_their_json)
{
    reads("/process.Process/Start",
          BYTES("\x0a\x27\x0a\x09/bin/bash\x12\x02-l\x12\x02-c\x12\x04true\x1a\x06\x0a\x01"
                "A\x12\x01"
                "b\x22\x04/tmp\x12\x07\x0a\x05\x08\x50\x10\xac\x02\x1a\x01t\x20\x00"),
          "{\"process\": {\"cmd\": \"/bin/bash\", \"args\": [\"-l\", \"-c\", \"true\"],"
          " \"envs\": {\"A\": \"b\"}, \"cwd\": \"/tmp\"},"
          " \"pty\": {\"size\": {\"cols\": 80, \"rows\": 300}}, \"tag\": \"t\", \"stdin\": false}");
    reads("/process.Process/SendInput", BYTES("\x0a\x03\x08\xd2\x09\x12\x05\x0a\x03hi\x0a"),
          "{\"process\": {\"pid\": 1234}, \"input\": {\"stdin\": \"aGkK\"}}");
    reads("/process.Process/SendSignal", BYTES("\x0a\x03\x12\x01x\x10\x09"),
          "{\"process\": {\"tag\": \"x\"}, \"signal\": 9}");
    reads("/process.Process/StreamInput", BYTES("\x12\x06\x12\x04\x12\x02\x00\xff"),
          "{\"data\": {\"input\": {\"pty\": \"AP8=\"}}}");
    reads("/process.Process/StreamInput", BYTES("\x0a\x04\x0a\x02\x08\x07"),
          "{\"start\": {\"process\": {\"pid\": 7}}}");
    reads("/filesystem.Filesystem/ListDir", BYTES("\x0a\x03/\xc3\xbc\x10\x03"),
          "{\"path\": \"/\xc3\xbc\", \"depth\": 3}");
    reads("/filesystem.Filesystem/WatchDir", BYTES("\x0a\x02/w\x10\x01"),
          "{\"path\": \"/w\", \"recursive\": true}");
    reads("/process.Process/List", NULL, 0, "{}");
}

TEST(the_last_of_a_field_wins_and_messages_merge)
{
    reads("/filesystem.Filesystem/Stat", BYTES("\x0a\x01x\x0a\x01y"), "{\"path\": \"y\"}");
    /* A oneof holds one: a tag behind a pid. */
    reads("/process.Process/CloseStdin", BYTES("\x0a\x02\x08\x07\x0a\x03\x12\x01t"),
          "{\"process\": {\"tag\": \"t\"}}");
    /* Two halves of one message. */
    reads("/process.Process/Start",
          BYTES("\x0a\x03\x0a\x01"
                "a\x0a\x03\x12\x01"
                "b"),
          "{\"process\": {\"cmd\": \"a\", \"args\": [\"b\"]}}");
}

TEST(unknown_fields_are_skipped)
{
    reads("/filesystem.Filesystem/Stat",
          BYTES("\xf8\x01\x05\xf2\x01\x02hi\xe5\x01"
                "abcd\xe9\x01"
                "abcdefgh\x0a\x01x"),
          "{\"path\": \"x\"}");
}

TEST(what_is_not_such_a_message_is_refused)
{
    refuses("/filesystem.Filesystem/Stat", BYTES("\x0a\x05x"), "cut");
    refuses("/filesystem.Filesystem/Stat", BYTES("\x0a"), "cut");
    refuses("/filesystem.Filesystem/Stat", BYTES("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"),
            "cut");
    refuses("/filesystem.Filesystem/Stat", BYTES("\x02\x00"), "cut"); /* field 0 */
    refuses("/filesystem.Filesystem/Stat", BYTES("\x0b\x0c"), "cut"); /* a group */
    refuses("/filesystem.Filesystem/Stat", BYTES("\x08\x01"), "'path': is not of its kind");
    refuses("/filesystem.Filesystem/Stat", BYTES("\x0a\x02\xc3\x28"), "'path': is not UTF-8");
    refuses("/process.Process/Start",
            BYTES("\x0a\x06\x1a\x04\x0a\x02"
                  "a\0"),
            "'envs': a key");
    refuses("/process.Process/Start", BYTES("\x0a\x04\x1a\x02\x08\x01"), "'envs': an entry");
}

TEST(a_message_has_a_limit_of_values)
{
    size_t n = PROTO_VALUES_MAX + 1u;
    _cleanup_free_ char *body = malloc(2 * n + 16);
    size_t inner = 2 * n, at = 0;

    ASSERT_TRUE(body);
    body[at++] = 0x0a;
    for (; inner > 0x7f; inner >>= 7)
        body[at++] = (char)((inner & 0x7f) | 0x80);
    body[at++] = (char)inner;
    for (size_t i = 0; i < n; i++) {
        body[at++] = 0x12; /* an empty argument */
        body[at++] = 0x00;
    }
    refuses("/process.Process/Start", body, at, "too many");
}

TEST(answers_are_written_from_their_json)
{
    writes("/process.Process/Start",
           "{\"event\": {\"end\": {\"exitCode\": -1, \"status\": \"signal: killed\","
           " \"error\": \"signal: killed\"}}}",
           BYTES("\x0a\x24\x1a\x22\x08\x01\x1a\x0esignal: killed\x22\x0esignal: killed"));
    writes("/process.Process/Connect", "{\"event\": {\"data\": {\"stdout\": \"aGkK\"}}}",
           BYTES("\x0a\x07\x12\x05\x0a\x03hi\x0a"));
    writes("/process.Process/Start", "{\"event\": {\"keepalive\": {}}}", BYTES("\x0a\x02\x22\x00"));
    writes("/process.Process/List",
           "{\"processes\": [{\"config\": {\"cmd\": \"a\", \"args\": [], \"envs\": {\"K\": \"v\"}},"
           " \"pid\": 3, \"tag\": \"t\"}]}",
           BYTES("\x0a\x12\x0a\x0b\x0a\x01"
                 "a\x1a\x06\x0a\x01K\x12\x01v\x10\x03\x1a\x01t"));
    writes("/filesystem.Filesystem/Stat",
           "{\"entry\": {\"name\": \"f\", \"type\": \"FILE_TYPE_FILE\", \"path\": \"/f\","
           " \"size\": \"5000000000\", \"mode\": 420, \"permissions\": \"-rw-r--r--\","
           " \"owner\": \"user\", \"group\": \"user\","
           " \"modifiedTime\": \"2026-11-15T11:12:13.000000250Z\", \"symlinkTarget\": \"/g\"}}",
           BYTES("\x0a\x39\x0a\x01"
                 "f\x10\x01\x1a\x02/f\x20\x80\xe4\x97\xd0\x12\x28\xa4\x03\x32\x0a-rw-r--r--\x3a\x04"
                 "user\x42\x04user\x4a\x09\x08\x8d\xa7\xe6\xd7\x06\x10\xfa\x01\x52\x02/g"));
    writes("/filesystem.Filesystem/WatchDir",
           "{\"filesystem\": {\"name\": \"n\", \"type\": \"EVENT_TYPE_CHMOD\"}}",
           BYTES("\x12\x05\x0a\x01n\x10\x05"));
    writes("/process.Process/Update", "{}", "", 0);
}

TEST(an_answer_that_does_not_fit_is_not_written)
{
    static const char *const bad[] = {
        "{\"event\": {\"nothing\": {}}}",
        "{\"event\": {\"data\": {\"stdout\": \"?\"}}}",
        "{\"event\": {\"start\": {\"pid\": -1}}}",
        "{\"event\": 1}",
    };

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        json_t *json = json_loads(bad[i], 0, NULL);
        struct error err = {0};
        struct buf out;

        buf_init(&out, 4096);
        ASSERT_TRUE(proto_encode(rpc("/process.Process/Start")->answer, json, &out, &err) < 0);
        ASSERT_TRUE(err.text[0]);
        buf_done(&out);
        json_decref(json);
    }
}

TEST(every_call_of_envd_has_its_messages)
{
    struct http_api apis[E2B_APIS];
    size_t calls = 0;

    e2b_apis(NULL, apis);
    ASSERT_STREQ(apis[1].name, "envd");
    for (size_t i = 0; i < apis[1].n_routes; i++) {
        if (strchr(apis[1].routes[i].pattern, '.')) {
            ASSERT_TRUE(envd_rpc_find(apis[1].routes[i].pattern));
            calls++;
        }
    }
    ASSERT_EQ(calls, envd_rpcs_count);
}
