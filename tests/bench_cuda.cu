// Manual tool: matmul and gate_up of templates/cuda on a GPU, in the shapes of Qwen3-4B. From the repository's root:
//
//   nvcc -std=c++17 -O2 -arch=native -Itemplates/cuda tests/bench_cuda.cu -lnvrtc -lcuda -o /tmp/bench_cuda
//   /tmp/bench_cuda [check] [best] [n=1,8,...] [sm=8|all|both] [quant=q4_k] [op=down] [geometry=wm,wk,rt,depth,blocks,splits,stages]
//
// check: every type in awkward shapes against double precision on the same fp16 activations. Otherwise one line for each
// shape, number of tokens and geometry (best: the fastest geometry alone): microseconds a launch in a CUDA graph, weights
// rotating through more than the L2, on all SMs and on a green context of 8. Templates are compiled at run time, by one
// process a core.
#include <cuda.h>
#include <cuda_runtime.h>
#include <nvrtc.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>
#include "frag16.cuh"
#include "x16.cuh"

#define CK(x)                                                                  \
    do {                                                                       \
        int rc_ = (int)(x);                                                    \
        if (rc_) printf("error %d, line %d: %s\n", rc_, __LINE__, #x), exit(1); \
    } while (0)

static std::string text(const char *format, ...) {
    char out[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(out, sizeof out, format, args);
    va_end(args);
    return out;
}

// ---- kernels: compiled to files, one process a core ---------------------------------------------------

struct Geometry { int wm, wk, rt, depth, blocks, splits = 1, stages = 2; };
struct Spec {
    const char *op, *source;
    std::string quant;
    int m, k, n, residual;
    Geometry g;
    std::string defines() const {
        return text("-DJT_NAME=kern -DJT_QUANT=%s -DJT_M=%d -DJT_K=%d -DJT_N=%d -DJT_RESIDUAL=%d -DJT_WM=%d -DJT_WK=%d -DJT_RT=%d "
                    "-DJT_DEPTH=%d -DJT_BLOCKS=%d -DJT_SPLITS=%d -DJT_STAGES=%d", quant.c_str(), m, k, n, residual, g.wm, g.wk, g.rt,
                    g.depth, g.blocks, g.splits, g.stages);
    }
    bool gate_up() const { return !strcmp(source, "gate_up"); }
    int matrices() const { return gate_up() ? 2 : 1; }
    int rows() const { return g.wm * g.rt * 16; }
    unsigned grid() const { return (unsigned)((m + rows() / matrices() - 1) / (rows() / matrices())); }
    unsigned threads() const { return (unsigned)(g.wm * g.wk * 32); }
    unsigned shared() const;
};

struct Step { const char *quant; int tile, blocks, mins; };   // stage of many.cuh
static Step step_of(const std::string &q) {
    for (Step s : {Step{"f32", 4096, 2, 0}, {"f16", 4096, 4, 0}, {"q4_1", 2560, 8, 1}, {"q8_0", 4352, 8, 0}, {"q4_k", 2368, 8, 1}, {"q6_k", 3360, 8, 0}})
        if (q == s.quant) return s;
    exit(1);
}

unsigned Spec::shared() const {
    int sums = g.wk * n * (rows() + (n > 1 ? 4 : 0)) * 4;
    Step s = step_of(quant);
    int place = g.wm * g.rt * s.tile + s.blocks * n * 64 + s.mins * s.blocks * (n + 4) * 4;
    return (unsigned)(n > 8 ? std::max(sums, g.stages * g.wk * place) : sums);
}

static std::string folder, arch;
static std::string image_path(size_t i) { return folder + text("/%zu.cubin", i); }

static void compile(const Spec &s, size_t i) {
    std::ifstream in(text("templates/cuda/%s.cu", s.source));
    std::stringstream source;
    source << in.rdbuf();
    nvrtcProgram p;
    CK(nvrtcCreateProgram(&p, source.str().c_str(), s.source, 0, nullptr, nullptr));
    std::vector<std::string> options = {"-std=c++17", "-Itemplates/cuda", "-fmad=false", arch};
    std::stringstream words(s.defines());
    for (std::string w; words >> w;) options.push_back(w);
    std::vector<const char *> pointers;
    for (auto &o : options) pointers.push_back(o.c_str());
    if (nvrtcCompileProgram(p, (int)pointers.size(), pointers.data())) {
        size_t bytes;
        nvrtcGetProgramLogSize(p, &bytes);
        std::string log(bytes, 0);
        nvrtcGetProgramLog(p, &log[0]);
        printf("%s: %s\n", s.defines().c_str(), log.c_str());
        exit(1);
    }
    size_t bytes;
    CK(nvrtcGetCUBINSize(p, &bytes));
    std::string image(bytes, 0);
    CK(nvrtcGetCUBIN(p, &image[0]));
    nvrtcDestroyProgram(&p);
    std::ofstream(image_path(i), std::ios::binary) << image;
}

static void compile_all(const std::vector<Spec> &specs) {
    int workers = (int)std::min<long>(sysconf(_SC_NPROCESSORS_ONLN), 32);
    fflush(stdout);
    for (int w = 0; w < workers; w++)
        if (fork() == 0) {
            for (size_t i = (size_t)w; i < specs.size(); i += (size_t)workers) compile(specs[i], i);
            fflush(stdout);
            _exit(0);
        }
    int status, bad = 0;
    while (wait(&status) > 0) bad |= status;
    if (bad) printf("compilation failed\n"), exit(1);
}

// ---- weights, activations, reference ------------------------------------------------------------------

static const char *quant_names[] = {"f32", "f16", "q4_1", "q8_0", "q4_k", "q6_k"};
static int quant_index(const std::string &q) {
    for (int i = 0; i < 6; i++)
        if (q == quant_names[i]) return i;
    printf("no type %s\n", q.c_str());
    exit(1);
}
static size_t unit_cols(int q) { return q < 4 ? 64 : 256; }
static size_t unit_bytes(int q) {
    static const size_t bytes[] = {4096, 2048, 640, 1088, 2368, 3360};
    return bytes[q];
}
static size_t weight_bytes(const Spec &s) {
    int q = quant_index(s.quant);
    return (size_t)(s.m + 15) / 16 * ((s.k + unit_cols(q) - 1) / unit_cols(q)) * unit_bytes(q);
}

__device__ u32 hash(u32 h) {
    h ^= h >> 16, h *= 0x85ebca6bu, h ^= h >> 13, h *= 0xc2b2ae35u;
    return h ^ h >> 16;
}

// Random units: bits, but scales are small positive numbers (mins negative for Q4_1), matrices of halves are in +-1.
__global__ void fill(u8 *w, size_t bytes, int q, size_t unit) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < bytes / 2; i += (size_t)gridDim.x * blockDim.x) {
        u32 h = hash((u32)i * 2654435761u + 12345), at = (u32)(i * 2 % unit);
        float small = 1e-3f * (1 + (float)(h & 255) / 256);
        u16 v = (u16)(h >> 8);
        if (q <= 1) v = float_to_half(((float)(h & 65535) - 32768) / 32768);
        if (q == 2 && at >= 512) v = float_to_half(at % 16 < 8 ? small : -7.5f * small);
        if (q == 3 && at >= 1024) v = float_to_half(small);
        if (q == 4 && at >= 2048 && at < 2304) v &= 0x3f3f;
        if (q == 4 && at >= 2304) v = float_to_half(at % 4 ? 7.5f * small : small);
        if (q == 5 && at >= 3328) v = float_to_half(small);
        reinterpret_cast<u16 *>(w)[i] = v;
    }
}

template <class Q>
__global__ void product(const u8 *w, const float *x, int m, int k, int n, double *y) {
    int row = blockIdx.x, lane = threadIdx.x;
    for (int t = 0; t < n; t++) {
        double sum = 0;
        for (int i = lane; i < k; i += 32)
            sum += (double)weights_at(Q(), w + row / 16 * tile_bytes<Q>(k), row % 16, i) * (double)x[(size_t)t * k + i];
        for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
        if (lane == 0) y[(size_t)t * m + row] = sum;
    }
}

static std::vector<double> reference(const Spec &s, const u8 *w, const float *x) {
    double *y;
    CK(cudaMalloc(&y, (size_t)s.n * s.m * 8));
    switch (quant_index(s.quant)) {
    case 0: product<f32><<<s.m, 32>>>(w, x, s.m, s.k, s.n, y); break;
    case 1: product<f16><<<s.m, 32>>>(w, x, s.m, s.k, s.n, y); break;
    case 2: product<q4_1><<<s.m, 32>>>(w, x, s.m, s.k, s.n, y); break;
    case 3: product<q8_0><<<s.m, 32>>>(w, x, s.m, s.k, s.n, y); break;
    case 4: product<q4_k><<<s.m, 32>>>(w, x, s.m, s.k, s.n, y); break;
    default: product<q6_k><<<s.m, 32>>>(w, x, s.m, s.k, s.n, y);
    }
    std::vector<double> out((size_t)s.n * s.m);
    CK(cudaMemcpy(out.data(), y, out.size() * 8, cudaMemcpyDeviceToHost));
    cudaFree(y);
    return out;
}

static size_t x16_place(size_t rows, size_t i, size_t k) {
    size_t e = k % 32 / 16 * 4 + k % 16 / 8 * 2 + k % 2, t = k % 8 / 2;
    return rows == 1 ? (k / 256 * 32 + k / 32 % 8 * 4 + t) * 8 + e : ((k / 32 * (rows / 8) + i / 8) * 32 + i % 8 * 4 + t) * 8 + e;
}
static size_t x16_sums_at(size_t rows, size_t cols) { return ((rows == 1 ? (cols + 255) / 256 * 256 : cols) * rows * 2 + 63) / 64 * 64; }

// X16 on the device, and the same as plain fp32.
static void activations(int n, int k, u8 **x16, float **plain) {
    size_t sums = x16_sums_at(n, k), bytes = sums + (size_t)(k + 255) / 256 * 8 * n * 4;
    std::vector<u8> x(bytes);
    std::vector<float> p((size_t)n * k);
    u32 r = 4711;
    for (int i = 0; i < n; i++)
        for (int b = 0; b < k / 32; b++) {
            float sum = 0;
            for (int c = b * 32; c < b * 32 + 32; c++) {
                r ^= r << 13, r ^= r >> 17, r ^= r << 5;
                float v = ((float)(r & 2047) - 1024) / 512;    // exact as fp16
                p[(size_t)i * k + c] = v;
                int e = 0;
                float f = frexpf(fabsf(v), &e);
                u16 h = v == 0 ? 0 : (u16)((v < 0) << 15 | (e + 14) << 10 | ((int)(f * 2048) & 1023));
                memcpy(&x[x16_place(n, i, c) * 2], &h, 2);
                sum += v;
            }
            memcpy(&x[sums + ((size_t)b * n + i) * 4], &sum, 4);
        }
    CK(cudaMalloc(x16, bytes));
    CK(cudaMemcpy(*x16, x.data(), bytes, cudaMemcpyHostToDevice));
    CK(cudaMalloc(plain, p.size() * 4));
    CK(cudaMemcpy(*plain, p.data(), p.size() * 4, cudaMemcpyHostToDevice));
}

// ---- launches -------------------------------------------------------------------------------------------

static CUstream streams[2];     // all SMs, eight
static u8 *pool;                // weights
static size_t pool_bytes = (size_t)512 << 20;
static plan_step *step;
static float *parts;

struct Kernel { CUmodule module; CUfunction f; int registers, local; };

static Kernel load(const Spec &s, size_t i) {
    Kernel k;
    CK(cuModuleLoad(&k.module, image_path(i).c_str()));
    CK(cuModuleGetFunction(&k.f, k.module, "kern"));
    CK(cuFuncSetAttribute(k.f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)s.shared()));
    CK(cuFuncGetAttribute(&k.registers, CU_FUNC_ATTRIBUTE_NUM_REGS, k.f));
    CK(cuFuncGetAttribute(&k.local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, k.f));
    return k;
}

static void launch(const Kernel &k, const Spec &s, CUstream st, u8 *x, u8 *w, u8 *w2, void *out) {
    void *four[] = {&x, &w, &out, &parts, &step}, *five[] = {&x, &w, &w2, &out, &parts, &step};
    CK(cuLaunchKernel(k.f, s.grid(), (unsigned)s.g.splits, 1, s.threads(), 1, 1, s.shared(), st, s.gate_up() ? five : four, nullptr));
}

static double host_half(u16 h) {
    int e = h >> 10 & 31, f = h & 1023;
    double v = e ? ldexp(1024 + f, e - 25) : ldexp(f, -24);
    return h & 0x8000 ? -v : v;
}

static double check(const Kernel &k, const Spec &s) {
    size_t bytes = weight_bytes(s), outs = (size_t)s.n * ((s.m + 255) / 256 * 256) * 4;
    fill<<<1024, 256>>>(pool, bytes * 2, quant_index(s.quant), unit_bytes(quant_index(s.quant)));
    u8 *x;
    float *plain;
    void *out;
    activations(s.n, s.k, &x, &plain);
    CK(cudaMalloc(&out, outs));
    CK(cudaMemset(out, 0, outs));
    u8 *w2 = pool + bytes;
    CK(cudaDeviceSynchronize());
    launch(k, s, streams[0], x, pool, w2, out);
    CK(cudaDeviceSynchronize());
    std::vector<double> want = reference(s, pool, plain);
    std::vector<u8> got(outs);
    CK(cudaMemcpy(got.data(), out, outs, cudaMemcpyDeviceToHost));
    double error = 0, size = 0;
    if (s.gate_up()) {
        std::vector<double> up = reference(s, w2, plain);
        for (size_t i = 0; i < want.size(); i++) want[i] = want[i] / (1 + exp(-want[i])) * up[i];
    }
    for (size_t i = 0; i < want.size(); i++) {
        double v = s.gate_up() ? host_half(((u16 *)got.data())[x16_place(s.n, i / s.m, i % s.m)]) : ((float *)got.data())[i];
        error += (v - want[i]) * (v - want[i]);
        size += want[i] * want[i];
    }
    cudaFree(x), cudaFree(plain), cudaFree(out);
    return sqrt(error / size);
}

// Microseconds a launch.
static double measure(const Kernel &k, const Spec &s, int where, u8 *x, void *out) {
    size_t bytes = weight_bytes(s) * s.matrices();
    int copies = (int)std::min<size_t>(std::max<size_t>(pool_bytes / bytes, 1), where ? 24 : 64), launches = std::max(copies, 4);
    CUstream st = streams[where];
    CUgraph graph;
    CUgraphExec exec;
    CK(cuStreamBeginCapture(st, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < launches; i++) {
        u8 *w = pool + (size_t)(i % copies) * bytes;
        launch(k, s, st, x, w, w + bytes / 2, out);
    }
    CK(cuStreamEndCapture(st, &graph));
    CK(cuGraphInstantiate(&exec, graph, 0));
    CUevent e0, e1;
    cuEventCreate(&e0, 0), cuEventCreate(&e1, 0);
    std::vector<float> times;
    for (int r = 0; r < (where ? 3 : 7); r++) {
        float ms;
        cuEventRecord(e0, st);
        CK(cuGraphLaunch(exec, st));
        cuEventRecord(e1, st);
        CK(cuStreamSynchronize(st));
        cuEventElapsedTime(&ms, e0, e1);
        times.push_back(ms);
    }
    cuGraphExecDestroy(exec), cuGraphDestroy(graph), cuEventDestroy(e0), cuEventDestroy(e1);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2] * 1e3 / launches;
}

// ---- what to run ----------------------------------------------------------------------------------------

static std::vector<Spec> check_specs() {
    std::vector<Spec> out;
    for (const char *q : quant_names)
        for (int n : {1, 8, 16, 40, 48, 64}) {
            bool k_quant = strstr(q, "_k");
            for (int k : {k_quant ? 256 : 96, k_quant ? 2560 : 576}) {
                out.push_back({"check", "matmul", q, 600, k, n, 0, {n > 8 ? 4 : 1, n > 8 ? 1 : 4, 1, strcmp(q, "f32") ? 4 : 1, 1, n > 8 ? 3 : 1, 2}});
                out.push_back({"check", "matmul", q, 200, k, n, 1, {2, n > 8 ? 2 : 3, n > 40 ? 1 : 2, 2, 1, 1, 2}});
                out.push_back({"check", "gate_up", q, 96, k, n, 0, {n > 8 ? 4 : 2, n > 8 ? 1 : 4, n > 8 ? 1 : 2, 2, 1, n > 8 ? 2 : 1, 2}});
            }
        }
    return out;
}

static std::vector<Geometry> geometries(bool gate_up, int n, int k) {
    int slices = k / 256;
    if (n == 1) {
        if (gate_up) return {{4, 5, 1, 4, 1}, {2, 5, 2, 2, 2}, {2, 5, 2, 4, 2}, {4, 2, 1, 4, 3}, {2, 10, 2, 2, 1}};
        if (slices > 20) return {{1, 10, 1, 4, 2}, {1, 10, 1, 4, 3}, {1, 13, 1, 4, 2}, {1, 19, 1, 4, 1}, {1, 10, 1, 2, 3}};
        if (slices == 16) return {{1, 8, 1, 4, 3}, {1, 16, 1, 4, 1}, {1, 16, 1, 4, 2}, {1, 8, 1, 2, 4}, {1, 8, 2, 4, 2}};
        return {{1, 10, 1, 4, 2}, {1, 10, 1, 2, 2}, {1, 5, 1, 4, 5}, {2, 5, 1, 4, 3}, {1, 5, 2, 4, 3}};
    }
    std::vector<Geometry> out;
    for (int splits : {1, 2, 3, 4, 6})
        for (int stages : {2, 3, 4})
            for (Geometry g : {Geometry{4, 2, 1, 2, 1}, {4, 1, 1, 2, 2}, {4, 1, 2, 2, 2}, {4, 2, 2, 2, 1}, {8, 1, 1, 2, 1}, {8, 1, 2, 2, 1}}) {
                if (gate_up && splits > 2) continue;
                g.splits = splits, g.stages = stages;
                out.push_back(g);
            }
    return out;
}

struct Options {
    bool check = false, best = false;
    std::vector<int> n = {1, 8, 16, 24, 32, 40, 48, 64}, where = {0, 1};
    std::string quant, op;
    int smem = 228;
    std::vector<Geometry> geometry;
};

static std::vector<Spec> bench_specs(const Options &o) {
    struct Shape { const char *op, *source, *quant; int m, k, residual; };
    static const Shape shapes[] = {
        {"q", "matmul", "q4_k", 4096, 2560, 0},     {"k", "matmul", "q4_k", 1024, 2560, 0},
        {"v", "matmul", "q6_k", 1024, 2560, 0},     {"wo", "matmul", "q4_k", 2560, 4096, 1},
        {"gate_up", "gate_up", "q4_k", 9728, 2560, 0}, {"down", "matmul", "q4_k", 2560, 9728, 1},
        {"down", "matmul", "q6_k", 2560, 9728, 1},  {"head", "matmul", "q6_k", 151936, 2560, 0},
    };
    std::vector<Spec> out;
    for (int n : o.n)
        for (auto &s : shapes) {
            if ((!strcmp(s.op, "head") && n > 1) || (!o.quant.empty() && o.quant != s.quant) || (!o.op.empty() && o.op != s.op)) continue;
            for (Geometry g : o.geometry.empty() ? geometries(!strcmp(s.source, "gate_up"), n, s.k) : o.geometry)
{
                Spec spec{s.op, s.source, s.quant, s.m, s.k, n, s.residual, g};
                if (n == 8) spec.g = geometries(!strcmp(s.source, "gate_up"), 1, s.k)[0], spec.g.splits = 1;
                if (spec.shared() <= (unsigned)o.smem / g.blocks * 1024 - 1024) out.push_back(spec);
                if (n == 8) break;
            }
        }
    return out;
}

static void print(const Spec &s, const Kernel &k, int where, double us) {
    printf("%s n %2d %-7s %s %6d x %4d  wm %d wk %2d rt %d depth %d blocks %d splits %d stages %d regs %3d local %3d shared %6u: %8.2f us %7.1f GB/s\n",
           where ? "8 SM" : "all ", s.n, s.op, s.quant.c_str(), s.m, s.k, s.g.wm, s.g.wk, s.g.rt, s.g.depth, s.g.blocks, s.g.splits, s.g.stages, k.registers, k.local,
           s.shared(), us, (double)weight_bytes(s) * s.matrices() / us / 1e3);
}

static void bench(const std::vector<Spec> &specs, const Options &o) {
    void *out;
    CK(cudaMalloc(&out, (size_t)64 * 152064 * 4));
    fill<<<4096, 256>>>(pool, pool_bytes, 4, 2368);
    struct Best { double us; size_t i; };
    std::map<std::string, Best> best;
    std::map<std::pair<int, int>, std::pair<u8 *, float *>> xs;
    for (size_t i = 0; i < specs.size(); i++) {
        const Spec &s = specs[i];
        auto &x = xs[{s.n, s.k}];
        if (!x.first) activations(s.n, s.k, &x.first, &x.second);
        CK(cudaDeviceSynchronize());
        Kernel k = load(s, i);
        for (int where : o.where) {
            double us = measure(k, s, where, x.first, out);
            if (!o.best) print(s, k, where, us);
            auto &b = best[text("%d %2d %s %s", where, s.n, s.op, s.quant.c_str())];
            if (b.us == 0 || us < b.us) b = {us, i};
        }
        fflush(stdout);
        cuModuleUnload(k.module);
    }
    printf("fastest:\n");
    for (auto &b : best) {
        Kernel k = load(specs[b.second.i], b.second.i);
        print(specs[b.second.i], k, b.first[0] - '0', b.second.us);
        cuModuleUnload(k.module);
    }
    for (int where : o.where)
        for (int n : o.n) {
            auto us = [&](const char *op, const char *q) { return best[text("%d %2d %s %s", where, n, op, q)].us; };
            double sum = us("q", "q4_k") + 2 * us("k", "q4_k") + us("wo", "q4_k") + us("gate_up", "q4_k") + us("down", "q4_k");
            printf("%s n %2d: a layer of Q4_K %.1f us, without k and v as launches of their own %.1f\n", where ? "8 SM" : "all ", n, sum,
                   sum - 2 * us("k", "q4_k") + us("q", "q4_k") / 2);
        }
}

static Options read_options(int argc, char **argv) {
    Options o;
    for (int i = 1; i < argc; i++) {
        std::string a = argv[i], value = a.substr(std::min(a.size(), a.find('=') + 1));
        Geometry g;
        if (a == "check") o.check = true;
        else if (a == "best") o.best = true;
        else if (a.rfind("quant=", 0) == 0) o.quant = value;
        else if (a.rfind("op=", 0) == 0) o.op = value;
        else if (a.rfind("sm=", 0) == 0) o.where = value == "8" ? std::vector<int>{1} : value == "all" ? std::vector<int>{0} : o.where;
        else if (a.rfind("smem=", 0) == 0) o.smem = atoi(value.c_str());
        else if (sscanf(a.c_str(), "geometry=%d,%d,%d,%d,%d,%d,%d", &g.wm, &g.wk, &g.rt, &g.depth, &g.blocks, &g.splits, &g.stages) == 7) o.geometry.push_back(g);
        else if (a.rfind("n=", 0) == 0) {
            std::stringstream list(value);
            o.n.clear();
            for (std::string n; std::getline(list, n, ',');) o.n.push_back(atoi(n.c_str()));
        } else printf("unknown argument %s\n", a.c_str()), exit(2);
    }
    return o;
}

static void open_device() {
    CK(cudaFree(nullptr));
    CUstream st;
    CK(cuStreamCreate(&st, CU_STREAM_NON_BLOCKING));
    streams[0] = st;
    CUdevice d;
    CUdevResource all, eight, rest;
    CUdevResourceDesc desc;
    CUgreenCtx green;
    unsigned n = 1;
    CK(cuDeviceGet(&d, 0));
    CK(cuDeviceGetDevResource(d, &all, CU_DEV_RESOURCE_TYPE_SM));
    CK(cuDevSmResourceSplitByCount(&eight, &n, &all, &rest, 0, 8));
    CK(cuDevResourceGenerateDesc(&desc, &eight, 1));
    CK(cuGreenCtxCreate(&green, desc, d, CU_GREEN_CTX_DEFAULT_STREAM));
    CK(cuGreenCtxStreamCreate(&streams[1], green, CU_STREAM_NON_BLOCKING, 0));
    CK(cudaMalloc(&pool, pool_bytes));
    plan_step host = {};
    host.n_tokens = 512;
    CK(cudaMalloc(&step, sizeof host));
    CK(cudaMalloc(&parts, (size_t)64 * 32768 * 16 * 4));
    CK(cudaMemcpy(step, &host, sizeof host, cudaMemcpyHostToDevice));
}

static std::string device_arch() {
    // in a process of its own: CUDA must not be open when the workers are forked
    int link[2], cc[2] = {0, 0};
    if (pipe(link)) exit(1);
    if (fork() == 0) {
        cudaDeviceGetAttribute(&cc[0], cudaDevAttrComputeCapabilityMajor, 0);
        cudaDeviceGetAttribute(&cc[1], cudaDevAttrComputeCapabilityMinor, 0);
        _exit(write(link[1], cc, sizeof cc) != sizeof cc);
    }
    if (read(link[0], cc, sizeof cc) != sizeof cc || !cc[0]) printf("no CUDA device\n"), exit(1);
    wait(nullptr);
    return text("-arch=sm_%d%d", cc[0], cc[1]);
}

int main(int argc, char **argv) {
    Options o = read_options(argc, argv);
    char name[] = "/tmp/bench_cuda_XXXXXX";
    if (!mkdtemp(name)) return 1;
    folder = name;
    arch = device_arch();
    std::vector<Spec> specs = o.check ? check_specs() : bench_specs(o);
    compile_all(specs);
    open_device();
    int bad = 0;
    if (o.check) {
        double worst = 0;
        for (size_t i = 0; i < specs.size(); i++) {
            Kernel k = load(specs[i], i);
            double e = check(k, specs[i]), bound = specs[i].gate_up() ? 4e-4 : 2e-5;    // gate_up's output is rounded to fp16
            worst = std::max(worst, specs[i].gate_up() ? 0 : e);
            if (!(e <= bound)) bad++, printf("FAIL %s %s: %.2e\n", specs[i].source, specs[i].defines().c_str(), e);
            cuModuleUnload(k.module);
        }
        printf("%zu kernels checked, %d wrong; largest error of matmul %.1e\n", specs.size(), bad, worst);
    } else bench(specs, o);
    for (size_t i = 0; i < specs.size(); i++) unlink(image_path(i).c_str());
    rmdir(name);
    return bad != 0;
}
