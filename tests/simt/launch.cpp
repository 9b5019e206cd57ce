// launch.h for the emulator in simt.h.
#include "launch.h"
#include "simt.h"
#include <cstdlib>

static const simt_key *key_of(const simt_kernel *k, const char *name) {
    for (const simt_key *i = k->keys; i->name; i++)
        if (!strcmp(i->name, name)) return i;
    return nullptr;
}

long simt_integer(const simt_kernel *k, const char *key, long otherwise) {
    const simt_key *found = key_of(k, key);
    return found ? atol(found->value) : otherwise;
}

const char *simt_string(const simt_kernel *k, const char *key) {
    const simt_key *found = key_of(k, key);
    return found ? found->value : "";
}

void *simt_alloc(size_t bytes, const char *name) { return simt::device_alloc(bytes, name); }
void simt_free(void *p) { simt::device_free(p); }
void simt_read_only(void *p) { simt::device_read_only(p); }
bool simt_is_checked(void) { return simt::is_checked(); }
void simt_count(void *p) { simt::device_count(p); }

struct simt_requests simt_requested(void *p) {
    simt::Requested r = simt::device_requested(p);
    if (r.ranges.empty()) return {r.bytes, 0, 0, 0};
    return {r.bytes, r.ranges.front().first, r.ranges.back().end, r.ranges.size()};
}

const char *simt_launch(const simt_kernel *k, simt_grid grid, uint64_t seed, void *const *args) {
    static std::string error;
    simt::Options options;
    options.seed = seed;
    options.resident = seed ? 2 : 1;
    options.smem_max = 227 << 10;   // of the target that geometry.lua takes
    struct Bound {
        void (*call)(void *const *);
        void *args[32];
    } bound = {k->call, {}};
    if (k->n_args > 32) abort();
    memcpy(bound.args, args, k->n_args * sizeof *args);
    auto run = [](const void *p) {
        auto *b = static_cast<const Bound *>(p);
        b->call(b->args);
    };
    simt::Result r = simt::run_grid({grid.x, grid.y, grid.z}, {grid.block, 1, 1}, grid.shared_bytes,
                                    options, run, &bound, sizeof bound);
    error = r.error;
    return r.ok ? nullptr : error.c_str();
}
