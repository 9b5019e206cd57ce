/* What this machine gives to a process: instruction set, cores, memory. Read when a plan or a
 * session is opened, never later. Cgroups of version 1 and 2 are followed from the process's own
 * up to the root; a limit that cannot be read counts as none.
 */
#include "device.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>

enum plan_isa machine_isa(void) {
    return PLAN_ISA_X86_64;
}

/* A feature counts when CPUID has its bit and XCR0 says that the kernel saves its registers. */
uint64_t machine_features(void) {
    enum { LEAF_1, LEAF_7, LEAF_7_1, EAX = 0, EBX, ECX, EDX, YMM = 0x06, ZMM = 0xe6 };
    static const struct { uint8_t feature, leaf, reg, bit; uint32_t xcr0; } table[] = {
        {0, LEAF_1, ECX, 28, YMM},  {1, LEAF_7, EBX, 5, YMM},   {2, LEAF_1, ECX, 12, YMM},
        {3, LEAF_1, ECX, 29, YMM},  {4, LEAF_7, EBX, 8, 0},     {5, LEAF_7, EBX, 16, ZMM},
        {6, LEAF_7, EBX, 30, ZMM},  {7, LEAF_7, EBX, 31, ZMM},  {8, LEAF_7, EBX, 17, ZMM},
        {9, LEAF_7, ECX, 11, ZMM},  {10, LEAF_7_1, EAX, 5, ZMM},
    };
    uint32_t r[3][4] = {{0}}, xcr0 = 0, high;
    __get_cpuid(1, &r[0][0], &r[0][1], &r[0][2], &r[0][3]);
    __get_cpuid_count(7, 0, &r[1][0], &r[1][1], &r[1][2], &r[1][3]);
    if (r[1][0] >= 1) __get_cpuid_count(7, 1, &r[2][0], &r[2][1], &r[2][2], &r[2][3]);
    if (r[0][2] >> 27 & 1) __asm__("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
    uint64_t features = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (r[table[i].leaf][table[i].reg] >> table[i].bit & 1 &&
            (xcr0 & table[i].xcr0) == table[i].xcr0)
            features |= (uint64_t)1 << table[i].feature;
    return features;
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

enum plan_isa machine_isa(void) {
    return PLAN_ISA_AARCH64;
}

/* The kernel says what it and the CPU give. Bits of asm/hwcap.h by number, since older headers lack names of HWCAP2. */
uint64_t machine_features(void) {
    static const struct { uint8_t feature, word, bit; } table[] = {
        {32, 0, 1}, {33, 0, 10}, {34, 0, 20}, {35, 1, 13}, {36, 0, 22},
    };
    const uint64_t words[2] = {getauxval(AT_HWCAP), getauxval(AT_HWCAP2)};
    uint64_t features = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        features |= (words[table[i].word] >> table[i].bit & 1) << table[i].feature;
    return features;
}
#else
#error "no plans exist for this instruction set"
#endif

/* Up to two numbers that follow `key` at the start of a line of dir/file; how many were found. */
static int read_numbers(const char *dir, const char *file, const char *key, uint64_t out[2]) {
    char path[4400], line[256];
    int n = 0;
    snprintf(path, sizeof path, "%s/%s", dir, file);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    while (n <= 0 && fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key)))
            n = sscanf(line + strlen(key), "%" SCNu64 " %" SCNu64, &out[0], &out[1]);
    fclose(f);
    return n < 0 ? 0 : n;
}

static bool list_has(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *p = list; (p = strstr(p, word)); p += n)
        if ((p == list || p[-1] == ',') && (p[n] == 0 || p[n] == ',')) return true;
    return false;
}

/* Visit this process's cgroups, innermost first. A line of /proc/self/cgroup is
 * "id:controllers:path", without controllers in version 2. */
static void cgroup_walk(const char *controller, void (*visit)(const char *dir, uint64_t *least),
                        uint64_t *least) {
    char line[4096], dir[4200];
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && fgets(line, sizeof line, f)) {
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        if (!path) continue;
        *list++ = 0, *path++ = 0;
        path[strcspn(path, "\n")] = 0;
        if (*list && !list_has(list, controller)) continue;
        for (char *end = path + strlen(path); end; end = strrchr(path, '/')) {
            *end = 0;
            snprintf(dir, sizeof dir, "/sys/fs/cgroup/%s%s", *list ? controller : "", path);
            visit(dir, least);
        }
    }
    if (f) fclose(f);
}

static void least_cores(const char *dir, uint64_t *least) {
    uint64_t n[2], period[2];
    if (read_numbers(dir, "cpu.max", "", n) < 2) {
        if (!read_numbers(dir, "cpu.cfs_quota_us", "", n) ||
            !read_numbers(dir, "cpu.cfs_period_us", "", period))
            return;
        n[1] = period[0];
    }
    if (n[0] > INT64_MAX || !n[0] || !n[1]) return;   /* -1: no quota */
    uint64_t cores = (n[0] + n[1] - 1) / n[1];
    if (cores < *least) *least = cores;
}

uint32_t machine_cores(void) {
    cpu_set_t set;
    uint64_t cores = 1;
    if (!sched_getaffinity(0, sizeof set, &set)) cores = (uint64_t)CPU_COUNT(&set);
    else if (sysconf(_SC_NPROCESSORS_ONLN) > 1) cores = (uint64_t)sysconf(_SC_NPROCESSORS_ONLN);
    cgroup_walk("cpu", least_cores, &cores);
    return (uint32_t)cores;
}

/* A group's page cache is given back under pressure, so only anonymous memory counts as used. */
static void least_memory(const char *dir, uint64_t *least) {
    uint64_t limit[2], used[2];
    if (!read_numbers(dir, "memory.max", "", limit) &&
        !read_numbers(dir, "memory.limit_in_bytes", "", limit))
        return;
    if (!read_numbers(dir, "memory.stat", "anon ", used) &&
        !read_numbers(dir, "memory.stat", "total_rss ", used))
        return;
    uint64_t left = limit[0] > used[0] ? limit[0] - used[0] : 0;
    if (left < *least) *least = left;
}

uint64_t machine_memory_available(void) {
    uint64_t kib[2], least = UINT64_MAX;
    if (read_numbers("/proc", "meminfo", "MemAvailable:", kib)) least = kib[0] * 1024;
    cgroup_walk("memory", least_memory, &least);
    return least;
}
