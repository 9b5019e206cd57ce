/* The CUDA device: the driver found at run time, weights and kernels in device memory, phases
 * replayed as graphs.
 *
 * libcuda is loaded by dlopen ($JLLM_LIBCUDA, else libcuda.so.1 where the loader finds it) through
 * one list of symbols with declarations of our own: this builds and runs on machines without CUDA.
 * What a plan needs (architecture, driver, memory) is checked before it is taken. No allocation
 * exceeds 256 MiB: what is larger is one range of addresses over chunks of that size, where the
 * driver can do that. Where GPU and CPU share their memory, weights are read past the page cache,
 * so that they are never in memory twice.
 *
 * Every error of the driver but a lack of memory is sticky: the first one's sentence is what every
 * later call on the plan answers. Work goes through one stream, and each call but cuda_start waits
 * for what it started. Choices of the device arrive in a ring in the host's memory, where they are
 * looked for; the driver is asked beside that whether it is still alive. Device 0 is used;
 * CUDA_VISIBLE_DEVICES chooses which one that is. Nothing is allocated after cuda_open and
 * cuda_context_new.
 */
#include "device.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- the driver ---- */

typedef int cu_result;
typedef int cu_device;
typedef uint64_t cu_address;
typedef unsigned long long cu_memory, cu_flags;
typedef struct cu_context_s *cu_context;
typedef struct cu_module_s *cu_module;
typedef struct cu_function_s *cu_function;
typedef struct cu_stream_s *cu_stream;
typedef struct cu_event_s *cu_event;
typedef struct cu_graph_s *cu_graph;
typedef struct cu_replay_s *cu_replay;
struct cu_location { int type, id; };
struct cu_kind { int type, handles; struct cu_location location; void *windows; char flags[8]; };
/* A launch attribute: 6 is programmatic stream serialization. */
struct cu_launch_attribute { int id, pad, value; char rest[60]; };
struct cu_launch {
    unsigned grid[3], block[3], shared_bytes;
    cu_stream stream;
    struct cu_launch_attribute *attributes;
    unsigned n_attributes;
};
struct cu_access { struct cu_location location; int flags; };

enum { CU_OUT_OF_MEMORY = 2, CU_NOT_READY = 600 };
enum cu_attribute {             /* of a device */
    CU_UNITS = 16, CU_INTEGRATED = 18, CU_MEMORY_KHZ = 36, CU_BUS_BITS = 37, CU_MAJOR = 75, CU_MINOR = 76,
    CU_SHARED_OPTIN = 97, CU_MAPPING = 102
};
enum { CU_FUNC_THREADS = 0, CU_FUNC_SHARED = 1, CU_FUNC_DYNAMIC = 8 };   /* of a function */
enum { CU_PINNED = 1, CU_DEVICE = 1, CU_READ_WRITE = 3, CU_NON_BLOCKING = 1, CU_NO_TIMING = 2,
       CU_THIS_THREAD = 1, CU_HOST_MAPPED = 2 };

#define CUDA_SYMBOLS(X)                                                                         \
    X(cuInit, unsigned)                                                                         \
    X(cuGetErrorName, cu_result, const char **)                                                 \
    X(cuDriverGetVersion, int *)                                                                \
    X(cuDeviceGetCount, int *)                                                                  \
    X(cuDeviceGet, cu_device *, int)                                                            \
    X(cuDeviceGetName, char *, int, cu_device)                                                  \
    X(cuDeviceGetAttribute, int *, int, cu_device)                                              \
    X(cuDeviceTotalMem_v2, size_t *, cu_device)                                                 \
    X(cuCtxCreate_v2, cu_context *, unsigned, cu_device)                                        \
    X(cuCtxDestroy_v2, cu_context)                                                              \
    X(cuCtxPushCurrent_v2, cu_context)                                                          \
    X(cuCtxPopCurrent_v2, cu_context *)                                                         \
    X(cuMemGetInfo_v2, size_t *, size_t *)                                                      \
    X(cuMemAlloc_v2, cu_address *, size_t)                                                      \
    X(cuMemFree_v2, cu_address)                                                                 \
    X(cuMemHostAlloc, void **, size_t, unsigned)                                                \
    X(cuMemFreeHost, void *)                                                                    \
    X(cuMemHostGetDevicePointer_v2, cu_address *, void *, unsigned)                             \
    X(cuMemGetAllocationGranularity, size_t *, const struct cu_kind *, int)                     \
    X(cuMemAddressReserve, cu_address *, size_t, size_t, cu_address, cu_flags)                  \
    X(cuMemAddressFree, cu_address, size_t)                                                     \
    X(cuMemCreate, cu_memory *, size_t, const struct cu_kind *, cu_flags)                       \
    X(cuMemRelease, cu_memory)                                                                  \
    X(cuMemMap, cu_address, size_t, size_t, cu_memory, cu_flags)                                \
    X(cuMemUnmap, cu_address, size_t)                                                           \
    X(cuMemSetAccess, cu_address, size_t, const struct cu_access *, size_t)                     \
    X(cuMemcpyHtoDAsync_v2, cu_address, const void *, size_t, cu_stream)                        \
    X(cuMemcpyDtoHAsync_v2, void *, cu_address, size_t, cu_stream)                              \
    X(cuMemsetD8Async, cu_address, unsigned char, size_t, cu_stream)                            \
    X(cuModuleLoadData, cu_module *, const void *)                                              \
    X(cuModuleUnload, cu_module)                                                                \
    X(cuModuleGetFunction, cu_function *, cu_module, const char *)                              \
    X(cuFuncGetAttribute, int *, int, cu_function)                                              \
    X(cuFuncSetAttribute, cu_function, int, int)                                                \
    X(cuLaunchKernelEx, const struct cu_launch *, cu_function, void **, void **)                \
    X(cuStreamCreate, cu_stream *, unsigned)                                                    \
    X(cuStreamDestroy_v2, cu_stream)                                                            \
    X(cuStreamSynchronize, cu_stream)                                                           \
    X(cuStreamQuery, cu_stream)                                                                 \
    X(cuStreamBeginCapture_v2, cu_stream, int)                                                  \
    X(cuStreamEndCapture, cu_stream, cu_graph *)                                                \
    X(cuEventCreate, cu_event *, unsigned)                                                      \
    X(cuEventDestroy_v2, cu_event)                                                              \
    X(cuEventRecord, cu_event, cu_stream)                                                       \
    X(cuEventSynchronize, cu_event)                                                             \
    X(cuEventElapsedTime, float *, cu_event, cu_event)                                          \
    X(cuGraphInstantiateWithFlags, cu_replay *, cu_graph, cu_flags)                             \
    X(cuGraphUpload, cu_replay, cu_stream)                                                      \
    X(cuGraphLaunch, cu_replay, cu_stream)                                                      \
    X(cuGraphDestroy, cu_graph)                                                                 \
    X(cuGraphExecDestroy, cu_replay)

struct cuda_driver {
#define X(symbol, ...) cu_result (*symbol)(__VA_ARGS__);
    CUDA_SYMBOLS(X)
#undef X
};

enum {
    CHUNK_BYTES = 256 << 20,        /* most of one allocation: larger ones fail on Jetson */
    STAGE_BYTES = 8 << 20,          /* of each of the two buffers that weights come through */
    SHARED_BYTES = 48 << 10,        /* shared memory of a block that need not be asked for */
};

/* Device memory: one allocation, or chunks side by side in one range of addresses. */
struct region {
    cu_address at;
    uint64_t bytes;
    uint64_t mapped;                /* bytes of it that have chunks; 0: one allocation */
    bool is_range;
};

struct cuda_state {
    const struct plan_view *view;
    void *library;
    struct cuda_driver cu;
    cu_device device;
    cu_context context;
    cu_stream stream;
    char name[96];
    int arch, shared_max, n_units;
    bool integrated, can_map;
    bool graphs;                    /* phases are replayed as graphs, else launch by launch */
    bool single;                    /* and each launch is waited for */
    bool overlap;                   /* a launch may begin before the one before it has ended */
    bool opened;
    double peak_gbps;
    const char *doing, *what;       /* for the sentence of an error */
    struct jllm_error failed;       /* the first; JLLM_OK: none */
    cu_module *modules;             /* [n_kernels], as functions */
    cu_function *functions;
    struct region *weights;         /* [n_pieces], of which n_weights are in use */
    uint32_t n_weights;
    cu_address *pieces;             /* [n_pieces]: where each stands */
};

struct cuda_context {
    struct cuda_state *state;
    struct region arena, cache, step;
    float *logits;                  /* pinned: [n_vocab] */
    struct plan_step *step_host;    /* pinned */
    uint64_t *ring;                 /* pinned, at ring_at on the device: [PLAN_RING_ENTRIES] */
    cu_address ring_at;
    uint32_t serial;                /* of the first choice that nothing started can make */
    uint32_t taken;                 /* of the next choice to be taken */
    cu_replay *replays;             /* [n_phases]; all NULL where phases are replayed by launches */
    cu_address args[];              /* of all launches, as in the plan's table */
};

typedef unsigned long long ull;

/* What the driver answered. A lack of memory may pass, everything else stays. */
static bool cuda_ok(struct cuda_state *s, cu_result r, const char *call, struct jllm_error *e) {
    const char *name = NULL;
    struct jllm_error failed;
    if (!r) return true;
    if (s->cu.cuGetErrorName(r, &name) || !name) name = "an unknown error";
    error_set(&failed, JLLM_ENVIRONMENT, "the GPU failed while %s%s: %s says %s (%d)%s", s->doing,
              s->what, call, name, r, s->opened ? ": nothing more can run until the plan is opened "
              "again" : "");
    if (r != CU_OUT_OF_MEMORY) s->failed = failed;
    return error_set(e, failed.code, "%s", failed.text);
}
#define CALL(symbol, ...) cuda_ok(s, s->cu.symbol(__VA_ARGS__), #symbol, e)

static void now_doing(struct cuda_state *s, const char *doing, const char *what) {
    s->doing = doing, s->what = what;
}

/* Between these two, the driver's calls go to the plan's context, whatever the thread had before. */
static bool cuda_enter(struct cuda_state *s, struct jllm_error *e) {
    if (s->failed.code) return error_set(e, s->failed.code, "%s", s->failed.text);
    return CALL(cuCtxPushCurrent_v2, s->context);
}

static bool cuda_leave(struct cuda_state *s, bool ok) {
    cu_context ours;
    s->cu.cuCtxPopCurrent_v2(&ours);
    return ok;
}

static bool load_driver(struct cuda_state *s, struct jllm_error *e) {
    const char *path = secure_getenv("JLLM_LIBCUDA"), *missing = NULL;
    if (!path || !*path) path = "libcuda.so.1";
    s->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!s->library)
        return error_set(e, JLLM_ENVIRONMENT, "the plan is for CUDA, and the driver's library "
                         "cannot be loaded: %s: install the NVIDIA driver or compile the plan for "
                         "a CPU", dlerror());
#define X(symbol, ...)                                                                          \
    *(void **)&s->cu.symbol = dlsym(s->library, #symbol);                                       \
    if (!s->cu.symbol && !missing) missing = #symbol;
    CUDA_SYMBOLS(X)
#undef X
    return !missing || error_set(e, JLLM_ENVIRONMENT, "%s has no %s: the NVIDIA driver is older "
                                 "than CUDA 11.4, update it", path, missing);
}

/* ---- does the plan fit this device ---- */

static bool find_device(struct cuda_state *s, struct jllm_error *e) {
    int n = 0, major = 0, minor = 0, integrated = 0, mapping = 0, khz = 0, bits = 0;
    const char *name = NULL;
    cu_result r = s->cu.cuInit(0);
    if (!r) r = s->cu.cuDeviceGetCount(&n);
    if (r || n < 1) {
        if (r) s->cu.cuGetErrorName(r, &name);
        return error_set(e, JLLM_ENVIRONMENT, "the plan is for CUDA, and there is no device that "
                         "can be used (%s): is the driver loaded and CUDA_VISIBLE_DEVICES right?",
                         name ? name : r ? "cuInit failed" : "the driver knows none");
    }
#define ATTRIBUTE(to, which) CALL(cuDeviceGetAttribute, to, which, s->device)
    if (!CALL(cuDeviceGet, &s->device, 0) ||
        !CALL(cuDeviceGetName, s->name, sizeof s->name, s->device) ||
        !ATTRIBUTE(&major, CU_MAJOR) || !ATTRIBUTE(&minor, CU_MINOR) ||
        !ATTRIBUTE(&integrated, CU_INTEGRATED) || !ATTRIBUTE(&mapping, CU_MAPPING) ||
        !ATTRIBUTE(&s->shared_max, CU_SHARED_OPTIN) || !ATTRIBUTE(&khz, CU_MEMORY_KHZ) ||
        !ATTRIBUTE(&bits, CU_BUS_BITS) || !ATTRIBUTE(&s->n_units, CU_UNITS))
        return false;
    s->arch = 10 * major + minor;
    s->overlap = major >= 9 && !s->single;
    s->integrated = integrated, s->can_map = mapping;
    s->peak_gbps = 2e-6 * khz * bits / 8;   /* two transfers a clock */
    return true;
}

/* Code for X.y runs on X.z with z >= y, but on Tegra (8.7, 10.1, 11.0) only what was made for it,
 * and that nowhere else (CUDA C++ Programming Guide, binary compatibility). */
static bool arch_runs(int plan, int device) {
    bool tegra = plan == 87 || device == 87 || plan == 101 || device == 101 || plan == 110 ||
                 device == 110;
    return plan == device || (!tegra && plan / 10 == device / 10 && plan < device);
}

static bool check_device(struct cuda_state *s, struct jllm_error *e) {
    const struct plan_info *info = s->view->info;
    int driver = 0, needed = (int)info->driver_min;
    if (!arch_runs((int)info->sm_arch, s->arch))
        return error_set(e, JLLM_ENVIRONMENT, "the plan is for sm_%u and this device (%s) is "
                         "sm_%d: compile it for this target: jllmc compile MODEL.gguf --set "
                         "target.arch=sm_%d", info->sm_arch, s->name, s->arch, s->arch);
    if (!CALL(cuDriverGetVersion, &driver)) return false;
    if (driver < needed)
        return error_set(e, JLLM_ENVIRONMENT, "the plan needs a driver for CUDA %d.%d and this one "
                         "is for CUDA %d.%d: update the driver, or compile with --set "
                         "target.cuda=%d.%d", needed / 1000, needed % 1000 / 10, driver / 1000,
                         driver % 1000 / 10, driver / 1000, driver % 1000 / 10);
    return true;
}

/* ---- memory ---- */

static bool memory_available(struct cuda_state *s, uint64_t *bytes, struct jllm_error *e) {
    size_t left = 0, total = 0;
    if (!s->integrated && !CALL(cuMemGetInfo_v2, &left, &total)) return false;
    *bytes = s->integrated ? machine_memory_available() : left;
    return true;
}

/* The plan's whole table, a session of it and its reserve included. */
static bool check_memory(struct cuda_state *s, uint64_t available, const char *where,
                         struct jllm_error *e) {
    const struct plan_view *v = s->view;
    char table[300] = "";
    uint64_t need = 0;
    size_t n = 0;
    for (uint32_t i = 0; i < v->n_memory; i++) {
        need = need + v->memory[i].bytes < need ? UINT64_MAX : need + v->memory[i].bytes;
        if (n < sizeof table)
            n += (size_t)snprintf(table + n, sizeof table - n, "%s%s %llu", i ? ", " : "",
                                  v->strings + v->memory[i].name, (ull)v->memory[i].bytes >> 20);
    }
    return need <= available ||
           error_set(e, JLLM_ENVIRONMENT, "the plan needs %llu MiB (%s), %llu MiB are %s (%s): "
                     "free some or compile it for a shorter context", (ull)need >> 20, table,
                     (ull)available >> 20, where, s->name);
}

static void region_free(struct cuda_state *s, struct region *r) {
    if (!r->at) return;
    for (uint64_t done = 0; done < r->mapped; done += CHUNK_BYTES) {
        uint64_t left = r->mapped - done;
        s->cu.cuMemUnmap(r->at + done, left < CHUNK_BYTES ? left : CHUNK_BYTES);
    }
    if (r->is_range) s->cu.cuMemAddressFree(r->at, r->bytes);
    else s->cu.cuMemFree_v2(r->at);
    *r = (struct region){0};
}

/* A chunk lives as long as it is mapped; its handle is needed no longer than that takes. */
static bool chunk_add(struct cuda_state *s, struct region *r, const struct cu_kind *kind,
                      struct jllm_error *e) {
    const struct cu_access access = {kind->location, CU_READ_WRITE};
    uint64_t left = r->bytes - r->mapped, bytes = left < CHUNK_BYTES ? left : CHUNK_BYTES;
    cu_address at = r->at + r->mapped;
    cu_memory chunk;
    if (!CALL(cuMemCreate, &chunk, bytes, kind, 0)) return false;
    bool mapped = CALL(cuMemMap, at, bytes, 0, chunk, 0);
    if (mapped) r->mapped += bytes;
    return CALL(cuMemRelease, chunk) && mapped && CALL(cuMemSetAccess, at, bytes, &access, 1);
}

/* Whatever has been taken when it fails is in *r, for region_free. */
static bool region_take(struct cuda_state *s, struct region *r, uint64_t bytes,
                        struct jllm_error *e) {
    const struct cu_kind kind = {.type = CU_PINNED, .location = {CU_DEVICE, s->device}};
    size_t grain = 0;
    if (bytes <= CHUNK_BYTES || !s->can_map)
        return CALL(cuMemAlloc_v2, &r->at, bytes ? bytes : 1);
    if (!CALL(cuMemGetAllocationGranularity, &grain, &kind, 0)) return false;
    r->bytes = (bytes + grain - 1) / grain * grain;
    r->is_range = CALL(cuMemAddressReserve, &r->at, r->bytes, 0, 0, 0);
    if (!r->is_range) return false;
    while (r->mapped < r->bytes)
        if (!chunk_add(s, r, &kind, e)) return false;
    return true;
}

/* ---- code ---- */

/* The most dynamic shared memory and the most threads that launches of a kernel ask for. */
static void kernel_wants(const struct plan_view *v, uint32_t kernel, int *shared, int *threads) {
    *shared = *threads = 0;
    for (uint32_t i = 0; i < v->n_launches; i++) {
        const struct plan_launch *l = &v->launches[i];
        if (l->kernel != kernel) continue;
        if (*shared < (int)l->shared_bytes) *shared = (int)l->shared_bytes;
        if (*threads < (int)l->chunk) *threads = (int)l->chunk;
    }
}

static bool load_kernel(struct cuda_state *s, uint32_t i, struct jllm_error *e) {
    const struct plan_view *v = s->view;
    const char *name = v->strings + v->kernels[i].name;
    int shared, threads, fixed, threads_max;
    now_doing(s, "loading ", name);
    if (!CALL(cuModuleLoadData, &s->modules[i], v->code + v->kernels[i].code_offset) ||
        !CALL(cuModuleGetFunction, &s->functions[i], s->modules[i], name) ||
        !CALL(cuFuncGetAttribute, &fixed, CU_FUNC_SHARED, s->functions[i]) ||
        !CALL(cuFuncGetAttribute, &threads_max, CU_FUNC_THREADS, s->functions[i]))
        return false;
    kernel_wants(v, i, &shared, &threads);
    if (shared > s->shared_max - fixed || threads > threads_max)
        return error_set(e, JLLM_ENVIRONMENT, "%s needs %d bytes of shared memory and %d threads a "
                         "block, this device (%s) gives it %d and %d: compile the plan for it",
                         name, shared + fixed, threads, s->name, s->shared_max, threads_max);
    return shared + fixed <= SHARED_BYTES ||
           CALL(cuFuncSetAttribute, s->functions[i], CU_FUNC_DYNAMIC, shared);
}

static bool load_code(struct cuda_state *s, struct jllm_error *e) {
    for (uint32_t i = 0; i < s->view->n_kernels; i++)
        if (!load_kernel(s, i, e)) return false;
    return true;
}

/* ---- weights ---- */

/* Reads a range of the plan into device memory: one buffer fills while the other is copied. */
struct loader {
    int direct_fd;                  /* reads past the page cache; -1: the plan's own does not */
    void *stage[2];
    cu_event copied[2];
    unsigned turn;
};

static bool loader_open(struct cuda_state *s, struct loader *l, struct jllm_error *e) {
    char path[40];
    *l = (struct loader){.direct_fd = -1};
    snprintf(path, sizeof path, "/proc/self/fd/%d", s->view->fd);
    if (s->integrated) l->direct_fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    for (int i = 0; i < 2; i++)
        if (!CALL(cuMemHostAlloc, &l->stage[i], STAGE_BYTES, 0) ||
            !CALL(cuEventCreate, &l->copied[i], CU_NO_TIMING) ||
            !CALL(cuEventRecord, l->copied[i], s->stream))
            return false;
    return true;
}

static void loader_close(struct cuda_state *s, struct loader *l) {
    for (int i = 0; i < 2; i++) {
        if (l->copied[i]) s->cu.cuEventDestroy_v2(l->copied[i]);
        if (l->stage[i]) s->cu.cuMemFreeHost(l->stage[i]);
    }
    if (l->direct_fd >= 0) close(l->direct_fd);
}

/* Where a direct read is refused (by the file system, or for this kind of buffer) the page cache
 * serves, and is asked to forget. */
static bool loader_read(struct cuda_state *s, struct loader *l, uint8_t *to, uint64_t offset,
                        uint64_t bytes, struct jllm_error *e) {
    for (uint64_t done = 0; done < bytes;) {
        int fd = l->direct_fd >= 0 ? l->direct_fd : s->view->fd;
        ssize_t n = pread(fd, to + done, bytes - done, (off_t)(offset + done));
        if (n > 0) done += (uint64_t)n;
        else if (n < 0 && errno == EINTR) continue;
        else if (l->direct_fd >= 0) close(l->direct_fd), l->direct_fd = -1;
        else return error_set(e, JLLM_ENVIRONMENT, "cannot read the plan's weights at %llu: %s",
                              (ull)(offset + done), n ? strerror(errno) : "the file has ended");
    }
    if (s->integrated && l->direct_fd < 0)
        posix_fadvise(s->view->fd, (off_t)offset, (off_t)bytes, POSIX_FADV_DONTNEED);
    return true;
}

static bool loader_fill(struct cuda_state *s, struct loader *l, cu_address to, uint64_t offset,
                        uint64_t bytes, struct jllm_error *e) {
    for (uint64_t done = 0; done < bytes; done += STAGE_BYTES) {
        uint64_t now = bytes - done < STAGE_BYTES ? bytes - done : STAGE_BYTES;
        unsigned i = l->turn++ % 2;
        if (!CALL(cuEventSynchronize, l->copied[i]) ||
            !loader_read(s, l, l->stage[i], offset + done, now, e) ||
            !CALL(cuMemcpyHtoDAsync_v2, to + done, l->stage[i], now, s->stream) ||
            !CALL(cuEventRecord, l->copied[i], s->stream))
            return false;
    }
    return true;
}

/* The pieces that share a region with the first: as many as an allocation holds, or a single one
 * that is larger. */
static uint32_t group_end(const struct plan_view *v, uint32_t first, uint64_t *bytes) {
    uint32_t i = first;
    do {
        uint64_t end = i + 1 < v->n_pieces ? v->pieces[i + 1].offset : v->header->weights_bytes;
        if (i > first && end - v->pieces[first].offset > CHUNK_BYTES) break;
        *bytes = end - v->pieces[first].offset;
    } while (++i < v->n_pieces);
    return i;
}

static bool fill_weights(struct cuda_state *s, struct loader *l, struct jllm_error *e) {
    const struct plan_view *v = s->view;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < v->n_pieces;) {
        const struct plan_piece *first = &v->pieces[i];
        uint32_t end = group_end(v, i, &bytes);
        struct region *r = &s->weights[s->n_weights++];
        if (!region_take(s, r, bytes, e) ||
            !loader_fill(s, l, r->at, v->header->weights_offset + first->offset, bytes, e))
            return false;
        for (; i < end; i++) s->pieces[i] = r->at + (v->pieces[i].offset - first->offset);
    }
    return CALL(cuStreamSynchronize, s->stream);
}

static bool load_weights(struct cuda_state *s, struct jllm_error *e) {
    struct loader l;
    now_doing(s, "loading weights", "");
    bool ok = loader_open(s, &l, e) && fill_weights(s, &l, e);
    if (!ok) s->cu.cuStreamSynchronize(s->stream);   /* copies may still read the buffers */
    loader_close(s, &l);
    return ok;
}

/* ---- the plan ---- */

/* What the context took goes with it, whatever state it is in. */
static void cuda_close(void *state) {
    struct cuda_state *s = state;
    if (s->context && !s->cu.cuCtxPushCurrent_v2(s->context)) {
        for (uint32_t i = 0; i < s->n_weights; i++) region_free(s, &s->weights[i]);
        for (uint32_t i = 0; i < s->view->n_kernels; i++)
            if (s->modules[i]) s->cu.cuModuleUnload(s->modules[i]);
        if (s->stream) s->cu.cuStreamDestroy_v2(s->stream);
        cuda_leave(s, true);
    }
    if (s->context) s->cu.cuCtxDestroy_v2(s->context);
    if (s->library) dlclose(s->library);
    free(s->modules);
    free(s->functions);
    free(s->weights);
    free(s->pieces);
    free(s);
}

/* With the context current: what is taken for the plan itself. */
static bool cuda_fill(struct cuda_state *s, struct jllm_error *e) {
    uint64_t available;
    return memory_available(s, &available, e) && check_memory(s, available, "available", e) &&
           CALL(cuStreamCreate, &s->stream, CU_NON_BLOCKING) && load_code(s, e) &&
           load_weights(s, e);
}

/* A context takes memory too, so what cannot fit at all is refused before there is one. */
static bool cuda_begin(struct cuda_state *s, struct jllm_error *e) {
    size_t total = 0;
    cu_context ours;
    now_doing(s, "starting", "");
    if (!load_driver(s, e) || !find_device(s, e) || !check_device(s, e) ||
        !CALL(cuDeviceTotalMem_v2, &total, s->device) ||
        !check_memory(s, s->integrated ? machine_memory_available() : total,
                      s->integrated ? "available" : "all that the device has", e) ||
        !CALL(cuCtxCreate_v2, &s->context, 0, s->device))
        return false;
    bool ok = cuda_fill(s, e);
    return CALL(cuCtxPopCurrent_v2, &ours) && ok;
}

static void *cuda_open(const struct plan_view *v, const struct jllm_options *options,
                       struct jllm_error *e) {
    struct cuda_state *s = calloc(1, sizeof *s);
    if (s) {
        s->view = v;
        s->single = options && options->single_launches;
        s->graphs = !s->single && !(v->info->features & PLAN_CUDA_LAUNCHES);
        s->modules = calloc(v->n_kernels, sizeof *s->modules);
        s->functions = calloc(v->n_kernels, sizeof *s->functions);
        s->weights = calloc(v->n_pieces + 1, sizeof *s->weights);
        s->pieces = calloc(v->n_pieces + 1, sizeof *s->pieces);
    }
    if (s && s->modules && s->functions && s->weights && s->pieces) {
        s->opened = cuda_begin(s, e);
        if (s->opened) return s;
    } else {
        error_set(e, JLLM_ENVIRONMENT, "no memory to open the plan");
    }
    if (s) cuda_close(s);
    return NULL;
}

static void cuda_describe(const void *state, struct jllm_info *info) {
    const struct cuda_state *s = state;
    info->device_name = s->name;
    info->n_threads = 1;
    info->peak_gbps = s->peak_gbps;
    info->n_units = (uint32_t)s->n_units;
}

/* ---- a session ---- */

static bool launch(struct cuda_context *c, uint32_t i, struct jllm_error *e) {
    struct cuda_state *s = c->state;
    const struct plan_launch *l = &s->view->launches[i];
    void *params[PLAN_ARGS_MAX + 1];
    for (uint32_t j = 0; j < l->n_args; j++) params[j] = &c->args[l->first_arg + j];
    params[l->n_args] = &c->step.at;
    /* From sm_90 a kernel may begin while the one before ends: each waits for it (griddepcontrol) before it touches what
     * launches share, and loads weights until then. */
    struct cu_launch_attribute early = {.id = 6, .value = 1};
    struct cu_launch how = {{l->items, l->grid_y, l->grid_z}, {l->chunk, 1, 1}, l->shared_bytes, s->stream,
                            &early, s->overlap ? 1 : 0};
    now_doing(s, "running ", s->view->strings + s->view->kernels[l->kernel].name);
    return CALL(cuLaunchKernelEx, &how, s->functions[l->kernel], params, NULL) &&
           (!s->single || CALL(cuStreamSynchronize, s->stream));
}

/* Launches of a list, or n from `first` on. */
static bool launch_some(struct cuda_context *c, const uint32_t *list, uint32_t first, uint32_t n,
                        struct jllm_error *e) {
    for (uint32_t i = 0; i < n; i++)
        if (!launch(c, list ? list[i] : first + i, e)) return false;
    return true;
}

/* Addresses are constants, so launches are captured once and replayed as they are. */
static bool capture(struct cuda_context *c, const uint32_t *list, uint32_t first, uint32_t n,
                    cu_replay *replay, struct jllm_error *e) {
    struct cuda_state *s = c->state;
    cu_graph graph = NULL;
    if (!CALL(cuStreamBeginCapture_v2, s->stream, CU_THIS_THREAD)) return false;
    bool ok = launch_some(c, list, first, n, e);
    now_doing(s, "making graphs", "");
    if (ok) ok = CALL(cuStreamEndCapture, s->stream, &graph);
    else s->cu.cuStreamEndCapture(s->stream, &graph);
    ok = ok && CALL(cuGraphInstantiateWithFlags, replay, graph, 0) &&
         CALL(cuGraphUpload, *replay, s->stream);
    if (graph) s->cu.cuGraphDestroy(graph);
    return ok;
}

static bool capture_phases(struct cuda_context *c, struct jllm_error *e) {
    const struct plan_view *v = c->state->view;
    for (uint32_t i = 0; c->state->graphs && i < v->n_phases; i++)
        if (!capture(c, NULL, v->phases[i].first_launch, v->phases[i].n_launches, &c->replays[i], e)) return false;
    return true;
}

static void bind_args(struct cuda_context *c) {
    const struct plan_view *v = c->state->view;
    for (uint32_t i = 0; i < v->n_args; i++) {
        const struct plan_arg *a = &v->args[i];
        c->args[i] = a->offset + (a->space == PLAN_SPACE_ARENA   ? c->arena.at
                                  : a->space == PLAN_SPACE_CACHE ? c->cache.at
                                  : a->space == PLAN_SPACE_STEP  ? c->step.at
                                                                 : c->state->pieces[a->piece]);
    }
}

static bool ring_take(struct cuda_context *c, struct jllm_error *e) {
    struct cuda_state *s = c->state;
    size_t bytes = PLAN_RING_ENTRIES * sizeof *c->ring;
    if (!CALL(cuMemHostAlloc, (void **)&c->ring, bytes, CU_HOST_MAPPED) ||
        !CALL(cuMemHostGetDevicePointer_v2, &c->ring_at, c->ring, 0))
        return false;
    memset(c->ring, 0, bytes);
    c->serial = c->taken = 1;
    return true;
}

/* Arena and cache begin as zeros, as they do on a CPU. */
static bool context_take(struct cuda_context *c, struct jllm_error *e) {
    struct cuda_state *s = c->state;
    const struct plan_info *info = s->view->info;
    uint64_t available;
    now_doing(s, "making a session", "");
    return memory_available(s, &available, e) && plan_session_fits(s->view, available, e) &&
           region_take(s, &c->arena, info->arena_bytes, e) &&
           region_take(s, &c->cache, info->cache_bytes, e) &&
           region_take(s, &c->step, sizeof *c->step_host, e) &&
           CALL(cuMemHostAlloc, (void **)&c->logits, info->n_vocab * sizeof *c->logits, 0) &&
           CALL(cuMemHostAlloc, (void **)&c->step_host, sizeof *c->step_host, 0) &&
           ring_take(c, e) &&
           CALL(cuMemsetD8Async, c->arena.at, 0, info->arena_bytes, s->stream) &&
           CALL(cuMemsetD8Async, c->step.at, 0, sizeof *c->step_host, s->stream) &&
           (!info->cache_bytes ||
            CALL(cuMemsetD8Async, c->cache.at, 0, info->cache_bytes, s->stream));
}

static void cuda_context_free(void *context) {
    struct cuda_context *c = context;
    struct cuda_state *s = c->state;
    if (!s->cu.cuCtxPushCurrent_v2(s->context)) {
        s->cu.cuStreamSynchronize(s->stream);
        for (uint32_t i = 0; i < s->view->n_phases; i++)
            if (c->replays[i]) s->cu.cuGraphExecDestroy(c->replays[i]);
        region_free(s, &c->arena);
        region_free(s, &c->cache);
        region_free(s, &c->step);
        if (c->logits) s->cu.cuMemFreeHost(c->logits);
        if (c->step_host) s->cu.cuMemFreeHost(c->step_host);
        if (c->ring) s->cu.cuMemFreeHost(c->ring);
        cuda_leave(s, true);
    }
    free(c->replays);
    free(c);
}

static void *cuda_context_new(void *state, struct jllm_error *e) {
    struct cuda_state *s = state;
    struct cuda_context *c = calloc(1, sizeof *c + s->view->n_args * sizeof c->args[0]);
    cu_replay *replays = calloc(s->view->n_phases, sizeof *replays);
    bool entered = false, ok = false;
    if (!c || !replays) {
        error_set(e, JLLM_ENVIRONMENT, "no memory for a session");
        free(c);
        free(replays);
        return NULL;
    }
    c->state = s, c->replays = replays;
    if ((entered = cuda_enter(s, e)) && context_take(c, e)) {
        bind_args(c);
        ok = capture_phases(c, e) && CALL(cuStreamSynchronize, s->stream);
    }
    if (entered) cuda_leave(s, ok);
    if (ok) return c;
    cuda_context_free(c);
    return NULL;
}

/* The graph of exactly these launches, or NULL. */
static cu_replay find_replay(const struct cuda_context *c, uint32_t first, uint32_t n) {
    const struct plan_view *v = c->state->view;
    for (uint32_t i = 0; i < v->n_phases; i++)
        if (v->phases[i].first_launch == first && v->phases[i].n_launches == n)
            return c->replays[i];
    return NULL;
}

static bool step_upload(struct cuda_context *c, const struct plan_step *step, struct jllm_error *e) {
    struct cuda_state *s = c->state;
    size_t bytes = offsetof(struct plan_step, ids) + step->n_tokens * sizeof step->ids[0];
    memcpy(c->step_host, step, bytes);
    c->step_host->ring = c->ring_at;
    c->step_host->serial = c->taken = c->serial;
    return CALL(cuMemcpyHtoDAsync_v2, c->step.at, c->step_host, bytes, s->stream);
}

static const char hint[] = " (launches one at a time would name the kernel)";

/* Each start has at most one choice, whose number is its own even when it is never made. */
static bool enqueue(struct cuda_context *c, const struct plan_step *step, uint32_t first, uint32_t n,
                    struct jllm_error *e) {
    struct cuda_state *s = c->state;
    cu_replay replay = find_replay(c, first, n);
    now_doing(s, "running a phase", "");
    bool ok = (!step || step_upload(c, step, e)) &&
              (replay ? CALL(cuGraphLaunch, replay, s->stream) : launch_some(c, NULL, first, n, e));
    c->serial++;
    return ok;
}

/* What was not taken is forgotten: the next step that is uploaded begins with numbers of its own. */
static bool await_all(struct cuda_context *c, struct jllm_error *e) {
    struct cuda_state *s = c->state;
    if (!s->single) now_doing(s, "running a phase", hint);
    return CALL(cuStreamSynchronize, s->stream);
}

static bool cuda_run(void *context, const struct plan_step *step, uint32_t first, uint32_t n,
                     struct jllm_error *e) {
    struct cuda_context *c = context;
    if (!cuda_enter(c->state, e)) return false;
    return cuda_leave(c->state, enqueue(c, step, first, n, e) && await_all(c, e));
}

static bool cuda_start(void *context, const struct plan_step *step, uint32_t first, uint32_t n,
                       struct jllm_error *e) {
    struct cuda_context *c = context;
    return cuda_enter(c->state, e) && cuda_leave(c->state, enqueue(c, step, first, n, e));
}

static bool cuda_finish(void *context, struct jllm_error *e) {
    struct cuda_context *c = context;
    return cuda_enter(c->state, e) && cuda_leave(c->state, await_all(c, e));
}

/* Asks often at first, then gives up the core in between: a step ahead is under way, so that a choice read a little late
 * holds up nobody. */
static cu_result ask_again(struct cuda_state *s, uint32_t times) {
    enum { AT_ONCE = 100 };
    if (times > AT_ONCE) nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    return s->cu.cuStreamQuery(s->stream);
}

static bool cuda_take(void *context, int32_t *id, struct jllm_error *e) {
    struct cuda_context *c = context;
    struct cuda_state *s = c->state;
    const uint64_t *entry = &c->ring[c->taken % PLAN_RING_ENTRIES];
    uint64_t seen;
    cu_result r = CU_NOT_READY;
    if (!cuda_enter(s, e)) return false;
    now_doing(s, "running a phase", s->single ? "" : hint);
    for (uint32_t i = 0; (seen = __atomic_load_n(entry, __ATOMIC_ACQUIRE)) >> 32 != c->taken && r == CU_NOT_READY; i++)
        r = ask_again(s, i);
    if (seen >> 32 == c->taken) {
        c->taken++;
        *id = (uint32_t)seen == PLAN_ID_BAD ? -1 : (int32_t)(uint32_t)seen;
        return cuda_leave(s, true);
    }
    if (cuda_ok(s, r, "cuStreamQuery", e))
        error_set(e, JLLM_BAD_PLAN, "the plan's decode phase ended without a choice: compile it again");
    return cuda_leave(s, false);
}

/* ---- times ---- */

enum { MARKS_MAX = 65 };

/* Microseconds between neighbours of marks[n + 1], all recorded. */
static bool read_marks(struct cuda_state *s, const cu_event *marks, uint32_t n, double *us, struct jllm_error *e) {
    float ms = 0;
    if (!CALL(cuStreamSynchronize, s->stream)) return false;
    for (uint32_t i = 0; i < n; i++) {
        if (!CALL(cuEventElapsedTime, &ms, marks[i], marks[i + 1])) return false;
        us[i] = 1e3 * (double)ms;
    }
    return true;
}

static bool time_each(struct cuda_context *c, const cu_event *marks, const uint32_t *launches, uint32_t n, double *us,
                      struct jllm_error *e) {
    struct cuda_state *s = c->state;
    for (uint32_t done = 0, now; done < n; done += now) {
        now = n - done < MARKS_MAX - 1 ? n - done : MARKS_MAX - 1;
        if (!CALL(cuEventRecord, marks[0], s->stream)) return false;
        for (uint32_t i = 0; i < now; i++)
            if (!launch(c, launches[done + i], e) || !CALL(cuEventRecord, marks[i + 1], s->stream)) return false;
        if (!read_marks(s, marks, now, us + done, e)) return false;
    }
    return true;
}

/* As one graph where passes are: launched one by one, short kernels would wait for the host. */
static bool time_all(struct cuda_context *c, const cu_event *marks, const uint32_t *launches, uint32_t n, double *us,
                     struct jllm_error *e) {
    struct cuda_state *s = c->state;
    cu_replay replay = NULL;
    bool ok = (!s->graphs || capture(c, launches, 0, n, &replay, e)) && CALL(cuEventRecord, marks[0], s->stream) &&
              (replay ? CALL(cuGraphLaunch, replay, s->stream) : launch_some(c, launches, 0, n, e)) &&
              CALL(cuEventRecord, marks[1], s->stream) && read_marks(s, marks, 1, us, e);
    if (!ok) s->cu.cuStreamSynchronize(s->stream);
    if (replay) s->cu.cuGraphExecDestroy(replay);
    return ok;
}

static bool cuda_time(void *context, const struct plan_step *step, const uint32_t *launches, uint32_t n, bool together,
                      double *us, struct jllm_error *e) {
    struct cuda_context *c = context;
    struct cuda_state *s = c->state;
    cu_event marks[MARKS_MAX] = {0};
    uint32_t n_marks = together ? 2 : n < MARKS_MAX ? n + 1 : MARKS_MAX;
    bool ok = true;
    if (!cuda_enter(s, e)) return false;
    now_doing(s, "taking times", "");
    for (uint32_t i = 0; i < n_marks && ok; i++) ok = CALL(cuEventCreate, &marks[i], 0);
    ok = ok && step_upload(c, step, e) && (together ? time_all : time_each)(c, marks, launches, n, us, e);
    s->cu.cuStreamSynchronize(s->stream);   /* whatever failed */
    for (uint32_t i = 0; i < n_marks; i++)
        if (marks[i]) s->cu.cuEventDestroy_v2(marks[i]);
    c->serial += n;                         /* each may have been a choice */
    return cuda_leave(s, ok);
}

static bool copy_out(struct cuda_context *c, void *to, cu_address from, uint64_t bytes,
                     struct jllm_error *e) {
    struct cuda_state *s = c->state;
    if (!cuda_enter(s, e)) return false;
    now_doing(s, "copying from the device", "");
    return cuda_leave(s, CALL(cuMemcpyDtoHAsync_v2, to, from, bytes, s->stream) &&
                         CALL(cuStreamSynchronize, s->stream));
}

static cu_address space_at(const struct cuda_context *c, uint32_t space, uint64_t offset) {
    return (space == PLAN_SPACE_ARENA ? c->arena.at : c->cache.at) + offset;
}

static bool cuda_read(void *context, uint32_t space, uint64_t offset, void *to, uint64_t bytes,
                      struct jllm_error *e) {
    struct cuda_context *c = context;
    return plan_space_fits(c->state->view, space, offset, bytes, e) &&
           copy_out(c, to, space_at(c, space, offset), bytes, e);
}

static bool cuda_write(void *context, uint32_t space, uint64_t offset, const void *from,
                       uint64_t bytes, struct jllm_error *e) {
    struct cuda_context *c = context;
    struct cuda_state *s = c->state;
    cu_address to = space_at(c, space, offset);
    if (!plan_space_fits(s->view, space, offset, bytes, e) || !cuda_enter(s, e)) return false;
    now_doing(s, "copying to the device", "");
    return cuda_leave(s, CALL(cuMemcpyHtoDAsync_v2, to, from, bytes, s->stream) &&
                         CALL(cuStreamSynchronize, s->stream));
}

static const float *cuda_logits(void *context, struct jllm_error *e) {
    struct cuda_context *c = context;
    const struct plan_info *info = c->state->view->info;
    bool ok = copy_out(c, c->logits, c->arena.at + info->logits_offset,
                       info->n_vocab * sizeof *c->logits, e);
    return ok ? c->logits : NULL;
}

const struct device_ops device_cuda = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .context_new = cuda_context_new,
    .context_free = cuda_context_free,
    .run = cuda_run,
    .write = cuda_write,
    .read = cuda_read,
    .logits = cuda_logits,
    .start = cuda_start,
    .take = cuda_take,
    .finish = cuda_finish,
    .time = cuda_time,
};
