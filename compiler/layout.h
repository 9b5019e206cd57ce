/* Weight layouts: how a GGUF tensor is stored in a plan. Shared by packing and the templates, which read what is
 * written here; the drawings are in layout.c (templates/cpu) and layout_cuda.c (templates/cuda).
 */
#ifndef LAYOUT_H
#define LAYOUT_H

#include "contract.h"

/* Bytes of rows x cols of a format in a layout ("plain", "rows16", "frag16"); false: the layout does not take it. */
bool layout_bytes(const char *layout, const struct quant_format *q, uint64_t rows, uint64_t cols, uint64_t *bytes);
/* Rows that are packed together: a piece can be made in parts cut at multiples of it. */
uint64_t layout_tile_rows(const char *layout);
/* Pack rows [first, last) (first a multiple of the tile; last too, or the end) to out, which has room for
 * layout_bytes of that many rows. Rows missing in the last tile are zero weights. */
void layout_pack(const char *layout, const struct quant_format *q, const uint8_t *tensor_data, uint64_t rows, uint64_t cols,
                 uint64_t first, uint64_t last, uint8_t *out);

/* A row of the table of layouts in layout.c; the functions promise what those above say. */
struct layout {
    const char *name;
    uint64_t tile_rows;
    bool (*bytes)(const struct quant_format *q, uint64_t rows, uint64_t cols, uint64_t *bytes);
    void (*pack)(const struct quant_format *q, const uint8_t *data, uint64_t cols, uint64_t first, uint64_t last, uint8_t *out);
};
extern const struct layout layout_frag16;   /* layout_cuda.c */

#endif
