/* A library for LD_PRELOAD: below a directory, named system calls fail or are slow, or are noted.

   FAILING_BELOW=DIR:DIR   the calls on paths and descriptors below a DIR, and on no others
   FAILING_CALLS=a=38,b=s  a fails with errno 38; b waits for 2 s; c=h waits for an hour
   FAILING_NOTES=FILE      each call is appended to FILE, once a process: "2 flock" below the second DIR
*/
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static __thread int inside;

/* The number of the directory that `path` is below; 0: of none. */
static int below(const char *path) {
    const char *root = getenv("FAILING_BELOW");
    int number;
    for (number = 1; path && root && *root; number++) {
        size_t length = strcspn(root, ":");
        if (strncmp(path, root, length) == 0 && (path[length] == '/' || path[length] == 0))
            return number;
        root += length + (root[length] == ':');
    }
    return 0;
}

static int below_at(int directory, const char *path) {
    char name[64], full[PATH_MAX];
    ssize_t length;
    if (path && path[0] == '/' && strncmp(path, "/proc/self/fd/", 14) != 0) return below(path);
    if (path && path[0] == '/') directory = atoi(path + 14);
    if (directory == AT_FDCWD) strcpy(name, "/proc/self/cwd");
    else snprintf(name, sizeof name, "/proc/self/fd/%d", directory);
    length = syscall(SYS_readlink, name, full, sizeof full - 1);
    if (length < 0) return 0;
    full[length] = 0;
    return below(full);
}

static void note(const char *call, int number) {
    static char known[4096];
    char word[64];
    const char *file = getenv("FAILING_NOTES");
    int descriptor;
    if (!file) return;
    snprintf(word, sizeof word, "%d %s\n", number, call);
    if (strstr(known, word)) return;
    strncat(known, word, sizeof known - strlen(known) - 1);
    descriptor = syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND, 0666);
    syscall(SYS_write, descriptor, word, strlen(word));
    syscall(SYS_close, descriptor);
}

/* 1 if the call is to fail: errno is set. */
static int fails(const char *call, int applies) {
    char *rule;
    const char *rules = getenv("FAILING_CALLS");
    size_t length = strlen(call);
    if (!applies || inside) return 0;
    note(call, applies);
    for (rule = (char *)rules; rule; rule = strchr(rule, ',')) {
        if (*rule == ',') rule++;
        if (strncmp(rule, call, length) != 0 || rule[length] != '=') continue;
        if (rule[length + 1] == 's') { usleep(2000000); return 0; }
        if (rule[length + 1] == 'h') { sleep(3600); return 0; }
        errno = atoi(rule + length + 1);
        return 1;
    }
    return 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FD(descriptor) below_at(descriptor, NULL)
#define AT(path) below_at(AT_FDCWD, path)

int flock(int fd, int kind) { return fails("flock", FD(fd)) ? -1 : REAL(flock)(fd, kind); }
int fsync(int fd) {
    struct stat status;
    int directory = fstat(fd, &status) == 0 && S_ISDIR(status.st_mode);
    return fails(directory ? "fsyncdir" : "fsync", FD(fd)) ? -1 : REAL(fsync)(fd);
}
int ftruncate(int fd, off_t size) { return fails("ftruncate", FD(fd)) ? -1 : REAL(ftruncate)(fd, size); }
int ftruncate64(int fd, off64_t size) { return fails("ftruncate", FD(fd)) ? -1 : REAL(ftruncate64)(fd, size); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return fails("pwrite", FD(fd)) ? -1 : REAL(pwrite)(fd, data, size, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { return fails("pwrite", FD(fd)) ? -1 : REAL(pwrite64)(fd, data, size, at); }
int fchmod(int fd, mode_t mode) { return fails("chmod", FD(fd)) ? -1 : REAL(fchmod)(fd, mode); }
int chmod(const char *path, mode_t mode) { return fails("chmod", AT(path)) ? -1 : REAL(chmod)(path, mode); }
int fchmodat(int at, const char *path, mode_t mode, int flags) { return fails("chmod", below_at(at, path)) ? -1 : REAL(fchmodat)(at, path, mode, flags); }
int mkdir(const char *path, mode_t mode) { return fails("mkdir", AT(path)) ? -1 : REAL(mkdir)(path, mode); }
int rmdir(const char *path) { return fails("rmdir", AT(path)) ? -1 : REAL(rmdir)(path); }
int unlink(const char *path) { return fails("unlink", AT(path)) ? -1 : REAL(unlink)(path); }
int unlinkat(int at, const char *path, int flags) { return fails(flags & AT_REMOVEDIR ? "rmdir" : "unlink", below_at(at, path)) ? -1 : REAL(unlinkat)(at, path, flags); }
int symlink(const char *to, const char *path) { return fails("symlink", AT(path)) ? -1 : REAL(symlink)(to, path); }
int utimensat(int at, const char *path, const struct timespec times[2], int flags) { return fails("utime", below_at(at, path)) ? -1 : REAL(utimensat)(at, path, times, flags); }
int futimens(int fd, const struct timespec times[2]) { return fails("utime", FD(fd)) ? -1 : REAL(futimens)(fd, times); }
int rename(const char *old, const char *new) {
    struct stat status;
    const char *call = lstat(old, &status) == 0 && S_ISDIR(status.st_mode) ? "renamedir" : "rename";
    return fails(call, AT(new)) ? -1 : REAL(rename)(old, new);
}
int renameat(int at, const char *old, int to, const char *new) { return fails("rename", below_at(to, new)) ? -1 : REAL(renameat)(at, old, to, new); }
int bind(int fd, const struct sockaddr *name, socklen_t size) {
    int local = name->sa_family == AF_UNIX ? AT(((const struct sockaddr_un *)name)->sun_path) : 0;
    return fails("bind", local) ? -1 : REAL(bind)(fd, name, size);
}
void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
    static __typeof__(&mmap) real;
    if (!real) { inside = 1; real = REAL(mmap); inside = 0; }
    if (fd >= 0 && !inside && fails("mmap", FD(fd))) return MAP_FAILED;
    return real(at, size, protection, flags, fd, offset);
}
void *mmap64(void *at, size_t size, int protection, int flags, int fd, off64_t offset) { return mmap(at, size, protection, flags, fd, offset); }
DIR *opendir(const char *path) { return fails("readdir", AT(path)) ? NULL : REAL(opendir)(path); }

static int opening(int at, const char *path, int flags) {
    struct stat status;
    int there = fstatat(at, path, &status, 0) == 0;
    const char *call = flags & O_APPEND && there ? "append" : flags & O_CREAT && !there ? "create"
        : flags & (O_WRONLY | O_RDWR) ? "overwrite" : NULL;
    return call && fails(call, below_at(at, path));
}
#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list more; mode_t mode; \
        va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); \
        return opening(AT_FDCWD, path, flags) ? -1 : REAL(name)(path, flags, mode); \
    }
#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { \
        va_list more; mode_t mode; \
        va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); \
        return opening(at, path, flags) ? -1 : REAL(name)(at, path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
