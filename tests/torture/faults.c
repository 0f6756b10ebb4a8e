/* faults.c: makes the n-th call of a kind fail, or ends the process there. Loaded with LD_PRELOAD.
 *
 *   TORTURE=KINDS:N:ACTION[:lasting]   KINDS joined by +, among open read write rename fsync unlink mkdir
 *                                      truncate malloc mmap; N from 0; ACTION a number of errno, or
 *                                      -S: the process gets signal S; lasting: every later call fails too
 *   TORTURE_COUNTS=FILE                writes "KIND CALLS" lines when the process exits
 *
 * A write that fails has written half, as on a full disk. Memory for a library that is being loaded
 * is not refused: libgfortran, which comes with OpenBLAS, answers that with recursion until the
 * stack ends. Nor is memory for libconfig while it parses: it ends the process then
 * (docs/troubleshooting.md). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* glibc's own, which need no look-up: dlsym itself allocates. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);

enum kind { OPEN, READ, WRITE, RENAME, FSYNC, UNLINK, MKDIR, TRUNCATE, MALLOC, MMAP, KINDS };
static const char *const names[KINDS] = {"open",   "read",  "write",    "rename", "fsync",
                                         "unlink", "mkdir", "truncate", "malloc", "mmap"};
static atomic_long calls[KINDS];
static atomic_long chosen; /* calls of the kinds that were chosen */
static bool is_chosen[KINDS], is_lasting;
static long at = -1;
static int action;
static _Thread_local int loading; /* a library, or parsing in libconfig */

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("TORTURE");
    char kinds[128], rest[32] = "";
    long n = -1;
    int what = 0;
    if (!text || sscanf(text, "%127[^:]:%ld:%d:%31s", kinds, &n, &what, rest) < 3) return;
    for (int k = 0; k < KINDS; k++) is_chosen[k] = strstr(kinds, names[k]) != NULL;
    is_lasting = strcmp(rest, "lasting") == 0;
    action = what;
    at = n;
}

__attribute__((destructor)) static void end(void) {
    const char *path = getenv("TORTURE_COUNTS");
    at = -1;
    FILE *file = path ? fopen(path, "w") : NULL;
    for (int k = 0; file && k < KINDS; k++) fprintf(file, "%s %ld\n", names[k], calls[k]);
    if (file) fclose(file);
}

/* Whether this call is to fail; errno is set then. */
static bool fails(enum kind kind) {
    if (loading && (kind == MALLOC || kind == MMAP)) return false;
    calls[kind]++;
    if (at < 0 || !is_chosen[kind]) return false;
    long number = chosen++;
    if (number != at && !(is_lasting && number > at)) return false;
    if (action < 0) {
        kill(getpid(), -action);
        return false;
    }
    errno = action;
    return true;
}

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

#define OPENS(name)                                                                                \
    int name(const char *path, int flags, ...) {                                                   \
        va_list list;                                                                              \
        va_start(list, flags);                                                                     \
        mode_t mode = va_arg(list, mode_t);                                                        \
        va_end(list);                                                                              \
        return fails(OPEN) ? -1 : REAL(int, name, const char *, int, mode_t)(path, flags, mode);   \
    }
OPENS(open)
OPENS(open64)
#define OPENS_AT(name)                                                                             \
    int name(int folder, const char *path, int flags, ...) {                                       \
        va_list list;                                                                              \
        va_start(list, flags);                                                                     \
        mode_t mode = va_arg(list, mode_t);                                                        \
        va_end(list);                                                                              \
        if (fails(OPEN)) return -1;                                                                \
        return REAL(int, name, int, const char *, int, mode_t)(folder, path, flags, mode);         \
    }
OPENS_AT(openat)
OPENS_AT(openat64)
#define OPENS_STREAM(name)                                                                         \
    FILE *name(const char *path, const char *mode) {                                               \
        return fails(OPEN) ? NULL : REAL(FILE *, name, const char *, const char *)(path, mode);    \
    }
OPENS_STREAM(fopen)
OPENS_STREAM(fopen64)

void *dlopen(const char *path, int mode) {
    loading++;
    void *handle = REAL(void *, dlopen, const char *, int)(path, mode);
    loading--;
    return handle;
}

void config_init(void *config) {
    loading++;
    REAL(void, config_init, void *)(config);
    loading--;
}
int config_read_string(void *config, const char *text) {
    loading++;
    int is_read = REAL(int, config_read_string, void *, const char *)(config, text);
    loading--;
    return is_read;
}

ssize_t read(int fd, void *data, size_t size) {
    return fails(READ) ? -1 : syscall(SYS_read, fd, data, size);
}
#define READS_AT(name)                                                                             \
    ssize_t name(int fd, void *data, size_t size, off_t place) {                                   \
        return fails(READ) ? -1 : syscall(SYS_pread64, fd, data, size, place);                     \
    }
READS_AT(pread)
READS_AT(pread64)

ssize_t write(int fd, const void *data, size_t size) {
    if (!fails(WRITE)) return syscall(SYS_write, fd, data, size);
    int error = errno;
    if (error == EINTR) return -1; /* which is said only where nothing was written */
    if (size > 1) syscall(SYS_write, fd, data, size / 2);
    errno = error;
    return -1;
}
static ssize_t half_at(int fd, const void *data, size_t size, off_t place) {
    int error = errno;
    if (error != EINTR && size > 1) syscall(SYS_pwrite64, fd, data, size / 2, place);
    errno = error;
    return -1;
}
#define WRITES_AT(name)                                                                            \
    ssize_t name(int fd, const void *data, size_t size, off_t place) {                             \
        if (fails(WRITE)) return half_at(fd, data, size, place);                                   \
        return syscall(SYS_pwrite64, fd, data, size, place);                                       \
    }
WRITES_AT(pwrite)
WRITES_AT(pwrite64)
ssize_t writev(int fd, const struct iovec *parts, int count) {
    return fails(WRITE) ? -1 : syscall(SYS_writev, fd, parts, count);
}

int rename(const char *from, const char *to) {
    return fails(RENAME) ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat(int a, const char *from, int b, const char *to) {
    return fails(RENAME) ? -1 : (int)syscall(SYS_renameat2, a, from, b, to, 0);
}
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
    return fails(RENAME) ? -1 : (int)syscall(SYS_renameat2, a, from, b, to, flags);
}
int fsync(int fd) { return fails(FSYNC) ? -1 : (int)syscall(SYS_fsync, fd); }
int fdatasync(int fd) { return fails(FSYNC) ? -1 : (int)syscall(SYS_fdatasync, fd); }
int unlink(const char *path) {
    return fails(UNLINK) ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}
int unlinkat(int folder, const char *path, int flags) {
    return fails(UNLINK) ? -1 : (int)syscall(SYS_unlinkat, folder, path, flags);
}
int mkdir(const char *path, mode_t mode) {
    return fails(MKDIR) ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}
int mkdirat(int folder, const char *path, mode_t mode) {
    return fails(MKDIR) ? -1 : (int)syscall(SYS_mkdirat, folder, path, mode);
}
int ftruncate(int fd, off_t size) {
    return fails(TRUNCATE) ? -1 : (int)syscall(SYS_ftruncate, fd, size);
}
int fallocate(int fd, int mode, off_t place, off_t size) {
    return fails(TRUNCATE) ? -1 : (int)syscall(SYS_fallocate, fd, mode, place, size);
}
int ftruncate64(int fd, off64_t size) {
    return fails(TRUNCATE) ? -1 : (int)syscall(SYS_ftruncate, fd, size);
}

void *malloc(size_t size) { return fails(MALLOC) ? NULL : __libc_malloc(size); }
void *calloc(size_t count, size_t size) {
    return fails(MALLOC) ? NULL : __libc_calloc(count, size);
}
void *realloc(void *memory, size_t size) {
    return fails(MALLOC) ? NULL : __libc_realloc(memory, size);
}
#define MAPS(name)                                                                                 \
    void *name(void *where, size_t size, int access, int flags, int fd, off_t place) {             \
        if (fails(MMAP)) return MAP_FAILED;                                                        \
        return (void *)syscall(SYS_mmap, where, size, access, flags, fd, place);                   \
    }
MAPS(mmap)
MAPS(mmap64)
