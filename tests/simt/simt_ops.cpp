// What lanes do together, and the instructions that touch memory. A collective works
// on the slots of a warp: each lane leaves its operands, the last to arrive computes for all.
#include "simt_internal.h"
#include <algorithm>

namespace simt {

#define HERE __builtin_return_address(0)

// ---- arrival ---------------------------------------------------------------------------------

static void mark(Thread *t, Op op, Where at) {
    Warp *w = t->warp;
    w->op[t->lane] = op;
    w->at[t->lane] = at;
    w->key[t->lane] = reinterpret_cast<u64>(at.file) ^ static_cast<u64>(at.line) << 40 ^
                      static_cast<u64>(op) << 58;
}

// True when all lanes of the mask wait in the same call. A lane that waits for this one in another
// call can never be served.
static bool all_here(Warp *w, u32 mask, u32 me) {
    if ((w->waiting & mask) != mask) return false;
    u64 other = 0;
    for (int i = 0; i < 32; i++)
        other |= mask >> i & 1 ? (w->key[i] ^ w->key[me]) | (w->mask[i] ^ mask) : 0;
    if (other == 0) return true;
    for (int i = 0; i < 32; i++)
        if ((mask >> i & 1) && (w->mask[i] >> me & 1) &&
            (w->key[i] != w->key[me] || w->mask[i] != mask))
            fail(nullptr, nullptr,
                 "lanes that need each other are in different calls: %s:%d (mask %08x) and lane %d "
                 "at %s:%d (mask %08x)",
                 w->at[me].file, w->at[me].line, mask, i, w->at[i].file, w->at[i].line, w->mask[i]);
    return false;
}

template <class Compute>
static void collective(Op op, u32 mask, Where at, Compute compute) {
    Thread *t = static_cast<Thread *>(self);
    Warp *w = t->warp;
    u32 bit = 1u << t->lane;
    if (!(mask & bit))
        fail(nullptr, nullptr, "lane not in its own mask %08x at %s:%d", mask, at.file, at.line);
    if (u32 gone = mask & ~w->alive)
        fail(nullptr, nullptr, "waits at %s:%d for lanes %08x, which have exited", at.file, at.line,
             gone);
    mark(t, op, at);
    w->mask[t->lane] = mask;
    w->waiting |= bit;
    if (!all_here(w, mask, t->lane)) {
        w->ready &= ~bit;
        wait_here();
        return;
    }
    compute(w);
    w->waiting &= ~mask;
    w->ready |= mask;
    machine.idle = 0;
    machine.result.stats.collectives++;
    give_way(false);
}

static Slot &my_slot() {
    Thread *t = static_cast<Thread *>(self);
    return t->warp->slot[t->lane];
}

// ---- shuffles --------------------------------------------------------------------------------

u32 shuffle(Shuffle kind, u32 v, int arg, u32 mask, Where at) {
    Slot &s = my_slot();
    s.w[0] = v;
    s.w[1] = static_cast<u32>(arg);
    collective(Op::shuffle, mask, at, [=](Warp *w) {
        for (u32 i = 0; i < 32; i++) {
            if (!(mask >> i & 1)) continue;
            u32 by = w->slot[i].w[1];
            u32 from = kind == Shuffle::index ? by & 31 : kind == Shuffle::down ? i + by : i ^ by;
            if (from > 31) from = i;
            if (!(mask >> from & 1))
                fail(nullptr, nullptr, "lane %u reads lane %u, which is not in mask %08x, at %s:%d",
                     i, from, mask, at.file, at.line);
            w->slot[i].w[2] = w->slot[from].w[0];
        }
    });
    return s.w[2];
}

u32 ballot(bool p, u32 mask, Where at) {
    Slot &s = my_slot();
    s.w[0] = p;
    collective(Op::ballot, mask, at, [=](Warp *w) {
        u32 votes = 0;
        for (u32 i = 0; i < 32; i++)
            if (mask >> i & 1) votes |= w->slot[i].w[0] << i;
        for (u32 i = 0; i < 32; i++)
            if (mask >> i & 1) w->slot[i].w[2] = votes;
    });
    return s.w[2];
}

void warp_sync(u32 mask, Where at) {
    collective(Op::warp_sync, mask, at, [](Warp *w) { order_warps({w}); });
}

// ---- tensor cores ----------------------------------------------------------------------------
// Fragments, with g = lane / 4 and t = lane % 4: A has rows g (a[0], a[2]) and g + 8 (a[1], a[3]);
// a[0], a[1] and b[0] hold the lower half of K, a[2], a[3] and b[1] the upper; t picks the word.
// C has rows g (c[0], c[1]) and g + 8, columns 2t and 2t + 1.

struct Tile {
    u16 a[16][16], b[16][8];
    alignas(32) float c[16][8];
    bool bf16;
};

// Eight columns at a time; the compiler maps these to what the CPU has.
typedef float Floats __attribute__((vector_size(32)));
typedef int Ints __attribute__((vector_size(32)));

static float operand(const Tile &t, u16 v) {
    return t.bf16 ? simt_bits<float>(static_cast<u32>(v) << 16) : half_to_float(v);
}

// From left to right, each sum rounded to fp32. Products of 16-bit operands are exact in fp32, so a fused
// multiply-add changes nothing.
static void add_in_order(Tile &t) {
    float a[16][16];
    Floats b[16];
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++) a[i][k] = operand(t, t.a[i][k]);
    for (int k = 0; k < 16; k++)
        for (int n = 0; n < 8; n++) b[k][n] = operand(t, t.b[k][n]);
    for (int i = 0; i < 16; i++) {
        Floats sum;
        memcpy(&sum, t.c[i], 32);
        for (int k = 0; k < 16; k++) sum += a[i][k] * b[k];
        memcpy(t.c[i], &sum, 32);
    }
}

// |value| = significand 2^(exponent - 10) of a half, or a bf16; zero lies far below. False: infinity or NaN.
constexpr int far_below = -1000;

static bool split(u16 h, bool bf16, int &significand, int &exponent) {
    if (bf16) {
        int e = h >> 7 & 255, m = (h & 127) * 8 | (e ? 1024 : 0);
        significand = h >> 15 ? -m : m;
        exponent = m ? (e ? e : 1) - 127 : far_below;
        return e != 255;
    }
    int e = h >> 10 & 31, m = (h & 1023) | (e ? 1024 : 0);
    significand = h >> 15 ? -m : m;
    exponent = m ? (e ? e : 1) - 15 : far_below;
    return e != 31;
}

// |v| with `places` more binary places, cut `below` the largest exponent, with the sign of v again.
static inline Ints cut(Ints v, int places, Ints below) {
    Ints sign = v >> 31, size = ((v ^ sign) - sign) << places;
    size >>= below > 31 ? 31 : below;
    return (size ^ sign) - sign;
}

// As tensor cores do: `width` products and the accumulator are cut, not rounded, `bits` places
// below the largest exponent among them, summed exactly, and the sum is cut to fp32. False: an
// infinity or a NaN is among the operands, and nothing was done.
static bool add_as_hardware(Tile &t, int width, int bits) {
    int a[16][16], a_exponent[16][16];
    Ints b[16], b_exponent[16];
    bool finite = true;
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++) finite &= split(t.a[i][k], t.bf16, a[i][k], a_exponent[i][k]);
    for (int k = 0; k < 16; k++)
        for (int n = 0; n < 8; n++) {
            int m, e;
            finite &= split(t.b[k][n], t.bf16, m, e);
            b[k][n] = m;
            b_exponent[k][n] = e;
        }
    for (int i = 0; i < 16; i++)
        for (int n = 0; n < 8; n++) finite &= std::isfinite(t.c[i][n]);
    if (!finite) return false;
    for (int i = 0; i < 16; i++)
        for (int first = 0; first < 16; first += width) {
            Ints word, zero = {};
            memcpy(&word, t.c[i], 32);
            Ints e = word >> 23 & 255, c = (word & 0x7fffff) | (e > 0 ? zero + 0x800000 : zero);
            Ints c_exponent = c > 0 ? (e > 0 ? e : zero + 1) - 127 : zero + far_below;
            c = word < 0 ? -c : c;
            Ints top = c_exponent;
            for (int k = first; k < first + width; k++) {
                Ints exponent = a_exponent[i][k] + b_exponent[k];
                top = exponent > top ? exponent : top;
            }
            Ints sum[2] = {};  // eight products below 2^27 fit in an int, sixteen do not
            for (int k = first; k < first + width; k++)
                sum[k / 8] +=
                    cut(a[i][k] * b[k], bits - 20, top - a_exponent[i][k] - b_exponent[k]);
            Ints last = cut(c, bits - 23, top - c_exponent);
            for (int n = 0; n < 8; n++) {
                double all = static_cast<double>(sum[0][n]) + sum[1][n] + last[n];
                u64 cut_to_24_bits = simt_bits<u64>(all) & ~u64(0x1fffffff);
                u64 scale = static_cast<u64>(1023 + std::max(top[n], -900) - bits) << 52;
                t.c[i][n] = static_cast<float>(simt_bits<double>(cut_to_24_bits) *
                                               simt_bits<double>(scale));
            }
        }
    return true;
}

static void mma_warp(Warp *w) {
    Tile t;
    t.bf16 = w->slot[0].w[6];
    for (u32 lane = 0; lane < 32; lane++) {
        const u32 *s = w->slot[lane].w;
        u32 g = lane / 4, k = lane % 4 * 2;
        for (u32 i = 0; i < 4; i++) memcpy(&t.a[g + i % 2 * 8][k + i / 2 * 8], s + i, 4);
        for (u32 i = 0; i < 4; i++)
            t.b[k + i % 2 + i / 2 * 8][g] = static_cast<u16>(s[4 + i / 2] >> i % 2 * 16);
        for (u32 i = 0; i < 2; i++) memcpy(&t.c[g + i * 8][k], s + 8 + 2 * i, 8);
    }
    const Options &o = machine.options;
    if (!o.mma_width ||
        !add_as_hardware(t, static_cast<int>(o.mma_width), static_cast<int>(o.mma_bits)))
        add_in_order(t);
    for (u32 lane = 0; lane < 32; lane++)
        for (u32 i = 0; i < 2; i++)
            memcpy(w->slot[lane].w + 8 + 2 * i, &t.c[lane / 4 + i * 8][lane % 4 * 2], 8);
    machine.result.stats.mma++;
}

void mma(float *c, const u32 *a, u32 b0, u32 b1, bool bf16, Where at) {
    Slot &s = my_slot();
    memcpy(s.w, a, 16);
    s.w[4] = b0;
    s.w[5] = b1;
    s.w[6] = bf16;
    memcpy(s.w + 8, c, 16);
    collective(Op::mma, ~0u, at, mma_warp);
    memcpy(c, s.w + 8, 16);
}

void ldmatrix(u32 *r, int n, bool trans, const void *row, Where at) {
    Thread *t = static_cast<Thread *>(self);
    if (t->lane < static_cast<u32>(8 * n)) {
        Region *region = find_region(row, t->block);
        if (!region || !region->shared) fail(HERE, nullptr, "ldmatrix from outside shared memory");
        access(row, 16, Access::read, HERE);
    }
    Slot &s = my_slot();
    memcpy(s.w + 8, &row, sizeof row);
    collective(Op::ldmatrix, ~0u, at, [=](Warp *w) {
        for (int m = 0; m < n; m++) {
            u16 tile[8][8];
            for (int i = 0; i < 8; i++) {
                const void *from;
                memcpy(&from, w->slot[8 * m + i].w + 8, sizeof from);
                memcpy(tile[i], from, 16);
            }
            for (u32 lane = 0; lane < 32; lane++) {
                u32 g = lane / 4, k = lane % 4 * 2;
                u32 lo = trans ? tile[k][g] : tile[g][k],
                    hi = trans ? tile[k + 1][g] : tile[g][k + 1];
                w->slot[lane].w[m] = lo | hi << 16;
            }
        }
    });
    memcpy(r, s.w, static_cast<size_t>(4 * n));
}

// ---- barriers --------------------------------------------------------------------------------

void block_sync_complete(Block *b, int id) {
    std::vector<Warp *> warps;
    bool waited = b->barrier[id].waited;
    for (Warp *w : b->warps) {
        u32 here = 0, first = 32;
        for (u32 i = 0; i < 32; i++)
            if ((w->alive >> i & 1) && !(w->ready >> i & 1) && w->op[i] == Op::block_sync &&
                w->mask[i] == static_cast<u32>(id)) {
                if (first == 32) first = i;
                if (w->key[i] != w->key[first])
                    fail(nullptr, nullptr,
                         "lanes %u and %u of warp %u are in different block_syncs: %s:%d and %s:%d",
                         first, i, w->index, w->at[first].file, w->at[first].line, w->at[i].file,
                         w->at[i].line);
                here |= 1u << i;
            }
        if (!here) continue;
        if (here != w->alive)
            fail(nullptr, nullptr, "lanes %08x of warp %u are not at the block_sync at %s:%d",
                 w->alive & ~here, w->index, w->at[first].file, w->at[first].line);
        w->ready |= here;
        warps.push_back(w);
        for (Thread *t : w->lane) waited |= t->waited;
    }
    const Barrier was = std::move(b->barrier[id]);
    b->barrier[id] = Barrier();
    machine.idle = 0;
    machine.result.stats.barriers++;
    order_warps(warps, &was);
    for (Warp *w : warps)
        for (Thread *t : w->lane) t->waited |= waited;
}

static Barrier &barrier_of(Block *b, int id, u32 n_threads, Where at) {
    if (id < 0 || id > 15 || n_threads % 32 || (id != 0) != (n_threads != 0))
        fail(nullptr, nullptr, "barrier %d for %u threads at %s:%d", id, n_threads, at.file,
             at.line);
    Barrier &bar = b->barrier[id];
    if (bar.arrived && bar.expected != n_threads)
        fail(nullptr, nullptr, "barrier %d: %u threads expected here (%s:%d), %u elsewhere", id,
             n_threads, at.file, at.line, bar.expected);
    return bar;
}

// Of a whole warp, between two warp_syncs, by its first lane.
void block_arrive(int id, u32 n_threads, Where at) {
    Thread *t = static_cast<Thread *>(self);
    Block *b = t->block;
    Barrier &bar = barrier_of(b, id, n_threads, at);
    if (t->warp->alive != ~0u) fail(nullptr, nullptr, "warp %u arrives at barrier %d without all of its lanes", t->warp->index, id);
    for (Thread *l : t->warp->lane) bar.waited |= l->waited;
    order_arrive(t->warp, bar);
    bar.expected = n_threads;
    bar.arrived += 32;
    if (bar.arrived == n_threads) block_sync_complete(b, id);
}

void block_sync(int id, u32 n_threads, Where at) {
    Thread *t = static_cast<Thread *>(self);
    Block *b = t->block;
    Barrier &bar = barrier_of(b, id, n_threads, at);
    mark(t, Op::block_sync, at);
    t->warp->mask[t->lane] = static_cast<u32>(id);
    t->warp->ready &= ~(1u << t->lane);
    bar.expected = n_threads;
    bar.arrived++;
    if (bar.arrived < (id ? n_threads : b->n_alive)) return wait_here();
    block_sync_complete(b, id);
    give_way(false);
}

// ---- memory ----------------------------------------------------------------------------------

void load(void *to, const void *from, u32 bytes) {
    access(from, bytes, Access::nc_read, HERE);
    count_request(from, bytes);
    memcpy(to, from, bytes);
}

// Hardware ignores a bad address here; a kernel that asks for one is wrong all the same.
void prefetch(const void *p) {
    Thread *t = static_cast<Thread *>(self);
    Region *r = find_region(p, t->block);
    auto *c = static_cast<const char *>(p);
    if (!r || r->shared || c < r->base || c >= r->base + r->bytes)
        fail(HERE, nullptr, "prefetch of no device memory");
}

void store(void *to, const void *from, u32 bytes) {
    access(to, bytes, Access::write, HERE);
    memcpy(to, from, bytes);
}

static void copy_land(Copy &c) {
    memset(c.to, 0, c.bytes);
    memcpy(c.to, c.from, c.valid);
    c.landed = true;
}

// The write happens at some time between this call and the wait: it is recorded at both ends, and
// the bytes land at either, as the seed has it; always at the wait without one.
void copy_start(void *to, const void *from, u32 bytes, u32 valid) {
    Thread *t = static_cast<Thread *>(self);
    Region *r = find_region(to, t->block);
    if (!r || !r->shared) fail(HERE, nullptr, "cp.async to outside shared memory");
    if (valid > bytes) fail(HERE, nullptr, "cp.async of %u valid bytes", valid);
    if (reinterpret_cast<u64>(from) % bytes) fail(HERE, nullptr, "misaligned source of cp.async");
    if (valid) {
        access(from, valid, Access::read, HERE);
        count_request(from, valid);
    }
    access(to, bytes, Access::write, HERE);
    std::vector<Copy> &copies = t->warp->copies[t->lane];
    copies.push_back({static_cast<char *>(to), static_cast<const char *>(from), bytes, valid,
                      t->group, false, HERE});
    if (machine.options.seed && random_below(2)) copy_land(copies.back());
}

void copy_commit() { static_cast<Thread *>(self)->group++; }

void copy_wait(u32 n_groups) {
    Thread *t = static_cast<Thread *>(self);
    std::vector<Copy> &copies = t->warp->copies[t->lane];
    size_t kept = 0;
    for (Copy &c : copies) {
        if (c.group + n_groups >= t->group) {
            copies[kept++] = c;
            continue;
        }
        access(c.to, c.bytes, Access::write, c.pc);
        if (!c.landed) copy_land(c);
    }
    copies.resize(kept);
}

u32 atomic_add(u32 *p, u32 v, bool acquire_release) {
    access(p, sizeof v, Access::atomic_write, HERE);
    if (acquire_release) order_acquire(p);
    u32 old = *p;
    *p = old + v;
    if (acquire_release) order_release(p);
    machine.idle = 0;
    return old;
}

u32 atomic_max(u32 *p, u32 v) {
    access(p, sizeof v, Access::atomic_write, HERE);
    u32 old = *p;
    *p = std::max(old, v);
    machine.idle = 0;
    return old;
}

// Whoever looks at a flag may be waiting for it: everybody else gets a turn first. When all the
// others only look at flags too, nothing will ever change.
u32 load_acquire(const u32 *p, Where at) {
    Thread *t = static_cast<Thread *>(self);
    mark(t, Op::spin, at);
    if (++machine.idle > 1000 + 64 * machine.warps.size())
        fail(nullptr, nullptr,
             "everybody waits for a flag at %s:%d that nobody sets; %u blocks of %u are resident",
             at.file, at.line, machine.options.resident, machine.grid_warps / blockDim.x * 32);
    give_way(true);
    access(p, sizeof *p, Access::atomic_read, HERE);
    order_acquire(p);
    return *p;
}

void grid_wait() { static_cast<Thread *>(self)->waited = true; }

void store_release(u32 *p, u32 v) {
    access(p, sizeof *p, Access::atomic_write, HERE);
    order_release(p);
    machine.idle = 0;
    *p = v;
}

// fp16 a b + c with one rounding: the product is exact in fp64; the sum is rounded to odd, to fp64
// and then to fp32, so that the last rounding sees on which side of a midpoint the exact value
// lies.
static double to_odd(double v, double error) {
    u64 bits = simt_bits<u64>(v);
    if (error == 0 || !std::isfinite(v) || (bits & 1)) return v;
    return simt_bits<double>((error > 0) == (v > 0) ? bits + 1 : bits - 1);
}

}  // namespace simt

static u16 fused(u16 a, u16 b, u16 c) {
    double p = static_cast<double>(half_to_float(a)) * half_to_float(b), q = half_to_float(c);
    double sum = p + q, part = sum - p;
    double error = (p - (sum - part)) + (q - part);
    sum = simt::to_odd(sum, error);
    float f = static_cast<float>(sum);
    u32 bits = simt_bits<u32>(f);
    if (std::isfinite(f) && f != sum && !(bits & 1)) {
        bool away = std::fabs(static_cast<double>(f)) < std::fabs(sum);
        f = simt_bits<float>(away ? bits + 1 : bits - 1);
    }
    return float_to_half(f);
}

u32 hfma2(u32 a, u32 b, u32 c) {
    auto low = [](u32 v) { return static_cast<u16>(v); };
    u32 high = fused(low(a >> 16), low(b >> 16), low(c >> 16));
    return high << 16 | fused(low(a), low(b), low(c));
}
