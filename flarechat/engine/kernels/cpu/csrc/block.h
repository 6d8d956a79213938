/* What attention and MLP blocks share: rows made ready for products, and products side by side. */
#ifndef FLARECHAT_BLOCK_H
#define FLARECHAT_BLOCK_H

#include "linear.h"
#include "parallel.h"

/* Scratch of blocks. */
enum {
    FC_BLOCK_NORMALISED = FC_SCRATCH_BLOCKS,
    FC_BLOCK_PACKED,
    FC_BLOCK_QUERIES,
    FC_BLOCK_KEYS,
    FC_BLOCK_VALUES,
    FC_BLOCK_SEEN,
    FC_BLOCK_SUMS,
    FC_BLOCK_LEFT,
    FC_BLOCK_GATE = FC_BLOCK_QUERIES,
    FC_BLOCK_UP = FC_BLOCK_KEYS,
};

/* Rows that one thread takes at a time; fewer are the caller's, as waking others takes longer. */
enum { FC_ROWS = 8 };

void fc_each_rows(fc_work work, void *what, int32_t rows);

/* Rows as products read them: floats, and packed unless no product is of quantised weights. */
typedef struct {
    const float *x;
    const void *packed;
    int32_t rows;
} fc_ready;

/* x [rows, columns] for products with `matrices`, normalised first if norm. */
fc_ready fc_prepare(const float *x, int32_t rows, int32_t columns, const float *norm, float eps,
                    const fc_matrix *const *matrices, int32_t count);

/* y [rows, matrix rows] = x times the matrix, plus `added` [rows, matrix rows] or NULL. */
typedef struct {
    const fc_matrix *matrix;
    float *y;
    const float *added;
} fc_output;

/* Several products of the same rows, as one piece of work. */
void fc_products(const fc_ready *x, const fc_output *outputs, int32_t count);

#endif
