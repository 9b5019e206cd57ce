/* The one table of weight formats. A new type is a row here (quant.c), a decoder, a repack rule per
 * target (layout.c) and a dequantisation fragment per target (templates/). Decoders give the exact
 * value of every element in double precision: d*q, d*sc*q - dmin*m, ... without a rounding.
 * Block formats: ggml's ggml-common.h and ggml-quants.c (dequantize_row_*), by their published layout.
 */
#ifndef QUANT_H
#define QUANT_H

#include "base.h"

enum quant {
    QUANT_F32, QUANT_F16, QUANT_BF16, QUANT_Q4_0, QUANT_Q4_1, QUANT_Q5_0, QUANT_Q5_1, QUANT_Q8_0, QUANT_Q2_K, QUANT_Q3_K,
    QUANT_Q4_K, QUANT_Q5_K, QUANT_Q6_K, QUANT_IQ4_NL, QUANT_IQ4_XS, QUANT_MXFP4, QUANT_COUNT
};

/* A number of a block that is no integer, and the largest factor that an element's value can take from it. */
enum quant_number_kind { QUANT_NONE, QUANT_HALF, QUANT_FLOAT, QUANT_BFLOAT, QUANT_EXPONENT /* a byte e: 2^(e - 128) */ };
struct quant_number {
    enum quant_number_kind kind;
    uint16_t at;                 /* byte of the block */
    uint16_t most;               /* |value of an element| <= |number| * most, of each number alone */
};

struct quant_format {
    const char *name;            /* "q4_k": in specs, messages and plans */
    const char *macro;           /* "Q4_K": JT_QUANT_Q4_K in templates */
    uint32_t ggml_type;
    uint32_t block_elems, block_bytes;
    struct quant_number scale, min;
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
/* Overwrite a block's numbers, whatever its other bits are: of its scale alone come values up to |scale|, of its min
 * (where the type has one) up to |min|. A power of two takes the next one below. For made-up weights. */
void quant_set_numbers(const struct quant_format *f, uint8_t *block, float scale, float min);
/* The 16 values of a nibble of IQ4_NL and IQ4_XS, and twice those of MXFP4. */
extern const int8_t quant_iq4_values[16], quant_mxfp4_values[16];
double quant_half(uint16_t h);   /* IEEE half to double, exact */
uint16_t quant_to_half(float f); /* round to nearest even */

#endif
