// Device memory and, in a checked build, every load and store of the kernels.
//
// Kernels compiled with -fsanitize=thread call a hook before each access; this file defines the
// hooks instead of linking the sanitizer's runtime. Races are found by order, not by luck: a warp's
// run is cut into stretches (epochs) by its synchronisations, each warp knows the last stretch of
// each other warp that is ordered before its own, and a byte remembers its last writer and two last
// readers. Within a warp only warp_sync, block_sync and release order memory; shfl, mma and
// ldmatrix do not. What one lane acquires or releases counts for its whole warp.
#include "simt_internal.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <link.h>
#include <map>
#include <sys/mman.h>

namespace simt {

static std::vector<Region> regions;  // global memory, by address
static std::map<const void *, std::vector<u32>> released;
constexpr size_t page_bytes = 4096;

bool is_checked() { return checked; }

// ---- regions ---------------------------------------------------------------------------------

void *device_alloc(size_t bytes, const char *name) {
    size_t inside = (bytes + page_bytes - 1) / page_bytes * page_bytes,
           all = inside + 2 * page_bytes;
    void *p = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return nullptr;
    char *first = static_cast<char *>(p) + page_bytes;
    mprotect(p, page_bytes, PROT_NONE);
    mprotect(first + inside, page_bytes, PROT_NONE);
    char *base = first + inside - (bytes + 255) / 256 * 256;
    memset(first, 0xff, inside);
    Region r = {};
    r.base = base;
    r.bytes = bytes;
    r.name = name;
    r.cells = checked ? static_cast<Cell *>(calloc(bytes, sizeof(Cell))) : nullptr;
    r.mapping = static_cast<char *>(p);
    r.mapping_bytes = all;
    auto after = [](const Region &x, const Region &y) { return x.base < y.base; };
    regions.insert(std::upper_bound(regions.begin(), regions.end(), r, after), r);
    return base;
}

static size_t region_index(const void *p) {
    for (size_t i = 0; i < regions.size(); i++)
        if (regions[i].base == p) return i;
    abort();  // not from device_alloc
}

void device_free(void *p) {
    if (!p) return;
    size_t i = region_index(p);
    free(regions[i].cells);
    free(regions[i].asked);
    free(regions[i].askers);
    munmap(regions[i].mapping, regions[i].mapping_bytes);
    regions.erase(regions.begin() + static_cast<std::ptrdiff_t>(i));
}

void device_read_only(void *p) {
    Region &r = regions[region_index(p)];
    r.read_only = true;
    free(r.cells);
    r.cells = nullptr;
}

void device_from_host(void *p) { regions[region_index(p)].from_host = true; }

void device_count(void *p) {
    Region &r = regions[region_index(p)];
    if (r.asked) return;
    r.asked = static_cast<u8 *>(calloc(r.bytes, 1));
    r.askers = static_cast<Asker *>(calloc(r.bytes, sizeof(Asker)));
}

Requested device_requested(void *p) {
    const Region &r = regions[region_index(p)];
    Requested all = {r.asked_bytes, {}};
    const u8 *end = r.asked + (r.asked_bytes ? r.bytes : 0), *at = r.asked;
    auto next = [end](const u8 *from, int what) {
        auto *found = from < end ? memchr(from, what, static_cast<size_t>(end - from)) : nullptr;
        return found ? static_cast<const u8 *>(found) : end;
    };
    while ((at = next(at, 1)) < end) {
        const u8 *first = at;
        at = next(at, 0);
        all.ranges.push_back({static_cast<size_t>(first - r.asked), static_cast<size_t>(at - r.asked)});
    }
    return all;
}

void count_request(const void *p, u32 bytes) {
    Thread *t = static_cast<Thread *>(self);
    Region *r = find_region(p, t->block);
    if (!r || !r->asked) return;
    auto first = static_cast<size_t>(static_cast<const char *>(p) - r->base);
    u32 warp = t->warp->grid_index, lane = 1u << t->lane;
    for (size_t i = first; i < first + bytes; i++) {
        Asker &a = r->askers[i];
        bool alike = r->asked[i] && a.warp == warp && !(a.lanes & lane);
        r->asked_bytes += !alike;
        a = {warp, alike ? a.lanes | lane : lane};
        r->asked[i] = 1;
    }
}

void regions_new_launch() {
    for (Region &r : regions) {
        r.first_epoch = machine.first_epoch;
        if (r.asked_bytes) memset(r.asked, 0, r.bytes);
        r.asked_bytes = 0;
    }
    released.clear();
}

// The region that p lies in, or whose guard it lies in.
Region *find_region(const void *p, Block *b) {
    auto *c = static_cast<const char *>(p);
    if (c >= b->shared - page_bytes && c < b->shared + shared_max + page_bytes) {
        for (size_t i = b->regions.size(); i-- > 0;)
            if (c >= b->regions[i].base) return &b->regions[i];
        return &b->regions[0];
    }
    auto holds = [c](const Region &r) { return c >= r.mapping && c < r.mapping + r.mapping_bytes; };
    static size_t last;
    if (last < regions.size() && holds(regions[last])) return &regions[last];
    auto after = [](const char *x, const Region &r) { return x < r.mapping; };
    auto it = std::upper_bound(regions.begin(), regions.end(), c, after);
    if (it == regions.begin() || !holds(*--it)) return nullptr;
    last = static_cast<size_t>(it - regions.begin());
    return &*it;
}

void add_shared_region(Block *b, u32 offset, u32 bytes, const char *name) {
    Region r = {};
    r.base = b->shared + offset;
    r.bytes = bytes;
    r.name = name;
    r.shared = true;
    r.first_epoch = b->first_epoch;
    r.cells = checked ? b->shared_cells + offset : nullptr;
    b->regions.push_back(r);
    b->shared_used = offset + bytes;
    b->shared_bytes += bytes;
    memset(r.base, 0xff, bytes);
}

char *shared_dynamic() { return static_cast<Thread *>(self)->block->shared; }

char *shared_array(const void *key, const char *name, u32 bytes) {
    Block *b = static_cast<Thread *>(self)->block;
    for (size_t i = 0; i < b->keys.size(); i++)
        if (b->keys[i] == key) return b->regions[i + 1].base;
    // At least 64 bytes of nobody's between arrays.
    u32 offset = (b->shared_used + 64 + 127) & ~127u, all = b->shared_bytes + bytes;
    if (all - machine.dynamic_bytes > 48 << 10 || all > machine.options.smem_max ||
        offset + bytes > shared_max)
        fail(nullptr, nullptr,
             "'%s' makes it %u bytes of shared memory: more than there is, or "
             "more than 48 KiB not dynamic",
             name, all);
    add_shared_region(b, offset, bytes, name);
    b->keys.push_back(key);
    return b->shared + offset;
}

// ---- order -----------------------------------------------------------------------------------

static void next_epoch(Warp *w) {
    w->epoch++;
    machine.last_epoch = std::max(machine.last_epoch, w->epoch);
}

void order_block_start(Block *b) {
    b->first_epoch = ++machine.last_epoch;
    for (Warp *w : b->warps) {
        w->epoch = b->first_epoch;
        std::fill(w->known.begin(), w->known.end(), machine.first_epoch - 1);
        w->foreign.clear();
    }
}

static void raise(std::vector<u32> &to, const std::vector<u32> &from) {
    if (to.size() < from.size()) to.resize(from.size());
    for (size_t i = 0; i < from.size(); i++) to[i] = std::max(to[i], from[i]);
}

void order_warps(const std::vector<Warp *> &warps, const Barrier *arrived) {
    if (!checked) return;
    std::vector<u32> known, foreign;
    if (arrived) known = arrived->known, foreign = arrived->foreign;
    for (Warp *w : warps) {
        raise(known, w->known);
        raise(foreign, w->foreign);
    }
    for (Warp *w : warps) known[w->index] = w->epoch;
    for (Warp *w : warps) {
        w->known = known;
        w->foreign = foreign;
        next_epoch(w);
    }
}

// What the warp did so far is done for those that the barrier lets go; what it does from now on is not.
void order_arrive(Warp *w, Barrier &bar) {
    if (!checked) return;
    raise(bar.known, w->known);
    raise(bar.foreign, w->foreign);
    bar.known[w->index] = std::max(bar.known[w->index], w->epoch);
    next_epoch(w);
}

void order_release(const void *flag) {
    if (!checked) return;
    Warp *w = static_cast<Thread *>(self)->warp;
    w->known[w->index] = w->epoch;
    std::vector<u32> &all = released[flag];
    all.resize(machine.grid_warps);
    raise(all, w->foreign);
    u32 first = w->grid_index - w->index;
    for (size_t i = 0; i < w->known.size(); i++)
        all[first + i] = std::max(all[first + i], w->known[i]);
    next_epoch(w);
}

void order_acquire(const void *flag) {
    if (!checked) return;
    Warp *w = static_cast<Thread *>(self)->warp;
    auto it = released.find(flag);
    if (it == released.end()) return;
    raise(w->foreign, it->second);
    u32 first = w->grid_index - w->index;
    for (size_t i = 0; i < w->known.size(); i++)
        w->known[i] = std::max(w->known[i], it->second[first + i]);
}

static bool is_before(const Stamp &s, const Region &r, const Thread *t) {
    const Warp *w = t->warp;
    u32 in_block = s.warp - (w->grid_index - w->index);
    if (s.epoch < r.first_epoch) return true;
    if (s.warp == w->grid_index) return s.lane == t->lane || s.epoch < w->epoch;
    if (in_block < w->known.size()) return s.epoch <= w->known[in_block];
    return s.warp < w->foreign.size() && s.epoch <= w->foreign[s.warp];
}

// ---- one access ------------------------------------------------------------------------------

// Within what the loader has mapped of this program and its libraries.
static bool in_an_object(const char *p, u32 bytes) {
    static struct Span {
        const char *first, *end;
    } last;
    if (p >= last.first && p + bytes <= last.end) return true;
    Span span = {p, p + bytes};
    auto look = [](dl_phdr_info *info, size_t, void *data) {
        auto *wanted = static_cast<Span *>(data);
        for (int i = 0; i < info->dlpi_phnum; i++) {
            const auto &h = info->dlpi_phdr[i];
            auto *first = reinterpret_cast<const char *>(info->dlpi_addr + h.p_vaddr);
            if (h.p_type != PT_LOAD || wanted->first < first || wanted->end > first + h.p_memsz) continue;
            *wanted = {first, first + h.p_memsz};
            return 1;
        }
        return 0;
    };
    if (!dl_iterate_phdr(look, &span)) return false;
    last = span;
    return true;
}

static void race(const char *what, const Stamp &s, const Region &r, const char *p, const void *pc) {
    u32 n = static_cast<u32>(static_cast<Thread *>(self)->block->warps.size());
    fail(pc, s.pc, "race on '%s' at byte %td: %s by block %s warp %u lane %u", r.name, p - r.base,
         what, block_name(s.warp / n).c_str(), s.warp % n, s.lane);
}

static void record(Region &r, const char *p, u32 bytes, Access kind, const void *pc) {
    Thread *t = static_cast<Thread *>(self);
    bool reads = kind == Access::read || kind == Access::nc_read || kind == Access::atomic_read;
    bool atomic = kind == Access::atomic_read || kind == Access::atomic_write;
    Stamp now = {t->warp->epoch, t->warp->grid_index, t->lane, atomic, pc};
    for (u32 i = 0; i < bytes; i++) {
        Cell &c = r.cells[p - r.base + i];
        if (!(c.write.atomic && atomic) && !is_before(c.write, r, t))
            race(reads ? "this read is not ordered after a write"
                       : "this write is not ordered after a write",
                 c.write, r, p + i, pc);
        bool written = c.write.epoch >= r.first_epoch;
        if (kind == Access::nc_read && written)
            fail(pc, c.write.pc, "'%s' is written by this launch: no read-only load", r.name);
        if (!reads) {
            for (const Stamp &s : c.read)
                if (!(s.atomic && atomic) && !is_before(s, r, t))
                    race("this write is not ordered after a read", s, r, p + i, pc);
            c.write = now;
            continue;
        }
        if (r.shared && !written)
            fail(pc, nullptr, "uninitialised read of '%s' at byte %td", r.name, p + i - r.base);
        // Two readers are kept: whoever writes, at least one of them is somebody else.
        if (c.read[0].warp != now.warp || c.read[0].lane != now.lane) c.read[1] = c.read[0];
        c.read[0] = now;
    }
}

void access(const void *p, u32 bytes, Access kind, const void *pc) {
    Thread *t = static_cast<Thread *>(self);
    auto *c = static_cast<const char *>(p);
    bool writes = kind == Access::write || kind == Access::atomic_write;
    const char *what = writes ? "write" : "read";
    Region *r = find_region(p, t->block);
    if (!r) {
        bool argument = c >= machine.args && c + bytes <= machine.args + machine.args_bytes;
        if (!writes && (argument || in_an_object(c, bytes))) return;
        fail(pc, nullptr, "%s of %u bytes at %p, which is not device memory", what, bytes, p);
    }
    if (c < r->base || c + bytes > r->base + r->bytes)
        fail(pc, nullptr, "%s of %u bytes at byte %td of '%s', which has %zu", what, bytes,
             c - r->base, r->name, r->bytes);
    if (bytes <= 16 && (bytes & (bytes - 1)) == 0 && reinterpret_cast<u64>(p) % bytes)
        fail(pc, nullptr, "misaligned %s of %u bytes at byte %td of '%s'", what, bytes, c - r->base,
             r->name);
    if (!r->shared && !r->read_only && !(r->from_host && !writes) && !t->waited)
        fail(pc, nullptr,
             "'%s' is touched before grid_dependency_wait: a launch before may be at work on it",
             r->name);
    if (writes) r->from_host = false;
    if (r->read_only) {
        if (writes) fail(pc, nullptr, "write to read-only '%s'", r->name);
    } else if (checked) {
        record(*r, c, bytes, kind, pc);
    }
}

// Called by compiled code: most accesses are to a thread's own stack.
static inline void hook(const void *p, u64 bytes, Access kind, bool aligned, const void *pc) {
    Thread *t = static_cast<Thread *>(self);
    if (!t) return;  // the host's own code
    auto *c = static_cast<const char *>(p);
    if (c >= t->mapping && c < reinterpret_cast<const char *>(t + 1)) return;
    if (aligned) return access(p, static_cast<u32>(bytes), kind, pc);
    for (u64 i = 0; i < bytes; i++) access(c + i, 1, kind, pc);
}

[[noreturn]] __attribute__((unused)) static void undefined(const char *what, Where at) {
    if (self) fail(nullptr, nullptr, "%s at %s:%d", what, at.file, at.line);
    fprintf(stderr, "%s:%d: %s\n", at.file, at.line, what);
    abort();
}

}  // namespace simt

// ---- the compiler's hooks --------------------------------------------------------------------

#define HERE __builtin_return_address(0)
#define SIMT_HOOKS(n)                                                                             \
    void __tsan_read##n(void *p) { simt::hook(p, n, simt::Access::read, true, HERE); }            \
    void __tsan_write##n(void *p) { simt::hook(p, n, simt::Access::write, true, HERE); }          \
    void __tsan_unaligned_read##n(void *p) { simt::hook(p, n, simt::Access::read, false, HERE); } \
    void __tsan_unaligned_write##n(void *p) { simt::hook(p, n, simt::Access::write, false, HERE); }

extern "C" {
SIMT_HOOKS(1)
SIMT_HOOKS(2)
SIMT_HOOKS(4)
SIMT_HOOKS(8)
SIMT_HOOKS(16)
void __tsan_read_range(void *p, long n) {
    simt::hook(p, static_cast<u64>(n), simt::Access::read, false, HERE);
}
void __tsan_write_range(void *p, long n) {
    simt::hook(p, static_cast<u64>(n), simt::Access::write, false, HERE);
}
// Newer compilers call these; for older ones the build renames the calls in kernel objects.
void *__tsan_memcpy(void *to, const void *from, size_t n) {
    simt::hook(from, n, simt::Access::read, false, HERE);
    simt::hook(to, n, simt::Access::write, false, HERE);
    return memcpy(to, from, n);
}
void *__tsan_memmove(void *to, const void *from, size_t n) {
    simt::hook(from, n, simt::Access::read, false, HERE);
    simt::hook(to, n, simt::Access::write, false, HERE);
    return memmove(to, from, n);
}
void *__tsan_memset(void *to, int v, size_t n) {
    simt::hook(to, n, simt::Access::write, false, HERE);
    return memset(to, v, n);
}
// The guard of a function-local static, in host code.
char __tsan_atomic8_load(const volatile char *p, int) {
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_init() { simt::checked = true; }
// Undefined behaviour in a kernel: the data of each handler begins with the place in the source.
#if !defined(SIMT_ASAN)
#define SIMT_UNDEFINED(name, what) \
    void __ubsan_handle_##name##_abort(const simt::Where *at) { simt::undefined(what, *at); }
SIMT_UNDEFINED(type_mismatch_v1, "misaligned access")
SIMT_UNDEFINED(out_of_bounds, "index out of an array")
SIMT_UNDEFINED(shift_out_of_bounds, "shift by too much")
SIMT_UNDEFINED(add_overflow, "signed overflow")
SIMT_UNDEFINED(sub_overflow, "signed overflow")
SIMT_UNDEFINED(mul_overflow, "signed overflow")
SIMT_UNDEFINED(negate_overflow, "signed overflow")
SIMT_UNDEFINED(divrem_overflow, "division by zero")
#endif
}
