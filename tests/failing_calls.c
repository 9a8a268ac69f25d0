/* Preloaded: the n-th call that writes under a folder fails, as a full or broken disk would.

   arm(folder, n, error, persists, log): count from here on; n = 0 counts only. `persists`: all
   later calls but close fail, too. Every failure is a line in `log`. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX];
static long failing, error_number, persists, counted;
static int log_descriptor = -1;

#define NEXT(type, name, ...) \
    static type (*next)(__VA_ARGS__); \
    if (!next) next = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

static ssize_t plain_write(int fd, const void *data, size_t n)
{
    NEXT(ssize_t, write, int, const void *, size_t);
    return next(fd, data, n);
}

long arm(const char *where, long n, long error, long is_lasting, const char *log)
{
    log_descriptor = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    failing = n;
    error_number = error;
    persists = is_lasting;
    counted = 0;
    snprintf(folder, sizeof folder, "%s", where);
    return log_descriptor;
}

static int is_under(const char *path)
{
    size_t n = strlen(folder);
    return n && strncmp(path, folder, n) == 0;
}

static int is_ours(int fd, int needs_writing)
{
    char link[64], path[PATH_MAX];
    if (!folder[0]) return 0;
    if (needs_writing && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return is_under(path);
}

static int fails(const char *name, int may_persist)
{
    char line[100];
    long n = ++counted;
    if (!failing || n < failing || (n > failing && !(persists && may_persist))) return 0;
    int length = snprintf(line, sizeof line, "%ld %s\n", n, name);
    if (plain_write(log_descriptor, line, length) < 0) return 0;
    errno = error_number;
    return 1;
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) \
    { \
        NEXT(int, name, const char *, int, ...); \
        va_list rest; \
        va_start(rest, flags); \
        int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0; \
        va_end(rest); \
        if ((flags & O_ACCMODE) != O_RDONLY && is_under(path) && fails(#name, 1)) return -1; \
        return next(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) \
    { \
        NEXT(int, name, int, const char *, int, ...); \
        va_list rest; \
        va_start(rest, flags); \
        int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0; \
        va_end(rest); \
        if ((flags & O_ACCMODE) != O_RDONLY && is_under(path) && fails(#name, 1)) return -1; \
        return next(at, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int fd, const void *data, size_t n)
{
    if (is_ours(fd, 1) && fails("write", 1)) return -1;
    return plain_write(fd, data, n);
}

#define PWRITE(name, offset) \
    ssize_t name(int fd, const void *data, size_t n, offset at) \
    { \
        NEXT(ssize_t, name, int, const void *, size_t, offset); \
        if (is_ours(fd, 1) && fails(#name, 1)) return -1; \
        return next(fd, data, n, at); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t writev(int fd, const struct iovec *parts, int n)
{
    NEXT(ssize_t, writev, int, const struct iovec *, int);
    if (is_ours(fd, 1) && fails("writev", 1)) return -1;
    return next(fd, parts, n);
}

#define ON_DESCRIPTOR(name, needs_writing) \
    int name(int fd) \
    { \
        NEXT(int, name, int); \
        if (is_ours(fd, needs_writing) && fails(#name, 1)) return -1; \
        return next(fd); \
    }
ON_DESCRIPTOR(fsync, 0)
ON_DESCRIPTOR(fdatasync, 0)

int close(int fd)
{
    NEXT(int, close, int);
    int is_failing = fd != log_descriptor && is_ours(fd, 1) && fails("close", 0);
    int result = next(fd); /* Linux releases the descriptor whatever it says */
    if (!is_failing) return result;
    errno = error_number;
    return -1;
}

#define TRUNCATE(name, offset) \
    int name(int fd, offset length) \
    { \
        NEXT(int, name, int, offset); \
        if (is_ours(fd, 1) && fails(#name, 1)) return -1; \
        return next(fd, length); \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

int rename(const char *from, const char *to)
{
    NEXT(int, rename, const char *, const char *);
    if (is_under(to) && fails("rename", 1)) return -1;
    return next(from, to);
}

int renameat(int from_at, const char *from, int to_at, const char *to)
{
    NEXT(int, renameat, int, const char *, int, const char *);
    if (is_under(to) && fails("renameat", 1)) return -1;
    return next(from_at, from, to_at, to);
}

int link(const char *from, const char *to)
{
    NEXT(int, link, const char *, const char *);
    if (is_under(to) && fails("link", 1)) return -1;
    return next(from, to);
}

int mkdir(const char *path, mode_t mode)
{
    NEXT(int, mkdir, const char *, mode_t);
    if (is_under(path) && fails("mkdir", 1)) return -1;
    return next(path, mode);
}

int fchmod(int fd, mode_t mode)
{
    NEXT(int, fchmod, int, mode_t);
    if (is_ours(fd, 0) && fails("fchmod", 1)) return -1;
    return next(fd, mode);
}

int chmod(const char *path, mode_t mode)
{
    NEXT(int, chmod, const char *, mode_t);
    if (is_under(path) && fails("chmod", 1)) return -1;
    return next(path, mode);
}
