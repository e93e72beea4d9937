/* Writes down what a process does to the files of one folder, in order: what it writes and cuts off, and what
 * it asks the disk to keep. A test makes from that what a disk may hold after the power was lost.
 *
 * To be preloaded. POWER_LOSS_DIR is the folder, POWER_LOSS_LOG the file that it is written down in.
 *
 * A line of the log: kind, length of the name, name, offset, length, bytes. Numbers are little-endian. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define FILES 4096

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static char *names[FILES];
static int log_file = -1;
static const char *folder;

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

__attribute__((constructor)) static void begin(void) {
    folder = getenv("POWER_LOSS_DIR");
    const char *path = getenv("POWER_LOSS_LOG");
    int (*open_file)(const char *, int, ...) = real("open");
    if (folder && path) log_file = open_file(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

/* Called in turn. A log that cannot be written would make the test say what is not so. */
static void note(char kind, const char *name, uint64_t offset, const void *bytes, uint32_t length) {
    ssize_t (*put)(int, const void *, size_t) = real("write");
    uint16_t named = strlen(name);
    size_t size = 1 + 2 + named + 8 + 4 + (bytes ? length : 0), at = 0;
    char *line = malloc(size);
    if (!line) abort();
    line[at++] = kind;
    memcpy(line + at, &named, 2), at += 2;
    memcpy(line + at, name, named), at += named;
    memcpy(line + at, &offset, 8), at += 8;
    memcpy(line + at, &length, 4), at += 4;
    if (bytes) memcpy(line + at, bytes, length);
    if (put(log_file, line, size) != (ssize_t)size) abort();
    free(line);
}

static void opened(int file, const char *path) {
    if (file < 0 || file >= FILES || log_file < 0 || !path) return;
    size_t inside = strlen(folder);
    pthread_mutex_lock(&turn);
    free(names[file]);
    names[file] = NULL;
    /* Memory that is shared between processes is not on the disk. */
    const char *end = strrchr(path, '-');
    if (!strncmp(path, folder, inside) && path[inside] == '/' && !(end && !strcmp(end, "-shm")))
        names[file] = strdup(path + inside + 1);
    pthread_mutex_unlock(&turn);
}

static const char *watched(int file) { return file >= 0 && file < FILES ? names[file] : NULL; }

#define OPEN(function)                                                                          \
    int function(const char *path, int flags, ...) {                                            \
        va_list rest;                                                                           \
        va_start(rest, flags);                                                                  \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                 \
        va_end(rest);                                                                           \
        int (*call)(const char *, int, ...) = real(#function);                                  \
        int file = call(path, flags, mode);                                                     \
        opened(file, path);                                                                     \
        return file;                                                                            \
    }
OPEN(open)
OPEN(open64)

int close(int file) {
    int (*call)(int) = real("close");
    if (watched(file)) {
        pthread_mutex_lock(&turn);
        free(names[file]);
        names[file] = NULL;
        pthread_mutex_unlock(&turn);
    }
    return call(file);
}

#define PWRITE(function, offset_type)                                                           \
    ssize_t function(int file, const void *bytes, size_t length, offset_type offset) {          \
        ssize_t (*call)(int, const void *, size_t, offset_type) = real(#function);              \
        if (!watched(file)) return call(file, bytes, length, offset);                           \
        pthread_mutex_lock(&turn);                                                              \
        ssize_t wrote = call(file, bytes, length, offset);                                      \
        if (wrote > 0) note('w', names[file], offset, bytes, wrote);                            \
        pthread_mutex_unlock(&turn);                                                            \
        return wrote;                                                                           \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t write(int file, const void *bytes, size_t length) {
    ssize_t (*call)(int, const void *, size_t) = real("write");
    if (!watched(file)) return call(file, bytes, length);
    pthread_mutex_lock(&turn);
    off_t offset = lseek(file, 0, SEEK_CUR);
    ssize_t wrote = call(file, bytes, length);
    if (wrote > 0) note('w', names[file], offset, bytes, wrote);
    pthread_mutex_unlock(&turn);
    return wrote;
}

#define TRUNCATE(function, offset_type)                                                         \
    int function(int file, offset_type length) {                                                \
        int (*call)(int, offset_type) = real(#function);                                        \
        if (!watched(file)) return call(file, length);                                          \
        pthread_mutex_lock(&turn);                                                              \
        int done = call(file, length);                                                          \
        if (!done) note('t', names[file], length, NULL, 0);                                     \
        pthread_mutex_unlock(&turn);                                                            \
        return done;                                                                            \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

/* What was written before the call is kept once it has returned; what is written during it may not be. */
#define SYNC(function)                                                                          \
    int function(int file) {                                                                    \
        int (*call)(int) = real(#function);                                                     \
        if (!watched(file)) return call(file);                                                  \
        pthread_mutex_lock(&turn);                                                              \
        int done = call(file);                                                                  \
        if (!done) note('s', names[file], 0, NULL, 0);                                          \
        pthread_mutex_unlock(&turn);                                                            \
        return done;                                                                            \
    }
SYNC(fsync)
SYNC(fdatasync)

int unlink(const char *path) {
    int (*call)(const char *) = real("unlink");
    size_t inside = folder ? strlen(folder) : 0;
    if (log_file < 0 || strncmp(path, folder, inside) || path[inside] != '/') return call(path);
    pthread_mutex_lock(&turn);
    int done = call(path);
    if (!done) note('u', path + inside + 1, 0, NULL, 0);
    pthread_mutex_unlock(&turn);
    return done;
}
