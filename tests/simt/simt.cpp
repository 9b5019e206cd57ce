// Threads as fibers, who runs next, launches, and how failures are reported.
#include "simt_internal.h"
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <csetjmp>
#include <csignal>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(SIMT_UCONTEXT)
#elif defined(__x86_64__)
// The jump instead of a ret: the target is predicted by address, and a ret would miss every time.
asm(R"(
    .text
    .globl simt_switch
    .type simt_switch, @function
simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmpq *%rcx
    .size simt_switch, .-simt_switch
)");
#elif defined(__aarch64__)
asm(R"(
    .text
    .globl simt_switch
    .type simt_switch, %function
simt_switch:
    stp x29, x30, [sp, #-160]!
    stp x19, x20, [sp, #16]
    stp x21, x22, [sp, #32]
    stp x23, x24, [sp, #48]
    stp x25, x26, [sp, #64]
    stp x27, x28, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #16]
    ldp x21, x22, [sp, #32]
    ldp x23, x24, [sp, #48]
    ldp x25, x26, [sp, #64]
    ldp x27, x28, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    ldp x29, x30, [sp], #160
    br x30
    .size simt_switch, .-simt_switch
)");
#endif

namespace simt {

Self *self;
dim3 block_dim, grid_dim;
Machine machine;
bool checked;

#if defined(SIMT_ASAN)
constexpr size_t stack_bytes = 256 << 10;
#else
constexpr size_t stack_bytes = 64 << 10;
#endif
constexpr size_t page_bytes = 4096;

static Thread *running() { return static_cast<Thread *>(self); }

// ---- failures --------------------------------------------------------------------------------

// "kernels.cuh:21 < kernels.cuh:76" for a place in the code and whom it was inlined into, if
// addr2line is there to tell.
static std::string source_line(const void *pc) {
    Dl_info info;
    char command[1200], line[400];
    if (!dladdr(pc, &info)) return "?";
    // A program knows its own name as it was called.
    bool library = strchr(info.dli_fname, '/') && strstr(info.dli_fname, ".so");
    auto *header = static_cast<const ElfW(Ehdr) *>(info.dli_fbase);
    u64 base = header->e_type == ET_DYN ? reinterpret_cast<u64>(info.dli_fbase) : 0;
    snprintf(command, sizeof command, "addr2line -si -e '%.1000s' %#llx 2>/dev/null",
             library ? info.dli_fname : ("/proc/" + std::to_string(getpid()) + "/exe").c_str(),
             static_cast<unsigned long long>(reinterpret_cast<u64>(pc) - 1 - base));
    std::string text;
    if (FILE *f = popen(command, "r")) {
        while (fgets(line, sizeof line, f)) {
            line[strcspn(line, " \n")] = 0;
            if (strncmp(line, "simt.h:", 7) != 0)
                text += text.empty() ? line : std::string(" < ") + line;
        }
        pclose(f);
    }
    return text.empty() ? "?" : text;
}

std::string block_name(u32 index) {
    std::string x = std::to_string(index % grid_dim.x);
    if (grid_dim.y * grid_dim.z == 1) return x;
    return x + "," + std::to_string(index / grid_dim.x % grid_dim.y) + "," +
           std::to_string(index / grid_dim.x / grid_dim.y);
}

static void set_error(const char *format, va_list args) {
    char text[3000];
    int n = 0;
    if (Thread *t = running())
        n = snprintf(text, sizeof text, "block %s warp %u lane %u: ",
                     block_name(t->block->index).c_str(), t->warp->index, t->lane);
    vsnprintf(text + n, sizeof text - static_cast<size_t>(n), format, args);
    machine.result.ok = false;
    machine.result.error = text;
}

void fail(const void *pc, const void *other_pc, const char *format, ...) {
    va_list args;
    va_start(args, format);
    set_error(format, args);
    va_end(args);
    machine.pc[0] = pc;
    machine.pc[1] = other_pc;
    Fiber &mine = running()->fiber;
    self = nullptr;
    fiber_switch(mine, machine.main);
    abort();  // nobody returns to a failed thread
}

static const char *op_name(Op op) {
    static const char *const names[] = {"running",   "shfl",       "warp_ballot",
                                        "warp_sync", "mma",
                                        "ldmatrix",  "block_sync", "ld_acquire"};
    return names[static_cast<int>(op)];
}

// One clause for each group of lanes that stands at the same place.
static std::string describe(const Warp &w) {
    std::string text;
    u32 left = ~0u;
    while (left) {
        u32 first = static_cast<u32>(__builtin_ctz(left)), group = 0;
        bool gone = !(w.alive >> first & 1);
        for (u32 i = first; i < 32; i++) {
            bool same = gone ? !(w.alive >> i & 1) : (w.alive >> i & 1) && w.key[i] == w.key[first];
            if ((left >> i & 1) && same) group |= 1u << i;
        }
        left &= ~group;
        char line[300];
        if (gone)
            snprintf(line, sizeof line, "lanes %08x have exited; ", group);
        else
            snprintf(line, sizeof line, "lanes %08x are at %s %s:%d; ", group, op_name(w.op[first]),
                     w.at[first].file ? w.at[first].file : "?", w.at[first].line);
        text += line;
    }
    return text;
}

// Warps that stand at the same places share a line.
static std::string describe_all() {
    std::vector<std::pair<std::string, std::string>> lines;  // where, who
    for (Warp *w : machine.warps) {
        if (!w->block->active) continue;
        std::string where = describe(*w);
        std::string who = block_name(w->block->index) + "/" + std::to_string(w->index);
        auto same = [&](const auto &line) { return line.first == where; };
        auto it = std::find_if(lines.begin(), lines.end(), same);
        if (it == lines.end())
            lines.push_back({where, "\n    block/warp " + who});
        else if (it->second.size() < 200)
            it->second += " " + who;
    }
    std::string text;
    for (auto &line : lines) text += line.second + ": " + line.first;
    return text;
}

static sigjmp_buf fault_jump;

// A guard page, a misaligned vector access, or the watchdog. Leaves the fiber for good.
static void on_signal(int number, siginfo_t *info, void *context) {
    Thread *t = running();
    if (!t) {
        signal(number, SIG_DFL);
        return;
    }
    auto *u = static_cast<ucontext_t *>(context);
#if defined(__x86_64__)
    u64 pc = static_cast<u64>(u->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
    u64 pc = u->uc_mcontext.pc;
#else
    u64 pc = 0;
#endif
    char text[300];
    char *p = static_cast<char *>(info->si_addr);
    if (number == SIGALRM)
        snprintf(text, sizeof text, "no other thread got to run for %u s: a loop without a call",
                 machine.options.watchdog_s);
    else if (p >= t->mapping && p < t->mapping + page_bytes)
        snprintf(text, sizeof text, "stack overflow: more than %zu KiB of local memory",
                 stack_bytes >> 10);
    else if (Region *r = find_region(p, t->block))
        snprintf(text, sizeof text, "access outside '%s' (%zu bytes) at byte %td", r->name,
                 r->bytes, p - r->base);
    else
        snprintf(text, sizeof text, "bad or misaligned address %p", static_cast<void *>(p));
    machine.result.ok = false;
    snprintf(text + strlen(text), sizeof text - strlen(text), ", block %s warp %u lane %u",
             block_name(t->block->index).c_str(), t->warp->index, t->lane);
    machine.result.error = text;
    machine.pc[0] = reinterpret_cast<void *>(pc + 1);
    machine.pc[1] = nullptr;
    self = nullptr;
    siglongjmp(fault_jump, 1);
}

static void catch_signals() {
    static bool done;
    if (done) return;
    done = true;
    static char stack[64 << 10];
    stack_t alternative = {};
    alternative.ss_sp = stack;
    alternative.ss_size = sizeof stack;
    sigaltstack(&alternative, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGALRM, &action, nullptr);
#if !defined(SIMT_ASAN)
    for (int number : {SIGSEGV, SIGBUS}) sigaction(number, &action, nullptr);
#endif
}

// ---- who runs next ---------------------------------------------------------------------------

u32 random_below(u32 n) {
    u64 &x = machine.random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return static_cast<u32>((x >> 32) * n >> 32);
}

static Thread *lane_of(Warp *w) {
    u32 from = machine.options.seed ? random_below(32) : w->last + 1;
    u32 later = from > 31 ? 0 : w->ready & ~0u << from;
    return w->lane[__builtin_ctz(later ? later : w->ready)];
}

// The current warp goes on as long as it can, unless `leave` it is asked for.
static Thread *choose(Warp *w, bool leave) {
    if (w->ready && !leave) return lane_of(w);
    u32 n = static_cast<u32>(machine.warps.size());
    u32 from = machine.options.seed ? random_below(n) : w->position;
    for (u32 i = 1; i <= n; i++) {
        Warp *v = machine.warps[(from + i) % n];
        if (v->ready) return lane_of(v);
    }
    return nullptr;
}

static void run(Thread *next) {
    Thread *t = running();
    if (next == t) return;
    self = next;
    next->warp->last = next->lane;
    machine.result.stats.switches++;
    fiber_switch(t->fiber, next->fiber);
}

void wait_here() {
    Thread *t = running(), *next = choose(t->warp, false);
    if (!next) fail(nullptr, nullptr, "deadlock: no thread can go on%s", describe_all().c_str());
    run(next);
}

void give_way(bool to_anyone) {
    if (to_anyone || machine.options.seed)
        run(choose(running()->warp, to_anyone || !random_below(8)));
}

static void thread_exit() {
    Thread *t = running();
    Warp *w = t->warp;
    Block *b = t->block;
    w->ready &= ~(1u << t->lane);
    w->alive &= ~(1u << t->lane);
    machine.idle = 0;
    b->n_alive--;
    // A barrier does not wait for threads that have exited.
    if (b->n_alive && b->barrier[0].arrived == b->n_alive) block_sync_complete(b, 0);
    if (!b->n_alive) {
        b->active = false;
        self = nullptr;
        fiber_switch(t->fiber, machine.main);
    } else {
        wait_here();
    }
    abort();  // nobody runs an exited thread
}

static void thread_main() {
    fiber_entered(machine.main);
    machine.kernel(machine.args);
    thread_exit();
}

// ---- launches --------------------------------------------------------------------------------

// Stacks, warps and blocks are kept from launch to launch.
struct Pool {
    std::vector<Thread *> threads;
    std::vector<std::unique_ptr<Warp>> warps;
    std::vector<std::unique_ptr<Block>> blocks;
};
static Pool pool;

static Thread *thread_make(size_t number) {
    void *p = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) abort();
    mprotect(p, page_bytes, PROT_NONE);
    // Tops at the same distance from a page would share a few sets of the L1 cache: spread them.
    size_t spread = number % 32 * 128;
    size_t top = (stack_bytes - sizeof(Thread) - spread) & ~size_t(63);
    auto *t = new (static_cast<char *>(p) + top) Thread();
    t->mapping = static_cast<char *>(p);
    return t;
}

static Block *block_make(u32 number, u32 n_warps) {
    while (pool.blocks.size() <= number) {
        auto b = std::make_unique<Block>();
        void *p = mmap(nullptr, shared_max + 2 * page_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) abort();
        mprotect(p, page_bytes, PROT_NONE);
        mprotect(static_cast<char *>(p) + page_bytes + shared_max, page_bytes, PROT_NONE);
        b->shared = static_cast<char *>(p) + page_bytes;
        b->shared_cells = checked ? static_cast<Cell *>(calloc(shared_max, sizeof(Cell))) : nullptr;
        pool.blocks.push_back(std::move(b));
    }
    Block *b = pool.blocks[number].get();
    b->warps.clear();
    for (u32 i = 0; i < n_warps; i++) {
        u32 position = number * n_warps + i;
        if (pool.warps.size() <= position) pool.warps.push_back(std::make_unique<Warp>());
        Warp *w = pool.warps[position].get();
        w->block = b;
        w->index = i;
        w->position = position;
        w->known.assign(checked ? n_warps : 0, 0);
        w->foreign.clear();
        for (u32 lane = 0; lane < 32; lane++) {
            u32 k = position * 32 + lane;
            if (pool.threads.size() <= k) pool.threads.push_back(thread_make(k));
            Thread *t = w->lane[lane] = pool.threads[k];
            t->block = b;
            t->warp = w;
            t->lane = lane;
            t->thread_idx = {i * 32 + lane, 0, 0};
        }
        b->warps.push_back(w);
        machine.warps.push_back(w);
    }
    return b;
}

static void block_start(Block *b, u32 index) {
    b->index = index;
    b->active = true;
    b->n_alive = static_cast<u32>(b->warps.size()) * 32;
    for (Barrier &bar : b->barrier) bar = Barrier();
    b->keys.clear();
    b->regions.clear();
    for (Warp *w : b->warps) {
        w->ready = w->alive = ~0u;
        w->waiting = 0;
        w->last = 31;
        w->grid_index = index * static_cast<u32>(b->warps.size()) + w->index;
        memset(w->key, 0, sizeof w->key);
        memset(w->op, 0, sizeof w->op);
        memset(w->at, 0, sizeof w->at);
        for (Thread *t : w->lane) {
            t->block_idx = {index % grid_dim.x, index / grid_dim.x % grid_dim.y,
                            index / grid_dim.x / grid_dim.y};
            t->group = 0;
            t->waited = false;
            w->copies[t->lane].clear();
            fiber_make(t->fiber, t->mapping + page_bytes,
                       static_cast<size_t>(reinterpret_cast<char *>(t) - t->mapping) - page_bytes,
                       thread_main);
        }
    }
    b->shared_bytes = 0;
    order_block_start(b);
    add_shared_region(b, 0, machine.dynamic_bytes, "dynamic shared memory");
}

// NULL, or what is wrong with a launch.
static const char *refusal(dim3 grid, dim3 block, u32 smem_bytes, const Options &o) {
    if (block.x == 0 || block.x % 32 || block.x > 1024 || block.y * block.z != 1)
        return "block size is not a multiple of 32 up to 1024 in one dimension";
    u64 n_blocks = static_cast<u64>(grid.x) * grid.y * grid.z;
    if (n_blocks == 0 || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535)
        return "grid is empty or larger than CUDA allows";
    if (n_blocks * (block.x / 32) >= 1u << 26) return "more warps than the emulator counts";
    if (smem_bytes > o.smem_max || smem_bytes > shared_max)
        return "more dynamic shared memory than the target has";
    if (o.mma_width > 16 || (o.mma_width & (o.mma_width - 1)) || o.mma_bits < 23 || o.mma_bits > 25)
        return "mma_width is not 0 or a power of two up to 16, or mma_bits not 23 to 25";
    return nullptr;
}

static void run_blocks(const std::vector<Block *> &slots, std::vector<u32> &order) {
    if (sigsetjmp(fault_jump, 1) != 0) return;
    while (machine.result.ok) {
        for (Block *b : slots)
            if (!b->active && !order.empty()) {
                block_start(b, order.back());
                order.pop_back();
            }
        Thread *first = choose(machine.warps[0], false);
        if (!first) return;
        self = first;
        first->warp->last = first->lane;
        fiber_switch(machine.main, first->fiber);
    }
}

Result run_grid(dim3 grid, dim3 block, u32 smem_bytes, const Options &options,
                void (*kernel)(const void *), const void *args, size_t args_bytes) {
    machine.result = Result();
    if (const char *why = refusal(grid, block, smem_bytes, options)) {
        machine.result.ok = false;
        machine.result.error = why;
        return machine.result;
    }
    u32 n = grid.x * grid.y * grid.z;
    machine.options = options;
    machine.kernel = kernel;
    machine.args = static_cast<const char *>(args);
    machine.args_bytes = args_bytes;
    machine.random = options.seed * 0x9e3779b97f4a7c15u + 1;
    machine.dynamic_bytes = smem_bytes;
    machine.grid_warps = n * (block.x / 32);
    machine.idle = 0;
    machine.warps.clear();
    machine.first_epoch = ++machine.last_epoch;
    machine.pc[0] = machine.pc[1] = nullptr;
    block_dim = block;
    grid_dim = grid;
    regions_new_launch();
    catch_signals();

    std::vector<u32> order(n);  // last one first
    for (u32 i = 0; i < n; i++) order[i] = n - 1 - i;
    if (options.seed)
        for (u32 i = n - 1; i > 0; i--) std::swap(order[i], order[random_below(i + 1)]);
    std::vector<Block *> slots;
    for (u32 i = 0; i < std::min(options.resident, n); i++) {
        Block *b = block_make(i, block.x / 32);
        b->active = false;
        for (Warp *w : b->warps) w->ready = w->alive = 0;
        slots.push_back(b);
    }
    alarm(options.watchdog_s);
    run_blocks(slots, order);
    alarm(0);
    self = nullptr;
    for (const void *pc : machine.pc)
        if (pc)
            machine.result.error +=
                (pc == machine.pc[0] ? "\n    here: " : "\n    and:  ") + source_line(pc);
    return machine.result;
}

}  // namespace simt
