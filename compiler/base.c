/* Arenas, buffers, hashing, files, threads: what base.h promises, on POSIX and Linux.
 *
 * Memory comes from calloc, so that arenas are zeroed and the sanitizers see their ends. Nothing
 * here prints but base_fail, and nothing here ends the process but base_fail.
 */
#include "base.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { ARENA_ALIGN = 16, ARENA_BLOCK_BYTES = 64 << 10, TEMP_NAMES_MAX = 1000, CORES_MAX = 256 };

/* ---- memory ---- */

struct arena_block {
    struct arena_block *next;
    size_t used, room;
    _Alignas(ARENA_ALIGN) uint8_t data[];
};

void base_fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("error: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(3);
}

static _Noreturn void out_of_memory(size_t bytes) {
    base_fail("out of memory: cannot get %zu more bytes", bytes);
}

/* A large request gets a block of its own, behind the current one, whose rest stays in use. */
static struct arena_block *arena_add_block(struct arena *a, size_t bytes) {
    size_t room = bytes > ARENA_BLOCK_BYTES / 4 ? bytes : ARENA_BLOCK_BYTES;
    if (room > SIZE_MAX - sizeof(struct arena_block)) out_of_memory(bytes);
    struct arena_block *b = calloc(1, sizeof *b + room);
    if (!b) out_of_memory(bytes);
    b->room = room;
    bool own = room != ARENA_BLOCK_BYTES && a->blocks;
    b->next = own ? a->blocks->next : a->blocks;
    *(own ? &a->blocks->next : &a->blocks) = b;
    return b;
}

void *arena_alloc(struct arena *a, size_t bytes) {
    if (bytes > SIZE_MAX - ARENA_ALIGN) out_of_memory(bytes);
    size_t size = (bytes + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
    struct arena_block *b = a->blocks;
    if (!b || b->room - b->used < size) b = arena_add_block(a, size);
    void *p = b->data + b->used;
    b->used += size;
    a->bytes += size;
    return p;
}

void *arena_array(struct arena *a, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) out_of_memory(SIZE_MAX);
    return arena_alloc(a, bytes);
}

char *arena_copy(struct arena *a, const void *p, size_t bytes) {
    if (bytes == SIZE_MAX) out_of_memory(bytes);
    char *copy = arena_alloc(a, bytes + 1);
    if (bytes) memcpy(copy, p, bytes);
    return copy;
}

char *arena_printf(struct arena *a, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    if (n < 0) base_fail("cannot format '%s'", format);
    char *text = arena_alloc(a, (size_t)n + 1);
    vsnprintf(text, (size_t)n + 1, format, again);
    va_end(again);
    va_end(args);
    return text;
}

void arena_free(struct arena *a) {
    for (struct arena_block *b = a->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    *a = (struct arena){ 0 };
}

static void buffer_reserve(struct buffer *b, size_t bytes) {
    if (bytes <= b->room - b->bytes) return;
    if (bytes > SIZE_MAX / 2 - b->bytes) out_of_memory(bytes);
    size_t room = b->room < 256 ? 256 : b->room;
    while (room - b->bytes < bytes) room += room / 2;
    uint8_t *data = realloc(b->data, room);
    if (!data) out_of_memory(room);
    b->data = data;
    b->room = room;
}

void *buffer_append(struct buffer *b, const void *p, size_t bytes) {
    buffer_reserve(b, bytes ? bytes : 1);
    uint8_t *at = b->data + b->bytes;
    if (p && bytes) memcpy(at, p, bytes);
    else memset(at, 0, bytes);
    b->bytes += bytes;
    return at;
}

void buffer_printf(struct buffer *b, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    if (n < 0) base_fail("cannot format '%s'", format);
    buffer_reserve(b, (size_t)n + 1);
    vsnprintf((char *)b->data + b->bytes, (size_t)n + 1, format, again);
    b->bytes += (size_t)n;
    va_end(again);
    va_end(args);
}

void buffer_align(struct buffer *b, size_t alignment) {
    size_t over = b->bytes % alignment;
    if (over) buffer_append(b, NULL, alignment - over);
}

void buffer_free(struct buffer *b) {
    free(b->data);
    *b = (struct buffer){ 0 };
}

/* ---- hashing ---- */

struct hash128 hash_bytes(const void *p, size_t bytes) {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(p, bytes));
    struct hash128 h;
    memcpy(h.bytes, canonical.digest, sizeof h.bytes);
    return h;
}

void hash_hex(struct hash128 h, char out[33]) {
    for (size_t i = 0; i < sizeof h.bytes; i++) snprintf(out + 2 * i, 3, "%02x", h.bytes[i]);
}

/* ---- files ---- */

static bool close_keeping_errno(int fd) {
    int saved = errno;
    bool ok = close(fd) == 0;
    if (ok) errno = saved;
    return ok;
}

/* Opened without waiting, so that a named pipe cannot hang us before fstat tells what it is. */
static int open_regular(const char *path, struct stat *st) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return -1;
    if (fstat(fd, st) == 0) {
        if (S_ISREG(st->st_mode)) return fd;
        errno = S_ISDIR(st->st_mode) ? EISDIR : ENODEV;
    }
    close_keeping_errno(fd);
    return -1;
}

static int64_t modified_ns(const struct stat *st) {
    return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

bool file_map_unchanged(const struct file_map *m, const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && (uint64_t)st.st_size == m->bytes && modified_ns(&st) == m->modified_ns;
}

bool file_map_open(struct file_map *m, const char *path) {
    *m = (struct file_map){ .data = (const uint8_t *)"" };
    struct stat st;
    int fd = open_regular(path, &st);
    if (fd < 0) return false;
    if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            close_keeping_errno(fd);
            return false;
        }
        *m = (struct file_map){ .data = p, .bytes = (uint64_t)st.st_size };
    }
    m->modified_ns = modified_ns(&st);
    close_keeping_errno(fd);
    return true;
}

void file_map_close(struct file_map *m) {
    if (m->bytes) munmap((void *)(uintptr_t)m->data, (size_t)m->bytes);
    *m = (struct file_map){ 0 };
}

static bool read_all(int fd, struct buffer *b) {
    for (;;) {
        buffer_reserve(b, 16 << 10);
        ssize_t n = read(fd, b->data + b->bytes, b->room - b->bytes);
        if (n == 0) return true;
        if (n > 0) b->bytes += (size_t)n;
        else if (errno != EINTR) return false;
    }
}

char *file_read(struct arena *a, const char *path, size_t *bytes) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return NULL;
    struct buffer b = { 0 };
    char *text = NULL;
    if (read_all(fd, &b)) {
        text = arena_copy(a, b.data, b.bytes);
        if (bytes) *bytes = b.bytes;
    }
    close_keeping_errno(fd);
    buffer_free(&b);
    return text;
}

bool file_put(int fd, const void *p, size_t bytes) {
    for (const char *from = p; bytes;) {
        ssize_t n = write(fd, from, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        from += n, bytes -= (size_t)n;
    }
    return true;
}

bool file_put_at(int fd, const void *p, size_t bytes, uint64_t offset) {
    for (const char *from = p; bytes;) {
        ssize_t n = pwrite(fd, from, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        from += n, bytes -= (size_t)n, offset += (uint64_t)n;
    }
    return true;
}

/* The part of path before its last name; "." when there is none. */
static void directory_of(const char *path, char out[PATH_MAX]) {
    const char *slash = strrchr(path, '/');
    int n = slash == path ? 1 : slash ? (int)(slash - path) : 0;
    snprintf(out, PATH_MAX, "%.*s", n ? n : 1, n ? path : ".");
}

/* Makes a renamed or new name durable. Some file systems cannot sync a directory: not our error. */
static void sync_directory_of(const char *path) {
    char directory[PATH_MAX];
    directory_of(path, directory);
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

/* A new file beside path; the number is for threads of one process and for leftovers of a killed
 * one. */
static int open_temporary(const char *path, char temporary[PATH_MAX]) {
    for (int i = 0; i < TEMP_NAMES_MAX; i++) {
        int n = snprintf(temporary, PATH_MAX, "%s.%ld-%d.tmp", path, (long)getpid(), i);
        if (n >= PATH_MAX) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

static bool write_through_temporary(const char *path, const void *data, size_t bytes) {
    char temporary[PATH_MAX];
    int fd = open_temporary(path, temporary);
    if (fd < 0) return false;
    bool ok = file_put(fd, data, bytes) && fsync(fd) == 0;
    ok = close_keeping_errno(fd) && ok && rename(temporary, path) == 0;
    if (ok) {
        sync_directory_of(path);
    } else {
        int saved = errno;
        unlink(temporary);
        errno = saved;
    }
    return ok;
}

/* A device or pipe (-o /dev/null) must not be replaced by a file of its name. */
static bool write_in_place(const char *path, const void *data, size_t bytes) {
    int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);   /* a pipe without a reader fails, it does not wait */
    if (fd < 0) return false;
    bool ok = file_put(fd, data, bytes);
    return close_keeping_errno(fd) && ok;
}

bool file_write(const char *path, const void *data, size_t bytes) {
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        if (!S_ISDIR(st.st_mode)) return write_in_place(path, data, bytes);
        errno = EISDIR;
        return false;
    }
    return write_through_temporary(path, data, bytes);
}

/* ---- where our own files are ---- */

static bool has_directory(const char *in, const char *name) {
    char path[PATH_MAX];
    struct stat st;
    int n = snprintf(path, sizeof path, "%s/%s", in, name);
    return n < PATH_MAX && stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool is_home(const char *directory) {
    return has_directory(directory, "templates") && has_directory(directory, "specs");
}

static char home_found[PATH_MAX];

/* out/jllmc in a checkout finds the checkout, /usr/bin/jllmc finds /usr/share/jllm. */
static void home_search(void) {
    char at[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", at, sizeof at - 1);
    if (n <= 0) return;
    at[n] = 0;
    for (char *slash; (slash = strrchr(at, '/')); ) {
        *slash = 0;
        char shared[PATH_MAX];
        int m = snprintf(shared, sizeof shared, "%s/share/jllm", at);
        const char *hit = is_home(at) ? at : m < PATH_MAX && is_home(shared) ? shared : NULL;
        if (hit) {
            memcpy(home_found, hit, strlen(hit) + 1);
            return;
        }
    }
}

const char *base_home(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const char *given = getenv("JLLM_HOME");
    if (given && *given) {
        if (is_home(given)) return given;
        base_fail("JLLM_HOME is '%s', which has no folders templates and specs", given);
    }
    pthread_once(&once, home_search);
    if (!*home_found)
        base_fail("cannot find the folders templates and specs near this program; set JLLM_HOME to "
                  "where they are");
    return home_found;
}

/* ---- cores and threads ---- */

/* First line of a small file of the kernel's; "" when there is none. */
static void read_line(const char *path, char out[256]) {
    out[0] = 0;
    FILE *f = fopen(path, "re");
    if (!f) return;
    if (!fgets(out, 256, f)) out[0] = 0;
    fclose(f);
}

/* Cores that a quota of us per period is worth, rounded up; INT_MAX: no quota. */
static int quota_cores(long long quota, long long period) {
    if (quota <= 0 || period <= 0) return INT_MAX;
    long long n = quota / period + (quota % period != 0);
    return n < INT_MAX ? (int)n : INT_MAX;
}

static int quota_v2(const char *directory) {
    char path[PATH_MAX], text[256];
    long long quota, period;
    if (snprintf(path, sizeof path, "%s/cpu.max", directory) >= PATH_MAX) return INT_MAX;
    read_line(path, text);
    return sscanf(text, "%lld %lld", &quota, &period) == 2 ? quota_cores(quota, period) : INT_MAX;
}

static int quota_v1(const char *directory) {
    char path[PATH_MAX], text[256];
    if (snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", directory) >= PATH_MAX) return INT_MAX;
    read_line(path, text);
    long long quota = atoll(text);
    if (snprintf(path, sizeof path, "%s/cpu.cfs_period_us", directory) >= PATH_MAX) return INT_MAX;
    read_line(path, text);
    return quota_cores(quota, atoll(text));
}

/* The tightest quota of a group and those around it, up to the mount itself. */
static int quota_upwards(const char *mount, const char *group, int (*quota)(const char *)) {
    char at[PATH_MAX];
    if (snprintf(at, sizeof at, "%s%s", mount, group) >= PATH_MAX) return INT_MAX;
    int least = INT_MAX;
    for (size_t root = strlen(mount);;) {
        int n = quota(at);
        if (n < least) least = n;
        char *slash = strrchr(at, '/');
        if (!slash || (size_t)(slash - at) < root) return least;
        *slash = 0;
    }
}

static bool has_word(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *p = list; (p = strstr(p, word)); p += n)
        if ((p == list || p[-1] == ',') && (p[n] == 0 || p[n] == ',')) return true;
    return false;
}

/* /proc/self/cgroup: "0::/group" for version 2, "4:cpu,cpuacct:/group" for version 1. */
static int cgroup_cores(void) {
    char line[PATH_MAX];
    int least = INT_MAX;
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f) return least;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;
        if (!group) continue;
        *names++ = 0;
        *group++ = 0;
        int n = INT_MAX;
        if (!*names) n = quota_upwards("/sys/fs/cgroup", group, quota_v2);
        else if (has_word(names, "cpu")) n = quota_upwards("/sys/fs/cgroup/cpu", group, quota_v1);
        if (n < least) least = n;
    }
    fclose(f);
    return least;
}

static int affinity_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);   /* more cores than a cpu_set_t holds */
    return n < CORES_MAX ? (int)n : CORES_MAX;
}

static int cores_set;

int base_cores(void) {
    if (cores_set) return cores_set;
    int n = affinity_cores(), quota = cgroup_cores();
    if (quota < n) n = quota;
    return n < 1 ? 1 : n > CORES_MAX ? CORES_MAX : n;
}

void base_set_cores(int n) {
    cores_set = n < 0 ? 0 : n > CORES_MAX ? CORES_MAX : n;
}

struct parallel {
    atomic_size_t next;
    size_t n;
    void (*fn)(void *user, size_t i);
    void *user;
};

static void *parallel_work(void *p) {
    struct parallel *work = p;
    for (size_t i; (i = atomic_fetch_add(&work->next, 1)) < work->n; ) work->fn(work->user, i);
    return NULL;
}

/* The caller works too; a thread that cannot be had is not missed. */
void base_parallel(size_t n, void (*fn)(void *user, size_t i), void *user) {
    struct parallel work = { .n = n, .fn = fn, .user = user };
    pthread_t threads[CORES_MAX];
    size_t wanted = (size_t)base_cores(), started = 0;
    if (wanted > n) wanted = n;
    while (started + 1 < wanted &&
           pthread_create(&threads[started], NULL, parallel_work, &work) == 0) started++;
    parallel_work(&work);
    while (started) pthread_join(threads[--started], NULL);
}

double base_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- starting ---- */

volatile int base_interrupted;

static void on_stop(int signal_number) { base_interrupted = signal_number; }

static void on_bus_error(int signal_number) {
    static const char text[] = "\nerror: a file became shorter while it was being read\n";
    (void)signal_number;
    (void)!write(2, text, sizeof text - 1);
    _exit(1);
}

void base_start(void) {
    struct sigaction stop = { .sa_handler = on_stop, .sa_flags = SA_RESTART | (int)SA_RESETHAND }, bus = { .sa_handler = on_bus_error };
    while (true) {   /* a descriptor of 3 or more says that 0, 1 and 2 are taken */
        int fd = open("/dev/null", O_RDWR);
        if (fd < 0 || fd > 2) {
            if (fd > 2) close(fd);
            break;
        }
    }
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGHUP, &stop, NULL);
    sigaction(SIGBUS, &bus, NULL);
    signal(SIGXFSZ, SIG_IGN);   /* the write fails with EFBIG, which has a sentence */
}
