#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/qemu/qemu-memory.h"
#include "base/fd.h"
#include "harness/test.h"

#define PAGES 3000u
#define SIZE (PAGES * (uint64_t)PAGE_BYTES)

/* ---- a process with a guest's memory, standing still ---- */

struct guest {
    pid_t pid;
    int stop; /* owned; the process ends when it is closed */
};

typedef void (*work_fn)(char *memory);

static int base_file(const char *name, char fill, const char **ret_path)
{
    static char path[256];
    char *data = malloc(SIZE);
    int fd;

    (void)snprintf(path, sizeof(path), "%s/%s", test_tmpdir(), name);
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ASSERT_OK(fd);
    memset(data, fill, SIZE);
    ASSERT_OK(fd_write_full(fd, data, SIZE));
    free(data);
    *ret_path = path;
    return fd;
}

/* Between two pages that nobody may touch, as QEMU does it. */
static char *map_guest(int fd, int flags)
{
    char *room = mmap(NULL, SIZE + 2 * PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (room == MAP_FAILED)
        return room;
    return mmap(room + PAGE_BYTES, SIZE, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0);
}

static struct guest guest_start(int fd, int flags, work_fn work)
{
    int ready[2], stop[2];
    struct guest g;
    char c;

    ASSERT_OK(pipe2(ready, O_CLOEXEC));
    ASSERT_OK(pipe2(stop, O_CLOEXEC));
    g.pid = fork();
    ASSERT_OK(g.pid);
    if (g.pid == 0) {
        char *memory = map_guest(fd, flags);

        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(stop[1]);
        if (memory == MAP_FAILED)
            _exit(1);
        work(memory);
        (void)!write(ready[1], "", 1);
        (void)!read(stop[0], &c, 1);
        _exit(0);
    }
    (void)close(ready[1]);
    (void)close(stop[0]);
    ASSERT_EQ(read(ready[0], &c, 1), 1);
    (void)close(ready[0]);
    g.stop = stop[1];
    return g;
}

static void guest_stop(struct guest *g)
{
    (void)close(g->stop);
    ASSERT_EQ(waitpid(g->pid, NULL, 0), g->pid);
}

static void work_none(char *memory _unused_)
{
}

/* Reads all, writes here and there: a run, single pages, first and last, zeros over something. */
static void work_some(char *memory)
{
    volatile char sum = 0;

    for (size_t i = 0; i < PAGES; i++)
        sum = (char)(sum + memory[i * PAGE_BYTES]);
    memset(memory, 'a', 1);
    memset(memory + 10 * PAGE_BYTES, 'b', 5 * PAGE_BYTES);
    memset(memory + 100 * PAGE_BYTES, 0, PAGE_BYTES);
    memory[(PAGES - 1) * PAGE_BYTES + 17] = 'z';
}

static bool some_changed(size_t page)
{
    return page == 0 || (page >= 10 && page < 15) || page == 100 || page == PAGES - 1;
}

/* Every other page: more runs than one call takes. */
static void work_comb(char *memory)
{
    for (size_t i = 0; i < PAGES; i += 2)
        memory[i * PAGE_BYTES + 1] = (char)(1 + i % 100);
}

static int go_on(void *userdata _unused_, struct error *err _unused_)
{
    return 0;
}
static const struct memory_check always = {.fn = go_on};

static int give_up(void *userdata, struct error *err)
{
    int *left = userdata;

    return (*left)-- > 0 ? 0 : error_set(err, ECANCELED, "given up");
}

static bool is_data(int fd, size_t page)
{
    return lseek(fd, (off_t)(page * PAGE_BYTES), SEEK_DATA) == (off_t)(page * PAGE_BYTES);
}

static int out_file(void)
{
    char path[256];
    int fd;

    (void)snprintf(path, sizeof(path), "%s/out", test_tmpdir());
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ASSERT_OK(fd);
    return fd;
}

static const char *page_of(int fd, size_t page)
{
    static char data[PAGE_BYTES];

    ASSERT_EQ(pread(fd, data, PAGE_BYTES, (off_t)(page * PAGE_BYTES)), PAGE_BYTES);
    return data;
}

/* ---- out ---- */

TEST(saves_what_a_private_view_of_a_file_changed_and_nothing_else)
{
    struct ram ram = {.size = SIZE};
    const char *path;
    _cleanup_close_ int base = base_file("base", 'x', &path), out = out_file();
    struct guest g = guest_start(base, MAP_PRIVATE, work_some);
    struct error err = {0};
    struct memory m;
    uint64_t bytes;

    ram.path = (char *)(uintptr_t)path;
    ASSERT_OK(memory_find(g.pid, &ram, &m, &err));
    ASSERT_FALSE(m.from_zeros);
    ASSERT_OK(memory_save_changed(&m, out, &always, &bytes, &err));
    ASSERT_EQ(bytes, 8 * PAGE_BYTES);
    ASSERT_EQ(lseek(out, 0, SEEK_END), SIZE);
    for (size_t i = 0; i < PAGES; i++)
        ASSERT_EQ(is_data(out, i), some_changed(i));
    ASSERT_EQ(page_of(out, 0)[0], 'a');
    ASSERT_EQ(page_of(out, 0)[1], 'x');
    ASSERT_EQ(page_of(out, 14)[PAGE_BYTES - 1], 'b');
    ASSERT_EQ(page_of(out, 100)[0], 0);
    ASSERT_EQ(page_of(out, PAGES - 1)[17], 'z');
    guest_stop(&g);
}

TEST(saves_more_runs_than_one_call_takes)
{
    struct ram ram = {.size = SIZE};
    const char *path;
    _cleanup_close_ int base = base_file("base", 'x', &path), out = out_file();
    struct guest g = guest_start(base, MAP_PRIVATE, work_comb);
    struct memory m;
    uint64_t bytes;

    ram.path = (char *)(uintptr_t)path;
    ASSERT_OK(memory_find(g.pid, &ram, &m, NULL));
    ASSERT_OK(memory_save_changed(&m, out, &always, &bytes, NULL));
    ASSERT_EQ(bytes, PAGES / 2 * PAGE_BYTES);
    for (size_t i = 0; i < PAGES; i++) {
        ASSERT_EQ(is_data(out, i), i % 2 == 0);
        if (i % 2 == 0)
            ASSERT_EQ(page_of(out, i)[1], 1 + i % 100);
    }
    guest_stop(&g);
}

TEST(saves_anonymous_memory_without_its_zeros)
{
    const struct ram ram = {.size = SIZE};
    _cleanup_close_ int out = out_file();
    struct guest g = guest_start(-1, MAP_PRIVATE | MAP_ANONYMOUS, work_some);
    struct memory m;
    uint64_t bytes;

    ASSERT_OK(memory_find(g.pid, &ram, &m, NULL));
    ASSERT_TRUE(m.from_zeros);
    ASSERT_OK(memory_save_changed(&m, out, &always, &bytes, NULL));
    ASSERT_EQ(bytes, 7 * PAGE_BYTES);
    for (size_t i = 0; i < PAGES; i++)
        ASSERT_EQ(is_data(out, i), some_changed(i) && i != 100);
    ASSERT_EQ(page_of(out, PAGES - 1)[17], 'z');
    guest_stop(&g);
}

TEST(saves_shared_memory_without_its_zeros)
{
    struct ram ram = {.size = SIZE, .shared = true};
    const char *path;
    _cleanup_close_ int base = base_file("shared", 0, &path), out = out_file();
    struct guest g = guest_start(base, MAP_SHARED, work_some);
    struct memory m;
    uint64_t bytes;

    ram.path = (char *)(uintptr_t)path;
    ASSERT_OK(memory_find(g.pid, &ram, &m, NULL));
    ASSERT_OK(memory_save_changed(&m, out, &always, &bytes, NULL));
    ASSERT_EQ(bytes, 7 * PAGE_BYTES);
    ASSERT_EQ(page_of(out, 12)[0], 'b');
    guest_stop(&g);
}

TEST(finds_memory_whose_base_has_lost_its_name)
{
    struct ram ram = {.size = SIZE};
    const char *path;
    _cleanup_close_ int base = base_file("gone", 'x', &path), out = out_file();
    struct guest g = guest_start(base, MAP_PRIVATE, work_some);
    struct memory m;

    ASSERT_OK(unlink(path));
    ram.path = (char *)(uintptr_t)path;
    ASSERT_OK(memory_find(g.pid, &ram, &m, NULL));
    ASSERT_OK(memory_save_changed(&m, out, &always, NULL, NULL));
    ASSERT_TRUE(is_data(out, 12) && !is_data(out, 9));
    guest_stop(&g);
}

TEST(does_not_guess_where_memory_is)
{
    struct ram ram = {.size = SIZE};
    const char *path;
    _cleanup_close_ int base = base_file("base", 'x', &path);
    struct guest g = guest_start(base, MAP_PRIVATE, work_none);
    struct error err = {0};
    struct memory m;

    ram.path = (char *)(uintptr_t) "/nonexistent";
    ASSERT_ERR(memory_find(g.pid, &ram, &m, &err), EOPNOTSUPP);
    ram.path = (char *)(uintptr_t)path;
    ram.size = SIZE / 2;
    ASSERT_ERR(memory_find(g.pid, &ram, &m, &err), EOPNOTSUPP);
    ram.size = SIZE;
    ram.shared = true;
    ASSERT_ERR(memory_find(g.pid, &ram, &m, &err), EOPNOTSUPP);
    guest_stop(&g);
    ram.shared = false;
    ASSERT_ERR(memory_find(g.pid, &ram, &m, &err), ESRCH);
}

TEST(stops_saving_when_told_so_and_when_the_process_is_gone)
{
    struct ram ram = {.size = SIZE};
    const char *path;
    _cleanup_close_ int base = base_file("base", 'x', &path), out = out_file();
    struct guest g = guest_start(base, MAP_PRIVATE, work_comb);
    int left = 1;
    const struct memory_check check = {.fn = give_up, .userdata = &left};
    struct error err = {0};
    struct memory m;

    ram.path = (char *)(uintptr_t)path;
    ASSERT_OK(memory_find(g.pid, &ram, &m, NULL));
    ASSERT_ERR(memory_save_changed(&m, out, &check, NULL, &err), ECANCELED);
    guest_stop(&g);
    ASSERT_ERR(memory_save_changed(&m, out, &always, NULL, &err), ESRCH);
}

/* ---- in ---- */

struct run {
    uint64_t page, pages;
    char fill; /* 0: zeros without data */
};

struct runs {
    struct page_source source;
    const struct run *runs; /* weak; ends with pages 0 */
    char *data;             /* owned */
    int fails;              /* errno after the last run, or 0 */
};

static int runs_next(struct page_source *s, uint64_t *ret_offset, const void **ret_data,
                     size_t *ret_size, struct error *err)
{
    struct runs *r = container_of(s, struct runs, source);
    const struct run *run = r->runs;

    if (run->pages == 0)
        return r->fails ? error_set(err, r->fails, "no more pages") : 0;
    r->runs++;
    *ret_offset = run->page * PAGE_BYTES;
    *ret_size = run->pages * PAGE_BYTES;
    free(r->data);
    r->data = run->fill ? malloc(*ret_size) : NULL;
    if (r->data)
        memset(r->data, run->fill, *ret_size);
    *ret_data = r->data;
    return 1;
}
static const struct page_source_ops runs_ops = {.next = runs_next};

static int install(const struct memory *m, const struct run *runs, int fails, struct error *err)
{
    struct runs r = {.source = {.ops = &runs_ops}, .runs = runs, .fails = fails};
    int result = memory_install(m, &r.source, &always, err);

    free(r.data);
    return result;
}

TEST(installs_pages_in_another_process_and_leaves_the_base_alone)
{
    static const struct run runs[] = {
        {.page = 0, .pages = 1, .fill = 'A'},
        {.page = 2, .pages = 3, .fill = 'B'},
        {.page = 5, .pages = 2},
        {.page = 100, .pages = 1500, .fill = 'C'},
        {.page = 1600, .pages = 1300},
        {.page = PAGES - 1, .pages = 1, .fill = 'D'},
        {0},
    };
    struct ram ram = {.size = SIZE};
    const char *path;
    _cleanup_close_ int base = base_file("base", 'x', &path), out = out_file();
    struct guest g = guest_start(base, MAP_PRIVATE, work_none);
    struct error err = {0};
    struct memory m;
    uint64_t bytes;

    ram.path = (char *)(uintptr_t)path;
    ASSERT_OK(memory_find(g.pid, &ram, &m, NULL));
    ASSERT_OK(install(&m, runs, 0, &err));
    ASSERT_OK(memory_save_changed(&m, out, &always, &bytes, &err));
    ASSERT_EQ(bytes, (1 + 3 + 2 + 1500 + 1300 + 1) * (uint64_t)PAGE_BYTES);
    for (size_t i = 0; i < PAGES; i++) {
        const struct run *run = runs;

        ASSERT_EQ(page_of(base, i)[7], 'x');
        while (run->pages > 0 && (i < run->page || i >= run->page + run->pages))
            run++;
        ASSERT_EQ(is_data(out, i), run->pages > 0);
        if (run->pages > 0)
            ASSERT_EQ(page_of(out, i)[PAGE_BYTES - 1], run->fill);
    }
    guest_stop(&g);
}

TEST(installs_many_single_pages)
{
    static struct run runs[PAGES / 2 + 1];
    struct ram ram = {.size = SIZE};
    const char *path;
    _cleanup_close_ int base = base_file("base", 'x', &path), out = out_file();
    struct guest g = guest_start(base, MAP_PRIVATE, work_none);
    struct memory m;

    for (size_t i = 0; i < PAGES / 2; i++)
        runs[i] = (struct run){.page = 2 * i, .pages = 1, .fill = (char)(1 + i % 100)};
    ram.path = (char *)(uintptr_t)path;
    ASSERT_OK(memory_find(g.pid, &ram, &m, NULL));
    ASSERT_OK(install(&m, runs, 0, NULL));
    ASSERT_OK(memory_save_changed(&m, out, &always, NULL, NULL));
    for (size_t i = 0; i < PAGES; i++) {
        ASSERT_EQ(is_data(out, i), i % 2 == 0);
        if (i % 2 == 0)
            ASSERT_EQ(page_of(out, i)[9], 1 + i / 2 % 100);
    }
    guest_stop(&g);
}

TEST(refuses_pages_that_do_not_fit)
{
    static const struct run beyond[] = {{.page = PAGES - 1, .pages = 2, .fill = 'A'}, {0}};
    static const struct run far[] = {{.page = UINT64_MAX / PAGE_BYTES, .pages = 1}, {0}};
    static const struct run back[] = {
        {.page = 5, .pages = 2, .fill = 'A'}, {.page = 6, .pages = 1, .fill = 'B'}, {0}};
    static const struct run none[] = {{0}};
    struct ram ram = {.size = SIZE};
    const char *path;
    _cleanup_close_ int base = base_file("base", 'x', &path);
    struct guest g = guest_start(base, MAP_PRIVATE, work_none);
    struct error err = {0};
    struct memory m;

    ram.path = (char *)(uintptr_t)path;
    ASSERT_OK(memory_find(g.pid, &ram, &m, NULL));
    ASSERT_ERR(install(&m, beyond, 0, &err), EINVAL);
    ASSERT_EQ(err.code, ERR_SNAPSHOT_INVALID);
    ASSERT_ERR(install(&m, far, 0, &err), EINVAL);
    ASSERT_ERR(install(&m, back, 0, &err), EINVAL);
    ASSERT_OK(install(&m, none, 0, &err));
    ASSERT_ERR(install(&m, none, EBADMSG, &err), EBADMSG);
    guest_stop(&g);
    ASSERT_ERR(install(&m, back, 0, &err), EINVAL);
}
