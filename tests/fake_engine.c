/* fake_engine.h without an emulator: a "cubin" is the name of a function of plan_kernel.c, or of one below that only a
 * GPU's plan has, and launching it runs that function on all its items. */
#include "fake_engine.h"
#include "plan_kernel.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { THREADS_MAX = 1024, SHARED_MAX = 160 << 10, FIXED_BYTES = 1024 };

static void tk_choose(void *const *args, const struct plan_step *in, uint32_t first, uint32_t last) {
    struct plan_step *step = (void *)(uintptr_t)in;
    const float *logits = args[0];
    uint64_t best = 0;
    (void)first, (void)last;
    if (step->stop || !step->advance) return;
    for (uint32_t id = 0; id < TINY_VOCAB; id++)
        if (plan_key(logits[id], id) > best) best = plan_key(logits[id], id);
    uint32_t id = best == PLAN_KEY_BAD ? PLAN_ID_BAD : (uint32_t)plan_key_id(best);
    memcpy(args[1], &id, sizeof id);
    step->stop = id == PLAN_ID_BAD;
    if (id != PLAN_ID_BAD) {
        step->ids[0] = (int32_t)id;
        step->stop = ++step->pos >= step->limit;
        for (uint32_t i = 0; i < step->n_stop; i++) step->stop |= step->stop_ids[i] == (int32_t)id;
    }
    uint64_t entry = (uint64_t)step->serial << 32 | id, at = step->ring + step->serial++ % PLAN_RING_ENTRIES * sizeof entry;
    void *ring = fake_resolve(at, sizeof entry);
    if (ring) memcpy(ring, &entry, sizeof entry);
}

static void tk_candidates(void *const *args, const struct plan_step *step, uint32_t first, uint32_t last) {
    const float *logits = args[0];
    uint64_t keys[PLAN_CANDIDATES_MAX] = {0};
    (void)step, (void)first, (void)last;
    for (uint32_t id = 0; id < TINY_VOCAB; id++)
        for (uint32_t i = 0, n = 0; i < TINY_VOCAB; i++) {   /* by the number of those before it */
            n += plan_key(logits[i], i) > plan_key(logits[id], id);
            if (i + 1 == TINY_VOCAB) keys[n] = plan_key(logits[id], id);
        }
    memcpy(args[1], keys, sizeof keys);
}

#define KERNEL(name, n_args) { { #name, n_args, THREADS_MAX, FIXED_BYTES }, name }
static const struct kernel { struct engine_kernel head; plan_cpu_kernel *run; } kernels[] = {
    KERNEL(tk_log, 2), KERNEL(tk_embed, 2), KERNEL(tk_store, 2),    KERNEL(tk_mix, 3),
    KERNEL(tk_head, 3), KERNEL(tk_copy, 2), KERNEL(tk_mix_wrong, 3),
    KERNEL(tk_choose, 2), KERNEL(tk_candidates, 2),
};

const bool engine_follows = false;

int engine_open(int arch) { return arch ? SHARED_MAX : 0; }

void *engine_alloc(uint64_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) abort();
    if (bytes <= 1 << 20) memset(p, 0xAA, bytes);
    return p;
}

void engine_free(void *p, uint64_t bytes) { munmap(p, bytes); }
void engine_copied(void *p) { (void)p; }
void engine_filled(void *p) { (void)p; }
void engine_misuse(const char *sentence) { (void)sentence; }

const struct engine_kernel *engine_find(const void *image) {
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (!strncmp(image, kernels[i].head.name, 32)) return &kernels[i].head;
    return NULL;
}

/* A kernel serves under its own name; tk_mix_wrong may pretend to be tk_mix. */
bool engine_has(const struct engine_kernel *k, const char *function) { return !strncmp(k->name, function, strlen(function)); }

bool engine_run(const struct engine_kernel *k, const struct engine_launch *how, void *const *args) {
    ((const struct kernel *)k)->run(args, args[k->n_args], 0, how->grid[0]);
    return true;
}
