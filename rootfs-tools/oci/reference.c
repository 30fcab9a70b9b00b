#include "oci/reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The only place that knows the default registry. */
#define HUB "docker.io"
#define HUB_API "registry-1." HUB
#define HUB_OLD "index." HUB
#define HUB_CREDENTIALS "https://" HUB_OLD "/v1/"
#define OFFICIAL "library/"

#define LOWER "abcdefghijklmnopqrstuvwxyz0123456789"
#define WORD LOWER "ABCDEFGHIJKLMNOPQRSTUVWXYZ_"

const char *reference_default_host(void)
{
    const char *host = getenv("HEARTH_DEFAULT_REGISTRY");

    return host && host_is_valid(host) ? host : HUB;
}

const char *reference_api_host(const char *host)
{
    return strcmp(host, HUB) == 0 ? HUB_API : host;
}

const char *reference_credential_key(const char *host)
{
    return strcmp(host, HUB) == 0 ? HUB_CREDENTIALS : NULL;
}

bool digest_is_valid(const char *s)
{
    return strncmp(s, "sha256:", 7) == 0 && strlen(s) == 7 + 64 &&
           strspn(s + 7, "0123456789abcdef") == 64;
}

/* Labels of letters, digits and inner hyphens, or an IPv6 address in brackets; then a port. */
bool host_is_valid(const char *s)
{
    size_t n = strcspn(s, ":");

    if (s[0] == '[') {
        n = strcspn(s, "]");
        if (s[n] != ']' || n < 3 || strspn(s + 1, "0123456789abcdefABCDEF:") != n - 1)
            return false;
        n++;
    } else {
        size_t label = 0;

        for (size_t i = 0; i < n; i++) {
            if (s[i] == '.' || s[i] == '-') {
                if (label == 0 && (s[i] == '.' || i == 0 || s[i - 1] == '.'))
                    return false;
                label = s[i] == '.' ? 0 : label + 1;
            } else if (strchr(WORD, s[i]) && s[i] != '_') {
                label++;
            } else {
                return false;
            }
        }
        if (n == 0 || label == 0 || s[n - 1] == '-')
            return false;
    }
    if (s[n] == '\0')
        return true;
    return s[n] == ':' && strlen(s + n + 1) > 0 && strlen(s + n + 1) <= 5 &&
           strspn(s + n + 1, "0123456789") == strlen(s + n + 1);
}

/* [a-z0-9]+ joined by one '.', one or two '_', or any number of '-'; components by '/'. */
static bool path_is_valid(const char *s)
{
    while (*s) {
        size_t n = strspn(s, LOWER);

        if (n == 0)
            return false;
        s += n;
        if (*s == '\0')
            return true;
        if (*s == '.' || *s == '/')
            s++;
        else if (*s == '_')
            s += s[1] == '_' ? 2 : 1;
        else if (*s == '-')
            s += strspn(s, "-");
        else
            return false;
    }
    return false;
}

static bool tag_is_valid(const char *s)
{
    size_t n = strlen(s);

    return n > 0 && n <= 128 && strspn(s, WORD ".-") == n && s[0] != '.' && s[0] != '-';
}

static int invalid(const char *text, const char *why, struct error *err)
{
    return error_set(err, EINVAL, "'%.120s' is no name of an image: %s", text, why);
}

/* Takes host and path from "[HOST/]PATH". */
static int split_host(const char *text, const char *name, struct reference *ref, struct error *err)
{
    size_t n = strcspn(name, "/");
    bool has_host = name[n] == '/' && (memchr(name, '.', n) || memchr(name, ':', n) ||
                                       (n == 9 && memcmp(name, "localhost", 9) == 0));
    const char *path = has_host ? name + n + 1 : name;
    int size;

    if (has_host)
        (void)snprintf(ref->host, sizeof(ref->host), "%.*s", (int)n, name);
    else
        (void)snprintf(ref->host, sizeof(ref->host), "%s", reference_default_host());
    if (!host_is_valid(ref->host))
        return invalid(text, "its registry is no host name with an optional port", err);
    if (strcmp(ref->host, HUB_OLD) == 0 || strcmp(ref->host, HUB_API) == 0)
        (void)snprintf(ref->host, sizeof(ref->host), "%s", HUB);
    size = snprintf(ref->repository, sizeof(ref->repository), "%s%s",
                    strcmp(ref->host, HUB) == 0 && !strchr(path, '/') ? OFFICIAL : "", path);
    if (size < 0 || (size_t)size >= sizeof(ref->repository) || !path_is_valid(ref->repository))
        return invalid(text, "expected lower-case words joined by '.', '_', '-' and '/'", err);
    return 0;
}

int reference_parse(const char *text, struct reference *ret, struct error *err)
{
    struct reference ref = {0};
    char name[2 * REFERENCE_SIZE];
    char *at, *colon;
    int r;

    if (strlen(text) >= REFERENCE_SIZE)
        return invalid(text, "it is too long", err);
    (void)snprintf(name, sizeof(name), "%s", text);
    at = strchr(name, '@');
    if (at) {
        *at = '\0';
        if (!digest_is_valid(at + 1))
            return invalid(text, "after '@' there must be sha256: and 64 lower-case hex digits",
                           err);
        (void)snprintf(ref.digest, sizeof(ref.digest), "%s", at + 1);
    }
    colon = strrchr(name, ':');
    if (colon && !strchr(colon, '/')) {
        *colon = '\0';
        if (!tag_is_valid(colon + 1))
            return invalid(text, "its tag may have up to 128 letters, digits, '.', '_' and '-'",
                           err);
        (void)snprintf(ref.tag, sizeof(ref.tag), "%.128s", colon + 1);
    } else if (!ref.digest[0]) {
        (void)snprintf(ref.tag, sizeof(ref.tag), "latest");
    }
    r = split_host(text, name, &ref, err);
    if (r < 0)
        return r;
    *ret = ref;
    return 0;
}

int reference_format(const struct reference *ref, char *text, size_t size)
{
    bool ours = strcmp(ref->host, reference_default_host()) == 0;
    const char *path = ref->repository;
    int n;

    if (strcmp(ref->host, HUB) == 0 && strncmp(path, OFFICIAL, strlen(OFFICIAL)) == 0 &&
        !strchr(path + strlen(OFFICIAL), '/'))
        path += strlen(OFFICIAL);
    n = snprintf(text, size, "%s%s%s%s%s%s%s", ours ? "" : ref->host, ours ? "" : "/", path,
                 ref->tag[0] ? ":" : "", ref->tag, ref->digest[0] ? "@" : "", ref->digest);
    return n < 0 || (size_t)n >= size ? -ENAMETOOLONG : 0;
}

bool reference_is_explicit(const char *text)
{
    return strpbrk(text, ":@/") != NULL;
}
