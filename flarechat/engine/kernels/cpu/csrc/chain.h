/* A draft head over its target's hidden rows: whole chains of drafts, and what it keeps of a pass. */
#ifndef FLARECHAT_CHAIN_H
#define FLARECHAT_CHAIN_H

#include "flarechat.h"
#include "rounds.h"

typedef struct {
    const fc_attention *attention;
    const fc_mlp *mlp;
} fc_block;

/* y = x through `count` blocks, one after the other; y may be x. */
void fc_blocks(const fc_block *blocks, int32_t count, const fc_window *window, const float *x,
               float *y);

/* A head of `count` blocks, one at least. Row i pairs the hidden row of token i with token i + 1:
 * pairs [2 D] are what `pairing` [D, 2 D] makes of the two, normalised each. `output` [columns, D]
 * is of the tokens `vocabulary` [columns], or NULL. `fuse` [D, taps D] makes a hidden row of what
 * the target exports; its data are NULL where that is one. All rows have `eps`. */
typedef struct {
    const float *norm_hidden, *norm_embedding, *norm;
    const fc_block *blocks;
    const int64_t *vocabulary;
    fc_matrix embedding, pairing, fuse, output;
    float eps;
    int32_t count;
} fc_head;

/* x [rows, D] = what the first block reads of hidden [rows, D] and the tokens `ids` [rows]. x may be
 * hidden. */
void fc_pair(const fc_head *head, int32_t rows, const float *hidden, const int64_t *ids, float *x);

/* All drafts of a chain: fc_draw for each of its steps. `table` has the hidden rows, of which each
 * lane begins at its last. */
void fc_draft(const fc_head *head, const fc_slots *slots, const int64_t *index, int32_t lanes,
              const fc_table *table, int32_t penalties, const fc_chain *chain);

/* Put the hidden rows of a pass, which exported them [lanes, width, taps D], behind the consumed
 * ones. With the pass's inputs [lanes, width] also keep the head's keys and values of their pairs. */
void fc_absorb(const fc_head *head, const fc_slots *slots, const int64_t *index, int32_t lanes,
               int32_t width, int32_t prefilling, const fc_table *table, const float *exported,
               const int64_t *inputs);

#endif
