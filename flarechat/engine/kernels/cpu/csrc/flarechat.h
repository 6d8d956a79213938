/* C interface of flarechat's CPU kernels.
 *
 * Rows of activations are float32, contiguous and row-major. Every function takes any number of
 * rows, and a row's result depends on nothing but that row: not on how many it travels with, not
 * on the threads, not on the instruction set. All arithmetic is therefore written in one order of
 * summation, with fused multiply-adds named as such, and compiled without contraction.
 *
 * Calls come from one thread at a time. Nothing here fails: sizes are checked by the caller.
 */
#ifndef FLARECHAT_H
#define FLARECHAT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FC_TILE 16  /* rows of a weight that lie side by side */
#define FC_GROUP 32 /* columns of a quantised weight that share a scale */

enum { FC_Q4_0 = 0, FC_Q4_1 = 1, FC_Q8_0 = 2, FC_BF16 = 3 };

/* A weight [rows, columns]. Rows are padded to whole tiles of FC_TILE with zeros. Tile after tile:
 *
 * FC_Q4_1: for every group of 32 columns 256 bytes of codes, 16 float16 scales, 16 float16 minima
 *          (320 bytes). Byte 64 i + 4 r + j of the codes (i < 4, r < 16, j < 4) has of row r the
 *          code of column 4 i + j in its low half and of column 16 + 4 i + j in its high half.
 *          A value is code * scale + minimum.
 * FC_Q4_0: the same without minima (288 bytes). A value is (code - 8) * scale.
 * FC_Q8_0: for every group 512 bytes, 16 float16 scales (544 bytes). Byte 64 i + 4 r + j (i < 8)
 *          is of row r the signed code of column 4 i + j. A value is code * scale.
 * FC_BF16: for every column 16 bfloat16, one a row (32 bytes).
 *
 * Quantised columns are a multiple of FC_GROUP, as they are in their files. `data` is aligned to
 * 32 bytes. */
typedef struct {
    const void *data;
    int32_t kind, rows, columns;
} fc_matrix;

/* Rows w = 0 ... width-1 of `lanes` lanes. Row w of lane b stands at position
 * p = consumed[index[b]] + shift + w. It is written to cache row p; a row with p < 0, or of a lane
 * whose finish is not 0 while the window is not `prefilling`, goes to cache row spare + w and is
 * rotated as position max(p, 0). It sees cache rows 0 ... max(p, 0). */
typedef struct {
    const int64_t *index, *consumed, *finish;
    int64_t spare;
    int32_t lanes, width, shift, prefilling;
} fc_window;

/* One attention block. cos and sin are [positions, head_dim], both halves alike; keys and values
 * float16 [slots, kv_heads, rows, head_dim] with strides in elements. */
typedef struct {
    const float *norm, *cos, *sin;
    uint16_t *keys, *values;
    int64_t slot_stride, head_stride;
    fc_matrix q, k, v, out;
    float eps;
    int32_t heads, kv_heads, head_dim;
} fc_attention;

typedef struct {
    const float *norm;
    fc_matrix gate, up, down;
    float eps;
} fc_mlp;

/* y = x + out(attention(norm(x))), x and y [lanes * width, hidden]; new keys and values are
 * written first. y may be x. */
void fc_attention_block(const fc_attention *block, const fc_window *window, const float *x, float *y);

/* Only the keys and values of x. */
void fc_attention_write(const fc_attention *block, const fc_window *window, const float *x);

/* y = x + down(silu(gate(norm(x))) * up(norm(x))). y may be x. */
void fc_mlp_block(const fc_mlp *block, int32_t rows, const float *x, float *y);

/* y [rows, matrix rows] = the product of x [rows, matrix columns], normalised first if norm. */
void fc_linear(const fc_matrix *matrix, const float *norm, float eps, int32_t rows, const float *x,
               float *y);

/* y [count, columns] = rows `ids` of a weight, as float32. */
void fc_lookup(const fc_matrix *matrix, int32_t count, const int64_t *ids, float *y);

/* Threads that work together, the caller's included; and how many worked in the last call. */
void fc_set_threads(int32_t threads);
int32_t fc_threads(void);

/* The instruction set in use: "portable", "avx2", "avxvnni" or "avx512". fc_use takes one of them for
 * all later calls and says 1, or 0 where the machine lacks it. */
const char *fc_instructions(void);
int32_t fc_use(const char *name);

/* The digest of the sources that the library was made of, "" where its build gave none. */
const char *fc_sources(void);

#ifdef __cplusplus
}
#endif

#endif
