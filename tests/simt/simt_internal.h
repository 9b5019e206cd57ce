// What the emulator's files share: simt.cpp (fibers, order, launch), simt_ops.cpp
// (the instructions) and simt_check.cpp (memory, clocks, the compiler's hooks).
#ifndef SIMT_INTERNAL_H
#define SIMT_INTERNAL_H
#include "simt.h"
#include "simt_fiber.h"

namespace simt {

enum class Op : u8 { run, shuffle, ballot, warp_sync, mma, ldmatrix, block_sync, spin };

struct Block;
struct Warp;

// A cp.async in flight. Its bytes land when they are waited for, or at once where the seed says so.
struct Copy {
    char *to;
    const char *from;
    u32 bytes, valid, group;
    bool landed;
    const void *pc;
};

// Lies at the top of its own stack's mapping, so that "own memory" is one range.
struct Thread : Self {
    Fiber fiber;
    Block *block;
    Warp *warp;
    u32 lane;
    u32 group;  // cp.async groups committed so far
    bool waited;  // for the launches before this one, or met at a barrier who had
    char *mapping;
};

// A lane's registers in a collective: operands on arrival, results afterwards.
struct alignas(64) Slot {
    u32 w[16];
};

struct Warp {
    Slot slot[32];
    u64 key[32];   // which call a lane waits in: operation and source line
    u32 mask[32];  // whom it waits for
    Op op[32];
    Where at[32];
    Thread *lane[32];
    std::vector<Copy> copies[32];
    u32 ready, waiting, alive;  // one bit a lane; waiting: in a warp collective
    u32 last;                   // lane that ran last
    u32 index, grid_index, position;
    Block *block;
    u32 epoch;               // number of the stretch between two synchronisations
    // The last stretch of a warp that is ordered before this: of the block's, and of the grid's
    // (empty until the first acquire).
    std::vector<u32> known, foreign;
};

// Who touched a byte, and in which stretch between two synchronisations of its warp.
struct Stamp {
    u32 epoch;
    u32 warp : 26, lane : 5, atomic : 1;  // warp of the grid
    const void *pc;
};

struct Cell {
    Stamp write, read[2];
};

// Who asked for a byte at last: lanes of a warp of the grid.
struct Asker {
    u32 warp, lanes;
};

struct Region {
    char *base;
    size_t bytes;
    const char *name;
    bool shared, read_only, from_host;
    u32 first_epoch;  // stamps below it are from an earlier launch or block
    Cell *cells;      // one a byte, in checked builds
    u8 *asked;        // one a byte, where requests are counted: 1 asked for, and by whom at last
    Asker *askers;
    u64 asked_bytes;
    char *mapping;
    size_t mapping_bytes;
};

// known, foreign, waited: of warps that arrived and went on, as they were then.
struct Barrier {
    u32 arrived, expected;
    bool waited;
    std::vector<u32> known, foreign;
};

constexpr u32 shared_max = 228 << 10;

struct Block {
    Barrier barrier[16];
    std::vector<Warp *> warps;
    u32 n_alive, index, first_epoch;
    bool active;
    char *shared;  // shared_max bytes: the dynamic part, then SHARED arrays in order of first use
    Cell *shared_cells;
    u32 shared_used, shared_bytes;  // with and without the gaps between arrays
    std::vector<Region> regions;
    std::vector<const void *> keys;  // of regions[1...]
};

struct Machine {
    Fiber main;
    Options options;
    Result result;
    void (*kernel)(const void *args);
    const char *args;  // a kernel may read them
    size_t args_bytes;
    std::vector<Warp *> warps;  // of all resident blocks
    u32 grid_warps, first_epoch, last_epoch;
    u32 dynamic_bytes;
    u32 idle;  // looks at a flag since anything else happened
    u64 random;
    const void *pc[2];  // of a failure
};
extern Machine machine;
extern bool checked;

// nc_read: through the read-only path, of memory that nobody writes during the launch.
enum class Access : u8 { read, nc_read, write, atomic_read, atomic_write };

// simt.cpp
std::string block_name(u32 index);  // its coordinates
[[noreturn]] void fail(const void *pc, const void *other_pc, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void wait_here();               // run others until this lane is ready again
void give_way(bool to_anyone);  // let another thread run; this one stays ready
u32 random_below(u32 n);

// simt_ops.cpp
void block_sync_complete(Block *, int id);

// simt_check.cpp
void access(const void *p, u32 bytes, Access, const void *pc);
Region *find_region(const void *p, Block *);
void count_request(const void *p, u32 bytes);
void add_shared_region(Block *, u32 offset, u32 bytes, const char *name);
void order_block_start(Block *);
void order_warps(const std::vector<Warp *> &, const Barrier * = nullptr);  // a barrier among them completed
void order_arrive(Warp *, Barrier &);
void order_release(const void *flag);
void order_acquire(const void *flag);
void regions_new_launch();

}  // namespace simt

#endif
