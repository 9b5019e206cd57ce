/* The fake driver's device as an emulated GPU (fake_engine.h): a plan runs with its own launches, arguments and weights, its
 * kernels are those that plan_kernels.py made of the sources in it.
 *
 * $JLLM_FAKE_CUDA says arch=90 and the like (fake_cuda.c), and
 *   JLLM_SIMT_KERNELS   the library of the kernels; without it there is no device
 *   JLLM_SIMT_SEED      the order of blocks, warps and lanes; 0: ascending
 *   JLLM_SIMT_LOG       a file that gets a line of JSON for each launch: kernel, grid, block, shared bytes, and what it asks
 *                       for of the weights: bytes, and the ranges that they lie in, from where weights begin
 * What a kernel does wrong and what the driver is asked wrong are sentences on stderr, after "simt: ".
 *
 * Memory that was filled by copies when the first session clears its own is weights: kernels may not write it.
 */
#include "../fake_engine.h"
#include "image.h"
#include "plan_kernels.h"
#include "simt.h"
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <dlfcn.h>

namespace {

struct Kernel : engine_kernel {
    const simt_plan_kernel *source;
};

struct Memory {
    char *at;
    bool copied, weights, known;    // known: it was there when a context was made, before anything ran
};

struct Device {
    std::deque<Kernel> kernels;
    std::vector<Memory> memory;
    simt::Options options;
    FILE *log;
} device;

int complain(const char *what, const char *detail) {
    fprintf(stderr, "simt: %s%s\n", what, detail);
    return 0;
}

// CUDA C++ Programming Guide, technical specifications per compute capability.
u32 shared_max_of(int arch) {
    return arch >= 90 ? 227 << 10 : arch == 86 || arch == 89 ? 99 << 10 : 163 << 10;
}

// Kernels find the emulator in this library, which the runtime loads for itself alone.
bool share_symbols() {
    Dl_info info;
    return dladdr(&device, &info) && dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

bool load_kernels(const char *path) {
    if (!path || !share_symbols()) return false;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return false;
    for (int i = 0;; i++) {
        std::string name = "simt_plan_kernels_" + std::to_string(i);
        auto *k = static_cast<const simt_plan_kernel *>(dlsym(library, name.c_str()));
        for (; k && k->name; k++)
            device.kernels.push_back({{k->name, k->n_args - 1, static_cast<int>(k->threads_max), 0}, k});
        if (!k) return i > 0;
    }
}

Memory *memory_of(void *p) {
    for (Memory &m : device.memory)
        if (m.at == p) return &m;
    return nullptr;
}

void log_launch(const engine_kernel *k, const engine_launch *how) {
    u64 bytes = 0;
    std::string ranges;
    for (const Memory &m : device.memory) {
        if (!m.weights) continue;
        simt::Requested r = simt::device_requested(m.at);
        bytes += r.bytes;
        for (const auto &i : r.ranges)
            ranges += (ranges.empty() ? "[" : ", [") + std::to_string(i.first) + ", " + std::to_string(i.end) + "]";
    }
    fprintf(device.log,
            "{\"kernel\": \"%s\", \"grid\": [%u, %u, %u], \"block\": %u, \"shared\": %u, \"bytes\": %llu, \"ranges\": [%s]}\n",
            k->name, how->grid[0], how->grid[1], how->grid[2], how->block, how->shared_bytes, bytes, ranges.c_str());
    fflush(device.log);
}

}  // namespace

const bool engine_follows = true;

int engine_open(int arch) {
    const char *seed = getenv("JLLM_SIMT_SEED"), *log = getenv("JLLM_SIMT_LOG");
    if (device.kernels.empty() && !load_kernels(getenv("JLLM_SIMT_KERNELS"))) {
        const char *why = dlerror();
        return complain("no kernels: ", why ? why : "JLLM_SIMT_KERNELS names no library of plan_kernels.py's");
    }
    device.options.seed = seed ? strtoull(seed, nullptr, 10) : 0;
    device.options.resident = device.options.seed ? 2 : 1;
    device.options.smem_max = shared_max_of(arch);
    if (log && !device.log && !(device.log = fopen(log, "a"))) return complain("cannot write ", log);
    return static_cast<int>(device.options.smem_max);
}

void *engine_alloc(uint64_t bytes) {
    void *p = simt::device_alloc(bytes, "memory");
    if (p) device.memory.push_back({static_cast<char *>(p), false, false, false});
    return p;
}

void engine_free(void *p, uint64_t) {
    for (size_t i = 0; i < device.memory.size(); i++)
        if (device.memory[i].at == p) device.memory.erase(device.memory.begin() + static_cast<std::ptrdiff_t>(i));
    simt::device_free(p);
}

void engine_copied(void *p) {
    if (Memory *m = memory_of(p)) m->copied = true;
    simt::device_from_host(p);
}

void engine_filled(void *) {
    for (Memory &m : device.memory) {
        bool known = m.known;
        m.known = true;
        if (!m.copied || known) continue;
        m.weights = true;
        simt::device_read_only(m.at);
        if (device.log) simt::device_count(m.at);
    }
}

// The runtime loads a kernel from where its image begins in the plan.
const engine_kernel *engine_find(const void *image) {
    unsigned long long hash, bytes;
    const char *head = static_cast<const char *>(image) + SIMT_IMAGE_ELF_BYTES;
    if (sscanf(head, "JLLM-SIMT %16llx %11llu", &hash, &bytes) != 2) {
        complain("a plan that was not made with the emulator's NVRTC", "");
        return nullptr;
    }
    for (const Kernel &k : device.kernels)
        if (k.source->source_hash == hash) return &k;
    complain("a kernel that is not in JLLM_SIMT_KERNELS: was it made from this plan?", "");
    return nullptr;
}

bool engine_has(const engine_kernel *k, const char *function) { return !strcmp(k->name, function); }

bool engine_run(const engine_kernel *k, const engine_launch *how, void *const *args) {
    struct Bound {
        void (*call)(void *const *);
        void *args[32];
    } bound = {static_cast<const Kernel *>(k)->source->call, {}};
    if (k->n_args + 1 > 32) abort();
    memcpy(bound.args, args, (k->n_args + 1) * sizeof *args);
    auto run = [](const void *p) {
        auto *b = static_cast<const Bound *>(p);
        b->call(b->args);
    };
    simt::Result r = simt::run_grid({how->grid[0], how->grid[1], how->grid[2]}, {how->block, 1, 1}, how->shared_bytes,
                                    device.options, run, &bound, sizeof bound);
    if (!r.ok) complain(k->name, (": " + r.error).c_str());
    else if (device.log) log_launch(k, how);
    return r.ok;
}

void engine_misuse(const char *sentence) { complain("the driver is asked wrong: ", sentence); }
