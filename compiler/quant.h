/* The one table of weight formats. A new type is a row here (quant.c), a decoder, a repack rule per
 * target (layout.c) and a dequantisation fragment per target (templates/). Decoders give the exact
 * value of every element in double precision: d*q, d*sc*q - dmin*m, ... without a rounding.
 * Block formats: ggml's ggml-common.h and ggml-quants.c (dequantize_row_*), by their published layout.
 */
#ifndef QUANT_H
#define QUANT_H

#include "base.h"

enum quant { QUANT_F32, QUANT_F16, QUANT_Q4_1, QUANT_Q8_0, QUANT_Q4_K, QUANT_Q6_K, QUANT_COUNT };

struct quant_format {
    const char *name;            /* "q4_k": in specs, messages and plans */
    const char *macro;           /* "Q4_K": JT_QUANT_Q4_K in templates */
    uint32_t ggml_type;
    uint32_t block_elems, block_bytes;
    void (*decode)(const uint8_t *block, double *out);   /* one block; out[block_elems] */
};

extern const struct quant_format quant_formats[QUANT_COUNT];
/* Row of the table for a ggml type number, or NULL when jllm does not take it. */
const struct quant_format *quant_find(uint32_t ggml_type);
/* ggml's name of any type number that GGUF knows ("q5_0", "iq4_xs"), "removed type 4", or "unknown type 255". */
const char *quant_type_name(uint32_t ggml_type);
/* Elements and bytes of a block of any ggml type number; false: unknown or removed. */
bool quant_block(uint32_t ggml_type, uint32_t *elems, uint32_t *bytes);
/* Decode n elements from element `first` of a row (both multiples of the block). */
void quant_decode(const struct quant_format *f, const uint8_t *row, uint64_t n, double *out);
double quant_half(uint16_t h);   /* IEEE half to double, exact */
uint16_t quant_to_half(float f); /* round to nearest even */

#endif
