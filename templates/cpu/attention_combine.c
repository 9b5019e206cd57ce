/* What one token's chunks of attention gave, part[chunk][n_head][head_dim + 1], put together (chunks.h), as fp32 or A16. An
 * item is JT_HEADS heads: for A16 as many as make whole blocks of 32.
 */
#include "plan_step.h"
#include "chunks.h"
#include "a16.h"

#ifndef JT_WINDOW
#define JT_WINDOW WINDOW_NONE
#endif
#define COLS (JT_HEADS * JT_HEAD_DIM)
#define PART_COLS (JT_HEAD_DIM + 1)

INLINE void head_combine(const float *part, u32 pos, u32 head, float *out) {
    struct folded state = fold_none(JT_HEAD_DIM, out);
    for (u32 chunk = FIRST_SEEN(pos) / JT_SPLIT; chunk <= pos / JT_SPLIT; chunk++)
        state = fold(state, JT_HEAD_DIM, part + ((u64)chunk * JT_N_HEAD + head) * PART_COLS, out);
    fold_end(state, JT_HEAD_DIM, out);
}

KERNEL {
    for (u32 item = first; item < last; item++) {
#ifdef JT_OUT_A16
        float out[COLS];
        for (u32 h = 0; h < JT_HEADS; h++) head_combine((const float *)args[0], step->pos, item * JT_HEADS + h, out + h * JT_HEAD_DIM);
        for (u32 k = 0; k < COLS; k += 32) {
            f32x8 v[4];
            UNROLL(4) for (u32 i = 0; i < 4; i++) v[i] = f32x8_load(out + k + 8 * i);
            a16_store(a16_place(args[1], 1, JT_N_HEAD * JT_HEAD_DIM, 0, (item * COLS + k) / 32), v);
        }
#else
        for (u32 h = 0; h < JT_HEADS; h++)
            head_combine((const float *)args[0], step->pos, item * JT_HEADS + h, (float *)args[1] + (item * JT_HEADS + h) * (u64)JT_HEAD_DIM);
#endif
    }
}
