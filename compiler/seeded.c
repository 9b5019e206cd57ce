#include "seeded.h"

#include <assert.h>
#include <string.h>

#include "layout.h"

/* Random bits in every field, but for numbers in floating point: those are of both signs and make weights up to about 0.2. */
static void fill_seeded(uint8_t *out, const struct quant_format *q, uint64_t n_blocks, uint64_t seed) {
    uint64_t bytes = n_blocks * q->block_bytes;
    for (uint64_t i = 0; i < bytes; i += 8) {
        uint64_t z = (seed + i) * 0x9E3779B97F4A7C15u;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z ^= z >> 27;
        memcpy(out + i, &z, bytes - i < 8 ? (size_t)(bytes - i) : 8);
    }
    for (uint64_t i = 0; i < n_blocks; i++) {
        float v = plan_seeded(seed ^ 0xf10a7, i) / 10;
        quant_set_numbers(q, out + i * q->block_bytes, v, v);
    }
}

void seeded_give(struct piece *p, unsigned index, struct arena *a) {
    struct gguf_tensor *t = arena_alloc(a, sizeof *t);
    uint64_t n_blocks = p->rows * p->cols / p->quant->block_elems;
    *t = *p->tensor;
    uint8_t *data = arena_array(a, n_blocks, p->quant->block_bytes);
    fill_seeded(data, p->quant, n_blocks, (uint64_t)(index + 1) << 40);
    t->data = data;
    p->tensor = t;
}

struct packing { const struct piece *piece; uint8_t *out; uint64_t rows_each; };

static void pack_part(void *user, size_t i) {
    const struct packing *k = user;
    const struct piece *p = k->piece;
    uint64_t first = i * k->rows_each, last = first + k->rows_each, at = 0;
    if (last > p->rows) last = p->rows;
    bool ok = !first || layout_bytes(p->layout, p->quant, first, p->cols, &at);
    assert(ok);
    (void)ok;
    layout_pack(p->layout, p->quant, p->tensor->data, p->rows, p->cols, first, last, k->out + at);
}

void seeded_pack(const struct piece *p, uint8_t *out) {
    uint64_t tile = layout_tile_rows(p->layout), parts = (uint64_t)base_cores() * 4;
    struct packing k = {p, out, u64_round_up((p->rows + parts - 1) / parts, tile)};
    base_parallel((size_t)((p->rows + k.rows_each - 1) / k.rows_each), pack_part, &k);
}
