#include "harness/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/strv.h"
#include "oci/auth.h"
#include "oci/config.h"
#include "oci/http.h"
#include "oci/manifest.h"
#include "oci/reference.h"
#include "oci/registries.h"

#define HEX64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

TEST(references_follow_the_rules_of_docker)
{
    static const struct {
        const char *text, *host, *repository, *tag, *shortest;
    } good[] = {
        {"python", NULL, "library/python", "latest", "python:latest"},
        {"python:3.12", NULL, "library/python", "3.12", "python:3.12"},
        {"team/app", NULL, "team/app", "latest", "team/app:latest"},
        {"localhost/app", "localhost", "app", "latest", "localhost/app:latest"},
        {"localhost:5000/a/b:c", "localhost:5000", "a/b", "c", "localhost:5000/a/b:c"},
        {"host.example/x", "host.example", "x", "latest", "host.example/x:latest"},
        {"[::1]:80/x:y", "[::1]:80", "x", "y", "[::1]:80/x:y"},
        {"x@sha256:" HEX64, NULL, "library/x", "", "x@sha256:" HEX64},
        {"x:1@sha256:" HEX64, NULL, "library/x", "1", "x:1@sha256:" HEX64},
        {"a__b/c.d-e--f:G_.-1", NULL, "a__b/c.d-e--f", "G_.-1", "a__b/c.d-e--f:G_.-1"},
    };
    static const char *const bad[] = {
        "",         ":tag",  "A",    "a/",     "a//b",          "/a",     "a:",  "a@",
        "a@sha256", "a:-x",  "a b",  "a..b",   "a___b",         "-a",     "a-",  "a_",
        "h:x/a",    "a:b:c", "../x", "h.:5/x", "a@sha256:0123", ".h.x/a", "a\n", "h:123456/a"};
    char text[REFERENCE_SIZE];
    struct reference ref, again;

    for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
        ASSERT_OK(reference_parse(good[i].text, &ref, NULL));
        ASSERT_STREQ(ref.host, good[i].host ? good[i].host : reference_default_host());
        ASSERT_STREQ(ref.repository, good[i].repository);
        ASSERT_STREQ(ref.tag, good[i].tag);
        ASSERT_OK(reference_format(&ref, text, sizeof(text)));
        ASSERT_STREQ(text, good[i].shortest);
        ASSERT_OK(reference_parse(text, &again, NULL));
        ASSERT_STREQ(again.repository, ref.repository);
    }
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct error err = {0};

        if (reference_parse(bad[i], &ref, &err) != -EINVAL)
            test_fail(__FILE__, __LINE__, "'%s' was taken for a reference", bad[i]);
        ASSERT_TRUE(err.text[0] != '\0');
    }
}

TEST(another_default_registry)
{
    struct reference ref;
    char text[REFERENCE_SIZE];

    ASSERT_EQ(setenv("HEARTH_DEFAULT_REGISTRY", "localhost:5000", 1), 0);
    ASSERT_OK(reference_parse("app:1", &ref, NULL));
    ASSERT_STREQ(ref.host, "localhost:5000");
    ASSERT_STREQ(ref.repository, "app");
    ASSERT_OK(reference_format(&ref, text, sizeof(text)));
    ASSERT_STREQ(text, "app:1");
    ASSERT_EQ(unsetenv("HEARTH_DEFAULT_REGISTRY"), 0);
}

TEST(platforms)
{
    static const char *const bad[] = {"", "/", "linux/", "a/b/c/d", "Linux/amd64", "linux/amd64/"};
    struct oci_platform p;

    ASSERT_OK(oci_platform_parse("linux/arm64/v8", &p, NULL));
    ASSERT_STREQ(p.architecture, "arm64");
    ASSERT_STREQ(p.variant, "v8");
    ASSERT_OK(oci_platform_parse("amd64", &p, NULL));
    ASSERT_STREQ(p.os, "linux");
    ASSERT_OK(oci_platform_parse(NULL, &p, NULL));
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        ASSERT_ERR(oci_platform_parse(bad[i], &p, NULL), EINVAL);
}

static const struct oci_descriptor *choose(const char *text, struct oci_document *doc,
                                           struct error *err)
{
    struct oci_platform p;

    ASSERT_OK(oci_platform_parse("linux/arm/v7", &p, NULL));
    ASSERT_OK(oci_document_parse(text, strlen(text), NULL, doc, NULL));
    return oci_index_choose(doc, &p, err);
}

#define ENTRY(digest, arch, variant)                                                               \
    "{\"mediaType\": \"application/vnd.oci.image.manifest.v1+json\", \"size\": 1,"                 \
    "\"digest\": \"sha256:" digest                                                                 \
    "\", \"platform\": {\"os\": \"linux\", \"architecture\": \"" arch                              \
    "\", \"variant\": \"" variant "\"}}"
#define ONES "1111111111111111111111111111111111111111111111111111111111111111"

TEST(index_gives_the_entry_of_the_platform)
{
    struct oci_document doc = {0};
    struct error err = {0};
    const struct oci_descriptor *d;

    d = choose("{\"schemaVersion\": 2, \"manifests\": [" ENTRY(ONES, "arm", "v6") "," ENTRY(
                   HEX64, "arm", "v7") "]}",
               &doc, &err);
    ASSERT_TRUE(d && strcmp(d->variant, "v7") == 0);
    oci_document_done(&doc);
    d = choose("{\"schemaVersion\": 2, \"manifests\": [" ENTRY(ONES, "amd64", "") "]}", &doc, &err);
    ASSERT_TRUE(!d);
    ASSERT_EQ(err.code, ERR_IMAGE_NOT_FOUND);
    ASSERT_TRUE(strstr(err.text, "linux/amd64"));
    oci_document_done(&doc);
}

TEST(challenges_of_registries)
{
    struct challenge c;

    ASSERT_OK(challenge_parse("Bearer realm=\"https://x/t\",service=\"s\",scope=\"a:b:c,d\"", &c));
    ASSERT_TRUE(c.bearer);
    ASSERT_STREQ(c.realm, "https://x/t");
    ASSERT_STREQ(c.scope, "a:b:c,d");
    ASSERT_OK(challenge_parse("basic realm=\"x\"", &c));
    ASSERT_FALSE(c.bearer);
    ASSERT_ERR(challenge_parse("Bearer service=\"s\"", &c), EINVAL);
    ASSERT_ERR(challenge_parse("Bearer realm=\"x", &c), EINVAL);
    ASSERT_ERR(challenge_parse("Negotiate", &c), EINVAL);
}

TEST(token_that_would_break_the_header_is_none)
{
    char *token = token_parse("{\"access_token\": \"abc\"}", 23);

    ASSERT_STREQ(token, "abc");
    free(token);
    token = token_parse("{\"token\": \"a\\r\\nHost: b\"}", 25);
    ASSERT_TRUE(!token);
}

TEST(credentials_are_kept_for_their_owner_only)
{
    struct credentials *c = calloc(1, sizeof(*c)), *found = calloc(1, sizeof(*found));
    _cleanup_free_ char *path = string_printf("%s/credentials.json", test_tmpdir());
    struct stat st;

    ASSERT_TRUE(c && found);
    ASSERT_EQ(setenv("HEARTH_STATE", test_tmpdir(), 1), 0);
    ASSERT_EQ(setenv("DOCKER_CONFIG", test_tmpdir(), 1), 0);
    ASSERT_EQ(credentials_find("h:1", found, NULL), 1);
    (void)snprintf(c->user, sizeof(c->user), "me");
    (void)snprintf(c->password, sizeof(c->password), "pass:word");
    ASSERT_OK(credentials_store("h:1", c, NULL));
    ASSERT_EQ(stat(path, &st), 0);
    ASSERT_EQ(st.st_mode & 0777, 0600);
    ASSERT_EQ(credentials_find("h:1", found, NULL), 0);
    ASSERT_STREQ(found->user, "me");
    ASSERT_STREQ(found->password, "pass:word");
    ASSERT_EQ(credentials_find("h:2", found, NULL), 1);
    ASSERT_OK(credentials_remove("h:1", NULL));
    ASSERT_ERR(credentials_remove("h:1", NULL), ENOENT);
    ASSERT_EQ(credentials_find("h:1", found, NULL), 1);
    free(c);
    free(found);
}

TEST(configuration_of_the_host)
{
    _cleanup_free_ char *path = string_printf("%s/registries.json", test_tmpdir());
    static const char text[] = "{\"insecure\": [\"a:1\"], \"mirrors\": {\"b\": [\"c:2\", \"d\"]}}";
    struct registries r;
    struct error err = {0};

    ASSERT_OK(file_write_atomic(path, text, strlen(text), 0600, NULL));
    ASSERT_EQ(setenv("HEARTH_REGISTRIES", path, 1), 0);
    ASSERT_EQ(setenv("HEARTH_INSECURE_REGISTRIES", "x:5, y", 1), 0);
    ASSERT_OK(registries_load(&r, NULL));
    ASSERT_TRUE(registries_is_insecure(&r, "a:1") && registries_is_insecure(&r, "x:5") &&
                registries_is_insecure(&r, "y"));
    ASSERT_FALSE(registries_is_insecure(&r, "a"));
    ASSERT_EQ(strv_length(r.mirrors), 2);
    registries_done(&r);
    ASSERT_EQ(setenv("HEARTH_INSECURE_REGISTRIES", "http://x", 1), 0);
    ASSERT_ERR(registries_load(&r, &err), EINVAL);
    ASSERT_EQ(unsetenv("HEARTH_INSECURE_REGISTRIES"), 0);
    ASSERT_EQ(unsetenv("HEARTH_REGISTRIES"), 0);
}

TEST(pauses_grow_and_obey)
{
    ASSERT_TRUE(http_backoff_usec(1, 0) < http_backoff_usec(3, 0));
    ASSERT_TRUE(http_backoff_usec(100, 0) <= 30 * UINT64_C(1000000));
    ASSERT_EQ(http_backoff_usec(1, 7000000), 7000000);
    ASSERT_EQ(http_backoff_usec(1, UINT64_MAX), HTTP_RETRY_AFTER_MAX_USEC);
}
