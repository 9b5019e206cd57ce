// Types without blocks: F32, F16 and BF16. Part of frag16.cuh.

struct wide : type_defaults {
    enum { UNIT_COLS = 64, SCALED = PER_STEP, UNIT = 1 };
    typedef slice_scales<none> meta;
    template <class From> DEV void load(meta &, From, u32, u32, u32) {}
    DEV const u8 *place(const u8 *plane, u32 r, u32 k) {
        return plane + k % 64 / 16 * 512 + at_lane(r, k) * 16 + (k % 16 / 8 * 2 + r / 8) * 4 + k % 2 * 2;
    }
};

struct f16 : wide {
    enum { UNIT_BYTES = 2048, STEP_PAIRS = 2 };
    struct pair { uint4 a[4]; };
    using wide::load;
    template <class From>
    DEV void load(pair &p, From tile, u32 index, u32 lane) {
#pragma unroll
        for (int i = 0; i < 4; i++) fetch(p.a[i], tile, index * UNIT_BYTES + i * 512 + lane * 16);
    }
    DEV void codes(const pair &p, int, int b, u32 (&a)[2][4]) { halves(p.a, b, a); }
    DEV float value(const pair_sums &s, const meta &, int, const column_sums &) { return s.even[0] + s.odd[0]; }
    DEV void decode(const pair &p, const pair_scales &, int, int b, u32 (&a)[2][4]) { halves(p.a, b, a); }
    DEV float at(const u8 *tile, u32 r, u32 k) { return at_half(place(tile + k / 64 * UNIT_BYTES, r, k)); }
};

struct bf16 : f16 {
    typedef bf16_operand operand;
    DEV float at(const u8 *tile, u32 r, u32 k) { return __uint_as_float((u32)*(const u16 *)place(tile + k / 64 * UNIT_BYTES, r, k) << 16); }
};

// Two halves: high, and 2^11 times what is left.
struct f32 : wide {
    enum { UNIT_BYTES = 4096, STEP_PAIRS = 1, PARTS = 2 };
    struct pair { uint4 a[8]; };
    using wide::load;
    template <class From>
    DEV void load(pair &p, From tile, u32 index, u32 lane) {
#pragma unroll
        for (int i = 0; i < 8; i++) fetch(p.a[i], tile, index * UNIT_BYTES + i * 512 + lane * 16);
    }
    DEV float value(const pair_sums &s, const meta &, int, const column_sums &) {
        return fmaf(s.even[1] + s.odd[1], 1.0f / 2048, s.even[0] + s.odd[0]);
    }
    DEV void decode(const pair &p, const pair_scales &, int, int b, u32 (&a)[2][4]) { halves(p.a, b, a); }
    DEV float at(const u8 *tile, u32 r, u32 k) {
        const u8 *unit = tile + k / 64 * UNIT_BYTES;
        return fmaf(at_half(place(unit + 2048, r, k)), 1.0f / 2048, at_half(place(unit, r, k)));
    }
};
