/* Limits: CUDA Programming Guide, compute capabilities, technical specifications. Every capability here has 65,536 registers,
 * given out to a warp in units of 256, to four warps at a time, and keeps 1 KiB of shared memory of a block for itself.
 */
#include "occupancy.h"

enum { REGISTERS = 65536, REGISTER_UNIT = 256, WARP_UNIT = 4, SHARED_UNIT = 128, SHARED_OWN = 1024 };

static const struct { unsigned sm, warps, blocks, shared_kib; } limits[] = {
    {80, 64, 32, 164}, {86, 48, 16, 100}, {87, 48, 16, 164}, {89, 48, 24, 100}, {90, 64, 32, 228},
    {100, 64, 32, 228}, {103, 64, 32, 228}, {110, 48, 24, 228}, {120, 48, 24, 100}, {121, 48, 24, 100}};

bool occupancy_of(unsigned sm, unsigned threads, unsigned registers, unsigned shared_bytes, struct occupancy *o) {
    size_t at = 0;
    while (at < COUNT(limits) && limits[at].sm != sm) at++;
    if (at == COUNT(limits) || !threads) return false;
    unsigned warps = (threads + 31) / 32;
    unsigned of_a_warp = (unsigned)u64_round_up(registers ? registers * 32u : 1, REGISTER_UNIT);
    unsigned of_a_block = (unsigned)u64_round_up((uint64_t)shared_bytes + SHARED_OWN, SHARED_UNIT);
    const struct { unsigned blocks; const char *limit; } by[] = {
        {limits[at].warps / warps, "warps"}, {limits[at].blocks, "blocks"},
        {REGISTERS / of_a_warp / WARP_UNIT * WARP_UNIT / warps, "registers"},
        {limits[at].shared_kib * 1024 / of_a_block, "shared memory"}};
    *o = (struct occupancy){.blocks = by[0].blocks, .warps_max = limits[at].warps, .limit = by[0].limit};
    for (size_t i = 1; i < COUNT(by); i++)
        if (by[i].blocks < o->blocks) o->blocks = by[i].blocks, o->limit = by[i].limit;
    o->warps = o->blocks * warps;
    return true;
}
