/* Records, in order, what a process does to the files below one folder. See power.py, which compiles and reads it.

   Preloaded with LD_PRELOAD. RECORDER_ROOT is the folder, RECORDER_LOG the file to append to. Each record is a
   header and `length` bytes: data that was written, or a path. What is written to standard output is recorded too:
   it is what the process has acknowledged by then. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST 4096

struct header {
    uint32_t kind;
    int32_t fd;
    uint64_t at;
    uint64_t length;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *root;
static int record = -1;
static char ours[MOST]; /* whether a descriptor is of a file below the folder */

static void put(const void *data, size_t length) {
    const char *from = data;
    while (length) {
        long done = syscall(SYS_write, record, from, length);
        if (done <= 0)
            abort(); /* a record with a hole proves nothing */
        from += done, length -= (size_t)done;
    }
}

static void keep(char kind, int fd, uint64_t at, const void *data, size_t length) {
    struct header header = {(uint32_t)kind, fd, at, length};
    put(&header, sizeof header);
    put(data, length);
}

__attribute__((constructor)) static void begin(void) {
    root = getenv("RECORDER_ROOT");
    const char *path = getenv("RECORDER_LOG");
    if (root && path)
        record = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (root && path && record < 0)
        abort();
}

static int below(const char *path) {
    return record >= 0 && path && !strncmp(path, root, strlen(root));
}

static int tracked(int fd) {
    return record >= 0 && fd >= 0 && fd < MOST && ours[fd];
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int opened(int fd, const char *path, int flags, int existed) {
    if (fd >= 0 && below(path)) {
        if (fd >= MOST)
            abort();
        ours[fd] = 1;
        keep('O', fd, (uint64_t)(existed ? 0 : 1) | (flags & O_TRUNC ? 2 : 0), path, strlen(path));
    }
    return fd;
}

#define OPEN(name)                                                     \
    int name(const char *path, int flags, ...) {                       \
        va_list more;                                                  \
        va_start(more, flags);                                         \
        mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;      \
        va_end(more);                                                  \
        pthread_mutex_lock(&lock);                                     \
        int existed = !below(path) || access(path, F_OK) == 0;         \
        int fd = opened(REAL(name)(path, flags, mode), path, flags, existed); \
        pthread_mutex_unlock(&lock);                                   \
        return fd;                                                     \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                   \
    int name(int folder, const char *path, int flags, ...) {           \
        va_list more;                                                  \
        va_start(more, flags);                                         \
        mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;      \
        va_end(more);                                                  \
        pthread_mutex_lock(&lock);                                     \
        int existed = !below(path) || access(path, F_OK) == 0;         \
        int fd = opened(REAL(name)(folder, path, flags, mode), path, flags, existed); \
        pthread_mutex_unlock(&lock);                                   \
        return fd;                                                     \
    }
OPENAT(openat)
OPENAT(openat64)

int close(int fd) {
    pthread_mutex_lock(&lock);
    if (tracked(fd)) {
        ours[fd] = 0;
        keep('C', fd, 0, "", 0);
    }
    int done = REAL(close)(fd);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t write(int fd, const void *data, size_t length) {
    if (record < 0 || (fd != 1 && !tracked(fd)))
        return REAL(write)(fd, data, length);
    pthread_mutex_lock(&lock);
    ssize_t done = REAL(write)(fd, data, length);
    if (done > 0 && fd == 1)
        keep('A', fd, 0, data, (size_t)done);
    else if (done > 0)
        keep('W', fd, (uint64_t)(lseek(fd, 0, SEEK_CUR) - done), data, (size_t)done);
    pthread_mutex_unlock(&lock);
    return done;
}

#define PWRITE(name, offset)                                           \
    ssize_t name(int fd, const void *data, size_t length, offset at) { \
        if (!tracked(fd))                                              \
            return REAL(name)(fd, data, length, at);                   \
        pthread_mutex_lock(&lock);                                     \
        ssize_t done = REAL(name)(fd, data, length, at);               \
        if (done > 0)                                                  \
            keep('W', fd, (uint64_t)at, data, (size_t)done);           \
        pthread_mutex_unlock(&lock);                                   \
        return done;                                                   \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define TRUNCATE(name, offset)                                         \
    int name(int fd, offset size) {                                    \
        if (!tracked(fd))                                              \
            return REAL(name)(fd, size);                               \
        pthread_mutex_lock(&lock);                                     \
        int done = REAL(name)(fd, size);                               \
        if (!done)                                                     \
            keep('T', fd, (uint64_t)size, "", 0);                      \
        pthread_mutex_unlock(&lock);                                   \
        return done;                                                   \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

/* A sync covers what was written before it began. It is recorded when it has returned, but nothing is let in between. */
#define SYNC(name)                                                     \
    int name(int fd) {                                                 \
        if (!tracked(fd))                                              \
            return REAL(name)(fd);                                     \
        pthread_mutex_lock(&lock);                                     \
        int done = REAL(name)(fd);                                     \
        if (!done)                                                     \
            keep('S', fd, 0, "", 0);                                   \
        pthread_mutex_unlock(&lock);                                   \
        return done;                                                   \
    }
SYNC(fsync)
SYNC(fdatasync)

int unlink(const char *path) {
    pthread_mutex_lock(&lock);
    int done = REAL(unlink)(path);
    if (!done && below(path))
        keep('U', -1, 0, path, strlen(path));
    pthread_mutex_unlock(&lock);
    return done;
}

int mkdir(const char *path, mode_t mode) {
    pthread_mutex_lock(&lock);
    int done = REAL(mkdir)(path, mode);
    if (!done && below(path))
        keep('M', -1, 0, path, strlen(path));
    pthread_mutex_unlock(&lock);
    return done;
}

int rename(const char *from, const char *to) {
    pthread_mutex_lock(&lock);
    int done = REAL(rename)(from, to);
    if (!done && (below(from) || below(to)))
        abort(); /* nothing here renames files; teach power.py before something does */
    pthread_mutex_unlock(&lock);
    return done;
}
