/* Kernels of templates/cpu as ordinary functions of the test, so that sanitizers see inside. What a plan's kernel
 * has as a constant is a variable here where the template allows it; so one instance serves all shapes.
 *
 * An instance: JT_NAME, its other macros and TEMPLATE, then this file includes itself to make the function and to
 * clear all macros. Helpers of a template get the instance's name in front.
 */
#ifndef KERNEL_INSTANCES_H
#define KERNEL_INSTANCES_H

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

static unsigned jt_m, jt_k, jt_residual, jt_row, jt_head_dim, jt_rope_dim, jt_neox, jt_n_head, jt_n_head_kv, jt_window, jt_tokens;
static float jt_scale = 1;
#define JT_M jt_m
#define JT_K jt_k
#define JT_RESIDUAL jt_residual
#define JT_ROW jt_row
#define JT_EPS 1e-5f
#define JT_SCALE jt_scale
#define JT_ROPE_DIM jt_rope_dim
#define JT_NEOX jt_neox
#define JT_N_HEAD jt_n_head
#define JT_N_HEAD_KV jt_n_head_kv
#define JT_SPLIT 256
#define JT_LANES 5

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define OWN(x) JOIN(JT_NAME, x)
#define column_weights OWN(column_weights)
#define unit_weights OWN(unit_weights)
#define unit_scale OWN(unit_scale)
#define unit_offset OWN(unit_offset)
#define unit_read OWN(unit_read)
#define row_read OWN(row_read)
#define unit_codes OWN(unit_codes)
#define unit_bytes OWN(unit_bytes)
#define place_at OWN(place_at)
#define place_next OWN(place_next)
#define step_at OWN(step_at)
#define scale_at OWN(scale_at)
#define sum_at OWN(sum_at)
#define start_at OWN(start_at)
#define step_add OWN(step_add)
#define scaled_add OWN(scaled_add)
#define unit_add OWN(unit_add)
#define panel_run OWN(panel_run)
#define tile_store OWN(tile_store)
#define tile_run OWN(tile_run)
#define tokens_tile OWN(tokens_tile)
#define panel OWN(panel)
#define panel_scaled OWN(panel_scaled)
#define widened OWN(widened)
#define widen OWN(widen)
#define sums OWN(sums)
#define sums_make OWN(sums_make)
#define ahead OWN(ahead)
#define ahead_ask OWN(ahead_ask)
#define panel_fill OWN(panel_fill)
#define norm_factor OWN(norm_factor)
#define cache_item OWN(cache_item)
#define cache_scales OWN(cache_scales)
#define cache_items OWN(cache_items)
#define head_factor OWN(head_factor)
#define head_rotate OWN(head_rotate)
#define row_scale OWN(row_scale)
#define to_i16 OWN(to_i16)
#define row_store OWN(row_store)
#define near_item OWN(near_item)
#define items_ahead OWN(items_ahead)
#define block_near OWN(block_near)
#define scores OWN(scores)
#define scores_1 OWN(scores_1)
#define scores_2 OWN(scores_2)
#define scores_3 OWN(scores_3)
#define values OWN(values)
#define values_8 OWN(values_8)
#define values_of_1 OWN(values_of_1)
#define values_of_2 OWN(values_of_2)
#define values_of_3 OWN(values_of_3)
#define head_values OWN(head_values)
#define weights OWN(weights)
#define seen OWN(seen)
#define seen_of_chunk OWN(seen_of_chunk)
#define seen_of_block OWN(seen_of_block)
#define seen_by_all OWN(seen_by_all)
#define f32v_top OWN(f32v_top)
#define f32_sum16 OWN(f32_sum16)
#define chunk OWN(chunk)
#define chunk_at OWN(chunk_at)
#define chunk_attend OWN(chunk_attend)
#define unit_attend OWN(unit_attend)
#define tokens_attend OWN(tokens_attend)
#define head_combine OWN(head_combine)
#define ARG_K_CACHE OWN(ARG_K_CACHE)
#define ARG_V_CACHE OWN(ARG_V_CACHE)

#define INSTANCES_FLOATS
#define QUANT f32
#define INSTANCES_EVERY
#define JT_QUANT_F32 1
#define INSTANCES_QUANT
#include "kernel_instances.h"
#undef JT_QUANT_F32
#undef INSTANCES_EVERY
#undef QUANT
#define QUANT f16
#define JT_QUANT_F16 1
#define INSTANCES_QUANT
#include "kernel_instances.h"
#undef JT_QUANT_F16
#undef QUANT
#define QUANT bf16
#define JT_QUANT_BF16 1
#define INSTANCES_QUANT
#include "kernel_instances.h"
#undef JT_QUANT_BF16
#undef QUANT
#undef INSTANCES_FLOATS
#define QUANT q4_0
#define JT_QUANT_Q4_0 1
#define INSTANCES_QUANT
#include "kernel_instances.h"
#undef JT_QUANT_Q4_0
#undef QUANT
#define QUANT q4_1
#define INSTANCES_EVERY
#define JT_QUANT_Q4_1 1
#define INSTANCES_QUANT
#include "kernel_instances.h"
#undef JT_QUANT_Q4_1
#undef INSTANCES_EVERY
#undef QUANT
#define QUANT q5_0
#define JT_QUANT_Q5_0 1
#define INSTANCES_QUANT
#include "kernel_instances.h"
#undef JT_QUANT_Q5_0
#undef QUANT
#define QUANT q5_1
#define JT_QUANT_Q5_1 1
#define INSTANCES_QUANT
#include "kernel_instances.h"
#undef JT_QUANT_Q5_1
#undef QUANT
#define QUANT q8_0
#define JT_QUANT_Q8_0 1
#define INSTANCES_QUANT
#include "kernel_instances.h"
#undef JT_QUANT_Q8_0
#undef QUANT
#define QUANT q2_k
#define INSTANCES_EVERY
#define JT_QUANT_Q2_K 1
#define INSTANCES_QUANT
#include "kernel_instances.h"
#undef JT_QUANT_Q2_K
#undef INSTANCES_EVERY
#undef QUANT
#define QUANT q3_k
#define JT_QUANT_Q3_K 1
#define INSTANCES_QUANT
#include "kernel_instances.h"
#undef JT_QUANT_Q3_K
#undef QUANT
#define QUANT q4_k
#define JT_QUANT_Q4_K 1
#define INSTANCES_QUANT
#include "kernel_instances.h"
#undef JT_QUANT_Q4_K
#undef QUANT
#define QUANT q5_k
#define JT_QUANT_Q5_K 1
#define INSTANCES_QUANT
#include "kernel_instances.h"
#undef JT_QUANT_Q5_K
#undef QUANT
#define QUANT q6_k
#define INSTANCES_EVERY
#define JT_QUANT_Q6_K 1
#define INSTANCES_QUANT
#include "kernel_instances.h"
#undef JT_QUANT_Q6_K
#undef INSTANCES_EVERY
#undef QUANT
#define QUANT iq4_nl
#define JT_QUANT_IQ4_NL 1
#define INSTANCES_QUANT
#include "kernel_instances.h"
#undef JT_QUANT_IQ4_NL
#undef QUANT
#define QUANT iq4_xs
#define JT_QUANT_IQ4_XS 1
#define INSTANCES_QUANT
#include "kernel_instances.h"
#undef JT_QUANT_IQ4_XS
#undef QUANT
#define QUANT mxfp4
#define JT_QUANT_MXFP4 1
#define INSTANCES_QUANT
#include "kernel_instances.h"
#undef JT_QUANT_MXFP4
#undef QUANT

#define TEMPLATE "../templates/cpu/rms_norm.c"
#define JT_NAME rms_norm_a16
#define JT_OUT_A16 1
#define JT_N 72
#include "kernel_instances.h"
#define JT_NAME rms_norm_a8
#define JT_OUT_A8 1
#define JT_N 72
#include "kernel_instances.h"
#define JT_NAME rms_norm_f32
#define JT_N 72
#include "kernel_instances.h"
#define JT_NAME rms_norm_add
#define JT_ADD 1
#define JT_N 72
#include "kernel_instances.h"
#undef TEMPLATE
#define TEMPLATE "../templates/cpu/act_mul.c"
#define JT_NAME act_mul_a16
#define JT_OUT_A16 1
#define JT_N 72
#include "kernel_instances.h"
#define JT_NAME act_mul_a8
#define JT_OUT_A8 1
#define JT_N 72
#include "kernel_instances.h"
#define JT_NAME act_mul_f32
#define JT_N 72
#include "kernel_instances.h"
#define JT_NAME act_mul_gelu_a16
#define JT_ACT_GELU 1
#define JT_OUT_A16 1
#define JT_N 72
#include "kernel_instances.h"
#define JT_NAME act_mul_gelu_f32
#define JT_ACT_GELU 1
#define JT_N 72
#include "kernel_instances.h"
#undef TEMPLATE
#define TEMPLATE "../templates/cpu/quantize.c"
#define JT_NAME quantize
#define JT_N 72
#include "kernel_instances.h"
#define JT_NAME quantize_a8
#define JT_OUT_A8 1
#define JT_N 72
#include "kernel_instances.h"
#undef TEMPLATE

#define TEMPLATE "../templates/cpu/rope_store.c"
#define JT_HEAD_DIM jt_head_dim
#define JT_NAME rope_f32
#include "kernel_instances.h"
#define JT_HEAD_DIM jt_head_dim
#define JT_NAME rope_f16
#define JT_KV_F16 1
#include "kernel_instances.h"
#define JT_HEAD_DIM jt_head_dim
#define JT_NAME rope_f32_norm
#define JT_QK_NORM 1
#include "kernel_instances.h"
#define JT_HEAD_DIM jt_head_dim
#define JT_NAME rope_f16_norm
#define JT_QK_NORM 1
#define JT_KV_F16 1
#include "kernel_instances.h"
#define JT_HEAD_DIM jt_head_dim
#define JT_NAME rope_f32_bias
#define JT_BIAS 1
#include "kernel_instances.h"
#define JT_HEAD_DIM jt_head_dim
#define JT_NAME rope_f16_bias
#define JT_BIAS 1
#define JT_KV_F16 1
#include "kernel_instances.h"
#define JT_HEAD_DIM jt_head_dim
#define JT_NAME rope_i16
#define JT_KV_I16 1
#include "kernel_instances.h"
#define JT_HEAD_DIM jt_head_dim
#define JT_NAME rope_i16_norm
#define JT_QK_NORM 1
#define JT_KV_I16 1
#include "kernel_instances.h"
#define JT_HEAD_DIM jt_head_dim
#define JT_NAME rope_i16_bias
#define JT_BIAS 1
#define JT_KV_I16 1
#include "kernel_instances.h"
#undef TEMPLATE

#define TEMPLATE "../templates/cpu/attention.c"
#define JT_NAME attention_f32_64
#define JT_N 2
#define JT_TOKENS jt_tokens
#define JT_HEAD_DIM 64
#include "kernel_instances.h"
#define JT_NAME attention_part_f32_64
#define JT_N 1
#define JT_HEAD_DIM 64
#include "kernel_instances.h"
#define JT_NAME attention_f32_80
#define JT_N 2
#define JT_TOKENS jt_tokens
#define JT_HEAD_DIM 80
#include "kernel_instances.h"
#define JT_NAME attention_part_f32_80
#define JT_N 1
#define JT_HEAD_DIM 80
#include "kernel_instances.h"
#define JT_NAME attention_f32_96
#define JT_N 2
#define JT_TOKENS jt_tokens
#define JT_HEAD_DIM 96
#include "kernel_instances.h"
#define JT_NAME attention_part_f32_96
#define JT_N 1
#define JT_HEAD_DIM 96
#include "kernel_instances.h"
#define JT_NAME attention_f32_128
#define JT_N 2
#define JT_TOKENS jt_tokens
#define JT_HEAD_DIM 128
#include "kernel_instances.h"
#define JT_NAME attention_part_f32_128
#define JT_N 1
#define JT_HEAD_DIM 128
#include "kernel_instances.h"
#define JT_NAME attention_f32_256
#define JT_N 2
#define JT_TOKENS jt_tokens
#define JT_HEAD_DIM 256
#include "kernel_instances.h"
#define JT_NAME attention_part_f32_256
#define JT_N 1
#define JT_HEAD_DIM 256
#include "kernel_instances.h"
#define JT_NAME attention_f32_64_window
#define JT_N 2
#define JT_TOKENS jt_tokens
#define JT_HEAD_DIM 64
#define JT_WINDOW jt_window
#include "kernel_instances.h"
#define JT_NAME attention_part_f32_64_window
#define JT_N 1
#define JT_HEAD_DIM 64
#define JT_WINDOW jt_window
#include "kernel_instances.h"
#define JT_NAME attention_f32_256_window
#define JT_N 2
#define JT_TOKENS jt_tokens
#define JT_HEAD_DIM 256
#define JT_WINDOW jt_window
#include "kernel_instances.h"
#define JT_NAME attention_part_f32_256_window
#define JT_N 1
#define JT_HEAD_DIM 256
#define JT_WINDOW jt_window
#include "kernel_instances.h"
#define JT_NAME attention_f16_64
#define JT_N 2
#define JT_TOKENS jt_tokens
#define JT_HEAD_DIM 64
#define JT_KV_F16 1
#include "kernel_instances.h"
#define JT_NAME attention_part_f16_64
#define JT_N 1
#define JT_HEAD_DIM 64
#define JT_KV_F16 1
#include "kernel_instances.h"
#define JT_NAME attention_f16_80
#define JT_N 2
#define JT_TOKENS jt_tokens
#define JT_HEAD_DIM 80
#define JT_KV_F16 1
#include "kernel_instances.h"
#define JT_NAME attention_part_f16_80
#define JT_N 1
#define JT_HEAD_DIM 80
#define JT_KV_F16 1
#include "kernel_instances.h"
#define JT_NAME attention_f16_128
#define JT_N 2
#define JT_TOKENS jt_tokens
#define JT_HEAD_DIM 128
#define JT_KV_F16 1
#include "kernel_instances.h"
#define JT_NAME attention_part_f16_128
#define JT_N 1
#define JT_HEAD_DIM 128
#define JT_KV_F16 1
#include "kernel_instances.h"
#define JT_NAME attention_f16_128_window
#define JT_N 2
#define JT_TOKENS jt_tokens
#define JT_HEAD_DIM 128
#define JT_WINDOW jt_window
#define JT_KV_F16 1
#include "kernel_instances.h"
#define JT_NAME attention_part_f16_128_window
#define JT_N 1
#define JT_HEAD_DIM 128
#define JT_WINDOW jt_window
#define JT_KV_F16 1
#include "kernel_instances.h"
#define JT_NAME attention_i16_40
#define JT_N 2
#define JT_TOKENS jt_tokens
#define JT_HEAD_DIM 40
#define JT_KV_I16 1
#include "kernel_instances.h"
#define JT_NAME attention_part_i16_40
#define JT_N 1
#define JT_HEAD_DIM 40
#define JT_KV_I16 1
#include "kernel_instances.h"
#define JT_NAME attention_i16_64
#define JT_N 2
#define JT_TOKENS jt_tokens
#define JT_HEAD_DIM 64
#define JT_KV_I16 1
#include "kernel_instances.h"
#define JT_NAME attention_part_i16_64
#define JT_N 1
#define JT_HEAD_DIM 64
#define JT_KV_I16 1
#include "kernel_instances.h"
#define JT_NAME attention_i16_80
#define JT_N 2
#define JT_TOKENS jt_tokens
#define JT_HEAD_DIM 80
#define JT_KV_I16 1
#include "kernel_instances.h"
#define JT_NAME attention_part_i16_80
#define JT_N 1
#define JT_HEAD_DIM 80
#define JT_KV_I16 1
#include "kernel_instances.h"
#define JT_NAME attention_i16_256
#define JT_N 2
#define JT_TOKENS jt_tokens
#define JT_HEAD_DIM 256
#define JT_KV_I16 1
#include "kernel_instances.h"
#define JT_NAME attention_part_i16_256
#define JT_N 1
#define JT_HEAD_DIM 256
#define JT_KV_I16 1
#include "kernel_instances.h"
#define JT_NAME attention_i16_64_window
#define JT_N 2
#define JT_TOKENS jt_tokens
#define JT_HEAD_DIM 64
#define JT_WINDOW jt_window
#define JT_KV_I16 1
#include "kernel_instances.h"
#define JT_NAME attention_part_i16_64_window
#define JT_N 1
#define JT_HEAD_DIM 64
#define JT_WINDOW jt_window
#define JT_KV_I16 1
#include "kernel_instances.h"
#define JT_NAME attention_i16_128_window
#define JT_N 2
#define JT_TOKENS jt_tokens
#define JT_HEAD_DIM 128
#define JT_WINDOW jt_window
#define JT_KV_I16 1
#include "kernel_instances.h"
#define JT_NAME attention_part_i16_128_window
#define JT_N 1
#define JT_HEAD_DIM 128
#define JT_WINDOW jt_window
#define JT_KV_I16 1
#include "kernel_instances.h"
#undef TEMPLATE
#define TEMPLATE "../templates/cpu/attention_combine.c"
#define JT_NAME attention_combine
#define JT_HEADS 1
#define JT_HEAD_DIM jt_head_dim
#include "kernel_instances.h"
#define JT_NAME attention_combine_window
#define JT_HEADS 1
#define JT_HEAD_DIM jt_head_dim
#define JT_WINDOW jt_window
#include "kernel_instances.h"
#define JT_NAME attention_combine_a16_64
#define JT_HEADS 1
#define JT_HEAD_DIM 64
#define JT_OUT_A16 1
#include "kernel_instances.h"
#define JT_NAME attention_combine_a16_80
#define JT_HEADS 2
#define JT_HEAD_DIM 80
#define JT_OUT_A16 1
#include "kernel_instances.h"
#undef TEMPLATE

#elif defined INSTANCES_QUANT   /* what a weight type has */
#undef INSTANCES_QUANT

#define TEMPLATE "../templates/cpu/embed.c"
#define JT_NAME JOIN(embed, QUANT)
#include "kernel_instances.h"
#undef TEMPLATE
#define TEMPLATE "../templates/cpu/matmul.c"
#define JT_NAME JOIN(matmul_n1, QUANT)
#define JT_N 1
#define JT_TOKENS 4
#include "kernel_instances.h"
#ifdef INSTANCES_EVERY
#define JT_NAME JOIN(matmul_n8, QUANT)
#define JT_N 8
#define JT_TOKENS 4
#include "kernel_instances.h"
#define JT_NAME JOIN(matmul_n8_tokens1, QUANT)
#define JT_N 8
#define JT_TOKENS 1
#include "kernel_instances.h"
#define JT_NAME JOIN(matmul_n24_tokens2, QUANT)
#define JT_N 24
#define JT_TOKENS 2
#include "kernel_instances.h"
#endif
#define JT_NAME JOIN(matmul_n72, QUANT)
#define JT_N 72
#define JT_TOKENS 4
#include "kernel_instances.h"
#ifndef INSTANCES_FLOATS
#define JT_NAME JOIN(matmul_q8_n1, QUANT)
#define JT_ACTIVATIONS_Q8 1
#define JT_N 1
#define JT_TOKENS 4
#include "kernel_instances.h"
#define JT_NAME JOIN(matmul_q8_n24, QUANT)
#define JT_ACTIVATIONS_Q8 1
#define JT_N 24
#define JT_TOKENS 2
#include "kernel_instances.h"
#define JT_NAME JOIN(matmul_q8_n72, QUANT)
#define JT_ACTIVATIONS_Q8 1
#define JT_N 72
#define JT_TOKENS 4
#include "kernel_instances.h"
#endif
#undef TEMPLATE

#else   /* one instance */

#include TEMPLATE
#undef JT_NAME
#undef JT_N
#undef JT_TOKENS
#undef JT_OUT_A16
#undef JT_OUT_A8
#undef JT_ACTIVATIONS_Q8
#undef JT_KV_F16
#undef JT_KV_I16
#undef JT_QK_NORM
#undef JT_BIAS
#undef JT_ADD
#undef JT_WINDOW
#undef JT_ACT_GELU
#undef EXPONENT
#undef V_VALUE
#undef JT_HEAD_DIM
#undef COLUMN
#undef CODES
#undef SCALE
#undef OFFSET
#undef PANEL_TILES
#undef PANEL_VECTORS
#undef TILE_TOKENS
#undef BLOCK_UNITS
#undef TILE_BYTES
#undef BLOCK_COLS
#undef BLOCK_BYTES
#undef UNIT_SCALES
#undef UNIT_MINS
#undef CODE_OFFSET
#undef UNIT_OFFSET
#undef UNIT_STEPS
#undef GROUP_STEPS
#undef PLACE
#undef unit_vectors
#undef UNITS
#undef UNIT_GROUPS
#undef PANEL_UNITS
#undef START_FIRST
#undef WIDENED
#undef SUMS_MADE
#undef SUM_AT
#undef PART_COLS
#undef PARTS
#undef TO_ITEM
#undef HEAD_NORM
#undef HEAD_VALUE
#undef HEAD_WEIGHT
#undef HEADS
#undef KV_COLS
#undef ROW_MAX
#undef CACHE_POSITIONS
#undef CACHE_GROUP
#undef CACHE_SCALES
#undef CACHE_UNIT_BYTES
#undef ITEM_LOAD
#undef ITEM_LOAD_8
#undef NEAR_LOAD
#undef NEAR_LOAD_8
#undef NEAR_ITEMS
#undef JT_HEADS
#undef PART_COLS
#undef COLS
#undef BLOCK
#undef QUERIES
#undef HEADS_AT_ONCE
#undef HEADS_PER_KV
#undef AHEAD
#undef ALONE
#undef SCORES
#undef VALUES
#undef BY_HEADS

#endif
