#include "initramfs/cpio.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define MAGIC "070701"

struct member {
    const char *name;
    uint32_t inode;
    uint32_t mode;
    uint32_t links;
    uint32_t major_number, minor_number; /* of the device that a device node stands for */
    const void *data;
    size_t size;
};

static int pad(struct buf *out)
{
    static const char zeros[4];

    return buf_append(out, zeros, (4 - out->size % 4) % 4);
}

static int add(struct buf *out, const struct member *m)
{
    size_t name_size = strlen(m->name) + 1;
    int r;

    if (m->size > UINT32_MAX)
        return -EFBIG;
    /* inode mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check
     */
    r = buf_printf(out, MAGIC "%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", m->inode,
                   m->mode, 0U, 0U, m->links, 0U, (uint32_t)m->size, 0U, 0U, m->major_number,
                   m->minor_number, (uint32_t)name_size, 0U);
    if (r == 0)
        r = buf_append(out, m->name, name_size);
    if (r == 0)
        r = pad(out);
    if (r == 0 && m->size > 0)
        r = buf_append(out, m->data, m->size);
    if (r == 0)
        r = pad(out);
    return r;
}

void cpio_init(struct cpio *c, struct buf *out)
{
    *c = (struct cpio){.out = out, .next_inode = 1};
}

int cpio_add_dir(struct cpio *c, const char *name, mode_t mode)
{
    return add(c->out,
               &(struct member){
                   .name = name, .inode = c->next_inode++, .mode = S_IFDIR | mode, .links = 2});
}

int cpio_add_file(struct cpio *c, const char *name, mode_t mode, const void *data, size_t size)
{
    return add(c->out, &(struct member){.name = name,
                                        .inode = c->next_inode++,
                                        .mode = S_IFREG | mode,
                                        .links = 1,
                                        .data = data,
                                        .size = size});
}

int cpio_add_char_device(struct cpio *c, const char *name, mode_t mode, uint32_t major_number,
                         uint32_t minor_number)
{
    return add(c->out, &(struct member){.name = name,
                                        .inode = c->next_inode++,
                                        .mode = S_IFCHR | mode,
                                        .links = 1,
                                        .major_number = major_number,
                                        .minor_number = minor_number});
}

int cpio_finish(struct cpio *c)
{
    return add(c->out, &(struct member){.name = "TRAILER!!!", .links = 1});
}
