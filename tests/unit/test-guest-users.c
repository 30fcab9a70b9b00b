#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "guest/users.h"
#include "harness/test.h"

static struct users image(const char *passwd, const char *group)
{
    return (struct users){.passwd = (char *)(uintptr_t)passwd, .group = (char *)(uintptr_t)group};
}

static const char passwd[] = "root:x:0:0:root:/root:/bin/bash\n"
                             "broken\n"
                             "bad:x:notanumber:1:::\n"
                             "user:x:1000:1001:A User,,,:/home/user:/bin/sh\n"
                             "homeless:x:1002:1002::relative:/bin/sh\n"
                             "last:x:65534:65534::/:/bin/false";
static const char group[] =
    "root:x:0:\nusers:x:1001:\naudio:x:29:user,other\nvideo:x:44:other,user\n"
    "almost:x:45:username\n";

TEST(names_numbers_and_groups_are_resolved)
{
    struct users u = image(passwd, group);
    struct user user;

    ASSERT_OK(users_resolve(&u, "user", &user, NULL));
    ASSERT_EQ(user.uid, 1000);
    ASSERT_EQ(user.gid, 1001);
    ASSERT_STREQ(user.home, "/home/user");
    ASSERT_EQ(user.n_groups, 3);
    ASSERT_EQ(user.groups[0], 1001);
    ASSERT_EQ(user.groups[1], 29);
    ASSERT_EQ(user.groups[2], 44);
    ASSERT_OK(users_resolve(&u, "1000", &user, NULL));
    ASSERT_STREQ(user.name, "user");
    ASSERT_OK(users_resolve(&u, "user:audio", &user, NULL));
    ASSERT_EQ(user.gid, 29);
    ASSERT_EQ(user.n_groups, 1);
    ASSERT_OK(users_resolve(&u, "4242:17", &user, NULL));
    ASSERT_EQ(user.uid, 4242);
    ASSERT_EQ(user.gid, 17);
    ASSERT_STREQ(user.name, "4242");
    ASSERT_STREQ(user.home, "/");
    ASSERT_OK(users_resolve(&u, "", &user, NULL));
    ASSERT_EQ(user.uid, 0);
    ASSERT_OK(users_resolve(&u, "homeless", &user, NULL));
    ASSERT_STREQ(user.home, "/");
    ASSERT_OK(users_resolve(&u, "last", &user, NULL));
    ASSERT_EQ(user.uid, 65534);
}

TEST(unknown_names_are_named)
{
    struct users u = image(passwd, group);
    struct error err = {0};
    struct user user;
    char longname[200];

    ASSERT_ERR(users_resolve(&u, "nobody", &user, &err), ENOENT);
    ASSERT_TRUE(strstr(err.text, "nobody") != NULL);
    ASSERT_ERR(users_resolve(&u, "user:nogroup", &user, &err), ENOENT);
    ASSERT_TRUE(strstr(err.text, "nogroup") != NULL);
    ASSERT_ERR(users_resolve(&u, ":", &user, &err), EINVAL);
    ASSERT_ERR(users_resolve(&u, "user:", &user, &err), EINVAL);
    ASSERT_ERR(users_resolve(&u, "bad", &user, &err), ENOENT);
    memset(longname, 'a', sizeof(longname));
    longname[sizeof(longname) - 1] = '\0';
    ASSERT_ERR(users_resolve(&u, longname, &user, &err), EINVAL);
}

TEST(root_exists_without_any_file)
{
    struct users u = image("", "");
    struct user user;
    char name[USER_NAME_MAX];

    ASSERT_OK(users_resolve(&u, "", &user, NULL));
    ASSERT_EQ(user.uid, 0);
    ASSERT_STREQ(user.home, "/root");
    ASSERT_OK(users_resolve(&u, "0", &user, NULL));
    ASSERT_STREQ(user.name, "root");
    ASSERT_ERR(users_resolve(&u, "user", &user, NULL), ENOENT);
    users_name_of_uid(&u, 0, name);
    ASSERT_STREQ(name, "");
    u = image(passwd, group);
    users_name_of_uid(&u, 1000, name);
    ASSERT_STREQ(name, "user");
    users_name_of_gid(&u, 44, name);
    ASSERT_STREQ(name, "video");
}

TEST(hostile_files_are_survived)
{
    static const char *const files[] = {
        ":",       "::::::::::",   "\n\n\n",
        "a",       "root",         "x:y:0",
        "x:y:0:0", "x:y:0:0:::::", "root:x:0:0:root:/root:/bin/sh:more:\n"};
    struct user user;

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct users u = image(files[i], files[i]);
        char name[USER_NAME_MAX];

        ASSERT_OK(users_resolve(&u, "root", &user, NULL));
        (void)users_resolve(&u, "x:x", &user, NULL);
        users_name_of_uid(&u, 0, name);
        users_name_of_gid(&u, 0, name);
    }
}
