/* What blocks are made of beside products: one table of functions an instruction set. */
#ifndef FLARECHAT_BLOCK_SETS_H
#define FLARECHAT_BLOCK_SETS_H

#include "isa.h"

#include <stdint.h>

#define FC_KEYS 64       /* cache rows of a block of keys, which begins at a multiple of it */
#define FC_HEAD_DIM 256  /* the widest head */

/* Queries of one lane and kv head: row i is of head i % group at window row i / group. A window row
 * w stands at position + w and sees the cache rows up to there, or row 0 if it stands before. */
typedef struct {
    const float *q; /* of window row 0: `group` heads, rotated and scaled */
    const uint16_t *keys, *values;
    int64_t stride, position; /* floats between window rows; where window row 0 stands */
    int32_t group, head_dim;
} fc_queries;

/* Softmax over some keys before it is divided: the weighted sum of values, in as many floats as
 * fc_sum_values says; then the largest score and the sum of weights, in FC_SUM_TAIL floats. */
#define FC_SUM_TAIL 16

static inline int32_t fc_sum_values(int32_t head_dim) { return (head_dim + 15) / 16 * 16; }
static inline int32_t fc_sum_floats(int32_t head_dim) { return fc_sum_values(head_dim) + FC_SUM_TAIL; }

/* Cache rows that row i sees. */
static inline int64_t fc_seen(const fc_queries *queries, int32_t i) {
    const int64_t position = queries->position + i / queries->group;
    return position > 0 ? position + 1 : 1;
}

typedef struct {
    /* Of rows first ... last-1 those that see the block: what they sum over it. Row i's goes to
     * sums + (i - first) * fc_sum_floats, folded into what is there if `fold`. */
    void (*attend)(const fc_queries *queries, int64_t block, int32_t first, int32_t last, int fold,
                   float *sums);
    /* Add the sum over a later block to one. */
    void (*fold)(float *sum, const float *later, int32_t head_dim);
    /* Rotate heads of head_dim in place by one position's cosines and sines, then scale them. */
    void (*rotate)(float *x, int32_t heads, int32_t head_dim, const float *cos, const float *sin,
                   float scale);
    void (*to_half)(const float *x, int32_t count, uint16_t *y);
    /* gate = silu(gate) * up. */
    void (*activate)(float *gate, const float *up, int32_t count);
} fc_block_set;

extern const fc_block_set fc_block_portable;
#ifdef FC_X86
extern const fc_block_set fc_block_avx2, fc_block_avx512;
#endif

static inline const fc_block_set *fc_blocks(void) {
    static const fc_block_set *const sets[FC_INSTRUCTION_SETS] = {
        &fc_block_portable,
#ifdef FC_X86
        &fc_block_avx2,
        &fc_block_avx512,
#endif
    };
    return sets[fc_isa()];
}

#endif
