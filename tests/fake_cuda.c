/* A libcuda.so.1 without a device: what runtime/cuda.c uses of the driver, on host memory.
 *
 * What its memory is and what a kernel does is fake_engine.h's. Device addresses are host
 * addresses with a bit that no host pointer has, so following one on the host crashes. Work is queued and runs only
 * when somebody waits for it, and one piece of it whenever somebody asks: a buffer reused too early, or a result read without waiting, is wrong here too. New
 * memory holds garbage. What a driver would not forgive is noted in the report.
 *
 * $JLLM_FAKE_CUDA, read by cuInit, says what to play: words of name=number.
 *   init devices arch driver memory_mib integrated vmm      what there is
 *   fail=N    the N-th call says error= (CUDA_ERROR_UNKNOWN); what it gives back is gone all the same
 *   die=N     from the N-th call on everything says CUDA_ERROR_LAUNCH_FAILED, but destroying the context works
 */
#include "fake_cuda.h"
#include "fake_engine.h"
#include "../runtime/plan.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define API(name, ...)                                                     \
    __attribute__((visibility("default"))) int name(__VA_ARGS__);          \
    int name(__VA_ARGS__)

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NO_DEVICE = 100, BAD_IMAGE = 200, NO_CONTEXT = 201, NOT_FOUND = 500,
       NOT_READY = 600, LAUNCH_FAILED = 719, UNKNOWN = 999 };
enum { GRAIN = 2 << 20 };
#define DEVICE_BIT ((uint64_t)1 << 62)

enum op_kind { OP_TO_DEVICE, OP_TO_HOST, OP_FILL, OP_KERNEL, OP_MARK };
struct object;
struct op {
    enum op_kind kind;
    uint64_t device, bytes;
    void *host;
    uint8_t value;
    const struct engine_kernel *kernel;
    uint64_t args[PLAN_ARGS_MAX + 1];
    struct engine_launch how;
    struct object *event;
};

struct object {
    enum fake_kind kind;
    struct object *next;
    const struct object *context;   /* in which it was made; its own, if it is one */
    uint8_t *host;              /* memory, host, range */
    uint64_t bytes;
    uint64_t mapped_at;         /* chunk: where, 0: nowhere */
    bool seen_by_device;        /* host */
    bool released;              /* chunk: its handle */
    const struct engine_kernel *kernel;
    int shared_max;             /* module: its kernel's dynamic shared memory */
    bool capturing;             /* stream */
    int pending;                /* event: marks in the queue */
    bool timed;                 /* event */
    double at_us;               /* event: when it was reached last */
    struct op *ops;             /* graph, replay */
    size_t n_ops;
};

static struct fake_report report;
static struct object *objects;
static const struct object *current[16];   /* contexts, pushed one on the other: report.depth of them */
static struct op *queue;
static size_t n_queue;
static struct object *captured;            /* the graph that a stream is recording */
static uint64_t used_bytes;
static double clock_us;                    /* a kernel takes 10, whatever it does, and 1 for each item */
static long fail_at, die_at;
static int fail_error, shared_max;
static bool broken;                        /* a kernel did what ends a context */
static struct { int init, devices, arch, driver, memory_mib, integrated, vmm; } machine;

__attribute__((visibility("default"))) struct fake_report *fake_cuda_report(void);
struct fake_report *fake_cuda_report(void) { return &report; }

/* With a dead device nothing can be done in the right order. */
static int misuse(const char *call, const char *what) {
    bool dead = broken || (die_at && report.calls >= die_at);
    if (dead || report.misuse[0]) return INVALID;
    snprintf(report.misuse, sizeof report.misuse, "%s: %s", call, what);
    engine_misuse(report.misuse);
    return INVALID;
}

/* Every call begins here; what is not 0 is its answer. */
static int enter(const char *call, bool needs_context) {
    report.calls++;
    if (needs_context && !report.depth) return misuse(call, "no context is current"), NO_CONTEXT;
    if (broken || (die_at && report.calls >= die_at)) return LAUNCH_FAILED;
    return report.calls == fail_at ? fail_error : OK;
}
#define ENTER(context) do { int r_ = enter(__func__, context); if (r_) return r_; } while (0)

/* ---- objects ---- */

static struct object *object_new(enum fake_kind kind) {
    struct object *o = calloc(1, sizeof *o);
    if (!o) abort();
    o->kind = kind, o->next = objects, objects = o;
    o->context = kind == FAKE_CONTEXT ? o : report.depth ? current[report.depth - 1] : NULL;
    report.live[kind]++;
    return o;
}

static struct object *object_find(const void *handle, enum fake_kind kind) {
    struct object *o = objects;
    while (o && (o != handle || o->kind != kind)) o = o->next;
    return o;
}

static void object_free(struct object *o) {
    struct object **at = &objects;
    while (*at != o) at = &(*at)->next;
    *at = o->next;
    report.live[o->kind]--;
    if (o->kind == FAKE_MEMORY || o->kind == FAKE_CHUNK) used_bytes -= o->bytes;
    if (o->host && o->kind == FAKE_RANGE) munmap(o->host, o->bytes);
    else if (o->host) engine_free(o->host, o->bytes);
    free(o->ops);
    free(o);
}

static int context_push(const char *call, const struct object *context) {
    if ((size_t)report.depth == sizeof current / sizeof *current) return misuse(call, "contexts are pushed and never popped");
    current[report.depth++] = context;
    return OK;
}

static int object_destroy(const char *call, void *handle, enum fake_kind kind) {
    int r = enter(call, kind != FAKE_CONTEXT);
    struct object *o = object_find(handle, kind);
    if (r == LAUNCH_FAILED) return r;
    if (!o) return misuse(call, "not a live handle");
    if (n_queue && kind != FAKE_GRAPH) misuse(call, "while work is queued");
    object_free(o);
    return r;
}

static int memory_new(const char *call, struct object **o, enum fake_kind kind, uint64_t bytes) {
    bool device = kind == FAKE_MEMORY || kind == FAKE_CHUNK;
    if (!bytes) return misuse(call, "no bytes");
    if (device && used_bytes + bytes > (uint64_t)machine.memory_mib << 20) return NO_MEMORY;
    *o = object_new(kind);
    (*o)->bytes = bytes;
    if (device) used_bytes += bytes;
    if (kind != FAKE_RANGE && bytes > report.largest_bytes) report.largest_bytes = bytes;
    if (kind == FAKE_CHUNK) return OK;
    (*o)->host = kind != FAKE_RANGE ? engine_alloc(bytes)
                                    : mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!(*o)->host || (*o)->host == MAP_FAILED) abort();
    return OK;
}

static uint64_t device_of(const struct object *o) {
    return (uint64_t)(uintptr_t)o->host | (o->kind == FAKE_HOST && engine_follows ? 0 : DEVICE_BIT);
}

static struct object *object_at(uint64_t device, uint64_t bytes) {
    for (struct object *o = objects; o; o = o->next) {
        if (o->kind != FAKE_MEMORY && o->kind != FAKE_RANGE && !(o->kind == FAKE_HOST && o->seen_by_device)) continue;
        uint64_t offset = device - device_of(o);
        if (device >= device_of(o) && offset < o->bytes && bytes <= o->bytes - offset) return o;
    }
    return NULL;
}

/* Host memory behind a device range, or NULL. */
static uint8_t *resolve(const char *call, uint64_t device, uint64_t bytes) {
    struct object *o = object_at(device, bytes);
    if (!o) misuse(call, "not device memory");
    return o ? o->host + (device - device_of(o)) : NULL;
}

void *fake_resolve(uint64_t device, uint64_t bytes) { return resolve("a kernel", device, bytes); }

/* ---- the queue ---- */

static void kernel_run(const struct op *op) {
    void *args[PLAN_ARGS_MAX + 1];
    for (uint32_t i = 0; i <= op->kernel->n_args; i++)
        if (!(args[i] = resolve(op->kernel->name, op->args[i], 1))) return;
    broken = !engine_run(op->kernel, &op->how, args);
    report.kernels++;
    clock_us += 10 + op->how.grid[0];
}

static void zero(uint8_t *p, uint64_t bytes) {
    uint8_t *from = (uint8_t *)(((uintptr_t)p + 4095) & ~(uintptr_t)4095);
    uint64_t whole = bytes > 8192 ? (bytes - (uint64_t)(from - p)) & ~(uint64_t)4095 : 0;
    if (whole < 1 << 20 || madvise(from, whole, MADV_DONTNEED)) memset(p, 0, bytes);
    else memset(p, 0, (size_t)(from - p)), memset(from + whole, 0, bytes - whole - (uint64_t)(from - p));
}

static void op_run(const struct op *op) {
    uint8_t *device = op->kind <= OP_FILL ? resolve("a copy", op->device, op->bytes) : NULL;
    void *whole = device ? object_at(op->device, op->bytes)->host : NULL;
    if (op->kind <= OP_FILL && !device) return;
    switch (op->kind) {
    case OP_TO_DEVICE: memcpy(device, op->host, op->bytes), engine_copied(whole); break;
    case OP_TO_HOST: memcpy(op->host, device, op->bytes); report.to_host_bytes += op->bytes; break;
    case OP_FILL:
        op->value ? (void)memset(device, op->value, op->bytes) : zero(device, op->bytes);
        engine_filled(whole);
        break;
    case OP_KERNEL: kernel_run(op); break;
    case OP_MARK: op->event->pending--, op->event->at_us = clock_us; break;
    }
}

static void ops_add(struct op **ops, size_t *n, const struct op *op) {
    *ops = realloc(*ops, (*n + 1) * sizeof **ops);
    if (!*ops) abort();
    (*ops)[(*n)++] = *op;
}

/* Until an event is reached, or `most` pieces of it. */
static void queue_run(const struct object *event, size_t most) {
    size_t done = 0;
    while (!broken && done < n_queue && done < most && (!event || event->pending)) op_run(&queue[done++]);
    if (broken) done = n_queue;
    if (!done) return;
    memmove(queue, queue + done, (n_queue - done) * sizeof *queue);
    n_queue -= done;
    if (!n_queue) free(queue), queue = NULL;
}

static int submit(const char *call, void *stream, const struct op *op) {
    struct object *s = object_find(stream, FAKE_STREAM);
    if (!s) return misuse(call, "not a stream");
    if (s->capturing && op->kind != OP_KERNEL) return misuse(call, "not while a stream is captured");
    if (s->capturing) ops_add(&captured->ops, &captured->n_ops, op);
    else ops_add(&queue, &n_queue, op);
    return OK;
}

/* ---- the machine ---- */

static int setting(const char *name, int otherwise) {
    const char *text = getenv("JLLM_FAKE_CUDA");
    size_t n = strlen(name);
    for (const char *p = text ? text : ""; *p; p += strcspn(p, " "), p += strspn(p, " "))
        if (!strncmp(p, name, n) && p[n] == '=') return atoi(p + n + 1);
    return otherwise;
}

API(cuInit, unsigned flags) {
    report.calls = report.kernels = report.graphs = 0;
    report.largest_bytes = report.to_host_bytes = 0;
    fail_at = setting("fail", 0), fail_error = setting("error", UNKNOWN), die_at = setting("die", 0);
    machine.init = setting("init", 0), machine.devices = setting("devices", 1);
    machine.arch = setting("arch", 87), machine.driver = setting("driver", 13000);
    machine.memory_mib = setting("memory_mib", 16384), machine.integrated = setting("integrated", 0);
    machine.vmm = setting("vmm", 1);
    broken = false, shared_max = engine_open(machine.arch);
    ENTER(false);
    if (!shared_max) return UNKNOWN;
    return flags ? INVALID : machine.init;
}

API(cuGetErrorName, int error, const char **name) {
    *name = error == NO_MEMORY       ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == NO_DEVICE     ? "CUDA_ERROR_NO_DEVICE"
            : error == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED"
            : error == UNKNOWN       ? "CUDA_ERROR_UNKNOWN"
                                     : NULL;
    return *name ? OK : INVALID;
}

API(cuDriverGetVersion, int *version) { ENTER(false); *version = machine.driver; return OK; }
API(cuDeviceGetCount, int *n) { ENTER(false); *n = machine.devices; return OK; }
API(cuDeviceGet, int *device, int ordinal) { ENTER(false); *device = ordinal; return ordinal ? INVALID : OK; }

API(cuDeviceGetName, char *name, int bytes, int device) {
    ENTER(false);
    snprintf(name, (size_t)bytes, "Fake GPU");
    return device;
}

API(cuDeviceGetAttribute, int *value, int attribute, int device) {
    ENTER(false);
    switch (attribute) {
    case 16: *value = 8; break;
    case 18: *value = machine.integrated; break;
    case 36: *value = 1000000; break;
    case 37: *value = 256; break;
    case 75: *value = machine.arch / 10; break;
    case 76: *value = machine.arch % 10; break;
    case 97: *value = shared_max; break;
    case 102: *value = machine.vmm; break;
    default: return misuse(__func__, "an attribute that the fake lacks");
    }
    return device;
}

API(cuDeviceTotalMem_v2, size_t *bytes, int device) {
    ENTER(false);
    *bytes = (size_t)machine.memory_mib << 20;
    return device;
}

/* ---- contexts ---- */

API(cuCtxCreate_v2, struct object **context, unsigned flags, int device) {
    ENTER(false);
    *context = object_new(FAKE_CONTEXT);
    return flags || device ? misuse(__func__, "flags") : context_push(__func__, *context);
}

/* All that was made in it goes with it; a driver does that too, whatever state it is in. */
API(cuCtxDestroy_v2, struct object *context) {
    int r = enter(__func__, false);
    if (!object_find(context, FAKE_CONTEXT)) return misuse(__func__, "not a context");
    free(queue);
    queue = NULL, n_queue = 0, captured = NULL;
    for (struct object *o = objects, *next; o; o = next) {
        next = o->next;
        if (o->context != context || o == context) continue;
        report.left++;
        object_free(o);
    }
    object_free(context);
    return r;
}

API(cuCtxPushCurrent_v2, struct object *context) {
    ENTER(false);
    return object_find(context, FAKE_CONTEXT) ? context_push(__func__, context) : misuse(__func__, "not a context");
}

API(cuCtxPopCurrent_v2, struct object **context) {
    int r = enter(__func__, true);
    if (report.depth) report.depth--;
    *context = NULL;
    return r;
}

/* ---- memory ---- */

API(cuMemGetInfo_v2, size_t *left, size_t *total) {
    ENTER(true);
    *total = (size_t)machine.memory_mib << 20;
    *left = *total - used_bytes;
    return OK;
}

API(cuMemAlloc_v2, uint64_t *device, size_t bytes) {
    struct object *o;
    ENTER(true);
    int r = memory_new(__func__, &o, FAKE_MEMORY, bytes);
    if (!r) *device = device_of(o);
    return r;
}

static void *owner_of(uint64_t device, enum fake_kind kind) {
    for (struct object *o = objects; o; o = o->next)
        if (o->kind == kind && device_of(o) == device) return o;
    return NULL;
}

API(cuMemFree_v2, uint64_t device) { return object_destroy(__func__, owner_of(device, FAKE_MEMORY), FAKE_MEMORY); }

API(cuMemHostAlloc, void **host, size_t bytes, unsigned flags) {
    struct object *o;
    ENTER(true);
    if (flags & ~2u) return misuse(__func__, "flags");
    int r = memory_new(__func__, &o, FAKE_HOST, bytes);
    if (r) return r;
    o->seen_by_device = flags & 2;
    *host = o->host;
    return OK;
}

static struct object *host_memory_at(const void *host) {
    struct object *o = objects;
    while (o && (o->kind != FAKE_HOST || o->host != host)) o = o->next;
    return o;
}

API(cuMemHostGetDevicePointer_v2, uint64_t *device, void *host, unsigned flags) {
    ENTER(true);
    struct object *o = host_memory_at(host);
    if (!o || !o->seen_by_device || flags) return misuse(__func__, "not mapped for the device");
    *device = device_of(o);
    return OK;
}

API(cuMemFreeHost, void *host) {
    return object_destroy(__func__, host_memory_at(host), FAKE_HOST);
}

struct kind { int type, handles, location_type, location; void *windows; char flags[8]; };

static int kind_check(const char *call, const struct kind *k) {
    return k->type == 1 && k->location_type == 1 && !k->location && !k->handles ? OK : misuse(call, "kind of memory");
}

API(cuMemGetAllocationGranularity, size_t *bytes, const struct kind *kind, int option) {
    ENTER(true);
    *bytes = GRAIN;
    return option ? misuse(__func__, "option") : kind_check(__func__, kind);
}

API(cuMemAddressReserve, uint64_t *device, size_t bytes, size_t align, uint64_t at, unsigned long long flags) {
    struct object *o;
    ENTER(true);
    if (bytes % GRAIN || align || at || flags) return misuse(__func__, "arguments");
    int r = memory_new(__func__, &o, FAKE_RANGE, bytes);
    if (!r) *device = device_of(o);
    return r;
}

API(cuMemAddressFree, uint64_t device, size_t bytes) {
    struct object *range = owner_of(device, FAKE_RANGE);
    for (struct object *o = objects; range && o; o = o->next)
        if (o->kind == FAKE_CHUNK && o->mapped_at - device < bytes) misuse(__func__, "a chunk is still mapped");
    if (range && range->bytes != bytes) misuse(__func__, "not the bytes that were reserved");
    return object_destroy(__func__, range, FAKE_RANGE);
}

API(cuMemCreate, struct object **chunk, size_t bytes, const struct kind *kind, unsigned long long flags) {
    ENTER(true);
    if (bytes % GRAIN || flags || kind_check(__func__, kind)) return misuse(__func__, "arguments");
    return memory_new(__func__, chunk, FAKE_CHUNK, bytes);
}

static void chunk_drop(struct object *o) {
    if (o->released && !o->mapped_at) object_free(o);
}

API(cuMemRelease, struct object *chunk) {
    int r = enter(__func__, true);
    if (r == LAUNCH_FAILED) return r;
    if (!object_find(chunk, FAKE_CHUNK) || chunk->released) return misuse(__func__, "not a chunk");
    chunk->released = true;
    chunk_drop(chunk);
    return r;
}

API(cuMemMap, uint64_t device, size_t bytes, size_t offset, struct object *chunk, unsigned long long flags) {
    ENTER(true);
    if (!object_find(chunk, FAKE_CHUNK) || chunk->bytes != bytes || chunk->mapped_at || offset || flags ||
        !resolve(__func__, device, bytes))
        return misuse(__func__, "arguments");
    chunk->mapped_at = device;
    return OK;
}

API(cuMemUnmap, uint64_t device, size_t bytes) {
    int r = enter(__func__, true);
    struct object *o = objects;
    if (r == LAUNCH_FAILED) return r;
    while (o && (o->kind != FAKE_CHUNK || o->mapped_at != device || o->bytes != bytes)) o = o->next;
    if (!o) return misuse(__func__, "nothing is mapped there");
    o->mapped_at = 0;
    chunk_drop(o);
    return r;
}

API(cuMemSetAccess, uint64_t device, size_t bytes, const int *access, size_t n) {
    ENTER(true);
    uint8_t *host = resolve(__func__, device, bytes);
    if (n != 1 || access[0] != 1 || access[1] || access[2] != 3 || !host) return misuse(__func__, "arguments");
    return mprotect(host, bytes, PROT_READ | PROT_WRITE) ? UNKNOWN : OK;
}

API(cuMemcpyHtoDAsync_v2, uint64_t to, const void *from, size_t bytes, void *stream) {
    struct op op = {.kind = OP_TO_DEVICE, .device = to, .host = (void *)(uintptr_t)from, .bytes = bytes};
    ENTER(true);
    return submit(__func__, stream, &op);
}

API(cuMemcpyDtoHAsync_v2, void *to, uint64_t from, size_t bytes, void *stream) {
    struct op op = {.kind = OP_TO_HOST, .device = from, .host = to, .bytes = bytes};
    ENTER(true);
    return submit(__func__, stream, &op);
}

API(cuMemsetD8Async, uint64_t to, unsigned char value, size_t bytes, void *stream) {
    struct op op = {.kind = OP_FILL, .device = to, .value = value, .bytes = bytes};
    ENTER(true);
    return submit(__func__, stream, &op);
}

/* ---- code; a function is its module ---- */

API(cuModuleLoadData, struct object **module, const char *image) {
    ENTER(true);
    const struct engine_kernel *kernel = engine_find(image);
    if (!kernel) return BAD_IMAGE;
    *module = object_new(FAKE_MODULE);
    (*module)->kernel = kernel;
    (*module)->shared_max = (48 << 10) - kernel->fixed_bytes;
    return OK;
}

API(cuModuleUnload, struct object *module) { return object_destroy(__func__, module, FAKE_MODULE); }

API(cuModuleGetFunction, struct object **function, struct object *module, const char *name) {
    ENTER(true);
    if (!object_find(module, FAKE_MODULE)) return misuse(__func__, "not a module");
    if (!engine_has(module->kernel, name)) return NOT_FOUND;
    *function = module;
    return OK;
}

API(cuFuncGetAttribute, int *value, int attribute, struct object *function) {
    ENTER(true);
    if (!object_find(function, FAKE_MODULE) || attribute > 1) return misuse(__func__, "arguments");
    *value = attribute ? function->kernel->fixed_bytes : function->kernel->threads_max;
    return OK;
}

API(cuFuncSetAttribute, struct object *function, int attribute, int value) {
    ENTER(true);
    if (!object_find(function, FAKE_MODULE) || attribute != 8 || value > shared_max - function->kernel->fixed_bytes)
        return misuse(__func__, "arguments");
    function->shared_max = value;
    return OK;
}

struct launch_config { unsigned grid[3], block[3], shared; void *stream; struct { int id, pad, value; } *attributes; unsigned n; };

API(cuLaunchKernelEx, const struct launch_config *how, struct object *function, void **params, void **extra) {
    const unsigned *grid = how->grid, *block = how->block;
    struct op op = {.kind = OP_KERNEL, .how = {{grid[0], grid[1], grid[2]}, block[0], how->shared}};
    ENTER(true);
    if (!object_find(function, FAKE_MODULE) || extra) return misuse(__func__, "not a function");
    if (!grid[0] || !grid[1] || !grid[2] || !block[0] || block[1] != 1 || block[2] != 1 || block[0] > (unsigned)function->kernel->threads_max)
        return misuse(__func__, "grid or block");
    if (how->n > 1 || (how->n && (how->attributes->id != 6 || how->attributes->value != 1)))
        return misuse(__func__, "attributes");
    if (how->shared > (unsigned)function->shared_max) return misuse(__func__, "more shared memory than was asked for");
    op.kernel = function->kernel;
    for (uint32_t i = 0; i <= op.kernel->n_args; i++) memcpy(&op.args[i], params[i], sizeof op.args[i]);
    return submit(__func__, how->stream, &op);
}

/* ---- streams, events, graphs ---- */

API(cuStreamCreate, struct object **stream, unsigned flags) {
    ENTER(true);
    *stream = object_new(FAKE_STREAM);
    return flags == 1 ? OK : misuse(__func__, "a stream that waits for others");
}

API(cuStreamDestroy_v2, struct object *stream) { return object_destroy(__func__, stream, FAKE_STREAM); }

API(cuStreamSynchronize, struct object *stream) {
    ENTER(true);
    if (!object_find(stream, FAKE_STREAM)) return misuse(__func__, "not a stream");
    if (stream->capturing) return misuse(__func__, "the stream is captured");
    queue_run(NULL, SIZE_MAX);
    return broken ? LAUNCH_FAILED : OK;
}

API(cuStreamQuery, struct object *stream) {
    ENTER(true);
    if (!object_find(stream, FAKE_STREAM)) return misuse(__func__, "not a stream");
    queue_run(NULL, 1);
    return n_queue ? NOT_READY : OK;
}

API(cuStreamBeginCapture_v2, struct object *stream, int mode) {
    ENTER(true);
    if (!object_find(stream, FAKE_STREAM) || stream->capturing || mode != 1) return misuse(__func__, "arguments");
    stream->capturing = true;
    captured = object_new(FAKE_GRAPH);
    return OK;
}

API(cuStreamEndCapture, struct object *stream, struct object **graph) {
    int r = enter(__func__, true);
    *graph = NULL;
    if (r == LAUNCH_FAILED) return r;
    if (!object_find(stream, FAKE_STREAM) || !stream->capturing) return misuse(__func__, "not captured");
    stream->capturing = false;
    if (r) object_free(captured);
    else *graph = captured;
    captured = NULL;
    return r;
}

API(cuEventCreate, struct object **event, unsigned flags) {
    ENTER(true);
    *event = object_new(FAKE_EVENT);
    (*event)->timed = !flags;
    return !(flags & ~2u) ? OK : misuse(__func__, "flags");
}

API(cuEventDestroy_v2, struct object *event) { return object_destroy(__func__, event, FAKE_EVENT); }

API(cuEventRecord, struct object *event, void *stream) {
    struct op op = {.kind = OP_MARK, .event = event};
    ENTER(true);
    if (!object_find(event, FAKE_EVENT)) return misuse(__func__, "not an event");
    event->pending++;
    return submit(__func__, stream, &op);
}

API(cuEventSynchronize, struct object *event) {
    ENTER(true);
    if (!object_find(event, FAKE_EVENT)) return misuse(__func__, "not an event");
    queue_run(event, SIZE_MAX);
    return broken ? LAUNCH_FAILED : OK;
}

API(cuEventElapsedTime, float *ms, struct object *from, struct object *to) {
    ENTER(true);
    if (!object_find(from, FAKE_EVENT) || !object_find(to, FAKE_EVENT) || !from->timed || !to->timed)
        return misuse(__func__, "not events with timing");
    if (from->pending || to->pending) return NOT_READY;
    *ms = (float)(1e-3 * (to->at_us - from->at_us));
    return OK;
}

API(cuGraphInstantiateWithFlags, struct object **replay, struct object *graph, unsigned long long flags) {
    ENTER(true);
    if (!object_find(graph, FAKE_GRAPH) || flags) return misuse(__func__, "not a graph");
    *replay = object_new(FAKE_REPLAY);
    for (size_t i = 0; i < graph->n_ops; i++) ops_add(&(*replay)->ops, &(*replay)->n_ops, &graph->ops[i]);
    return OK;
}

API(cuGraphUpload, struct object *replay, void *stream) {
    ENTER(true);
    bool known = object_find(replay, FAKE_REPLAY) && object_find(stream, FAKE_STREAM);
    return known ? OK : misuse(__func__, "arguments");
}

API(cuGraphLaunch, struct object *replay, void *stream) {
    ENTER(true);
    if (!object_find(replay, FAKE_REPLAY)) return misuse(__func__, "not a graph");
    for (size_t i = 0; i < replay->n_ops; i++) submit(__func__, stream, &replay->ops[i]);
    report.graphs++;
    return OK;
}

API(cuGraphDestroy, struct object *graph) { return object_destroy(__func__, graph, FAKE_GRAPH); }
API(cuGraphExecDestroy, struct object *replay) { return object_destroy(__func__, replay, FAKE_REPLAY); }
