/* Products, for the kernels that are made of them. */
#ifndef FLARECHAT_LINEAR_H
#define FLARECHAT_LINEAR_H

#include "flarechat.h"

#include <stddef.h>

/* Activations as quantised products read them: of every row and group of 32 columns the largest value
 * as it is, int8 codes of the others, a scale and the sum. Values beyond 7e35 may make infinities. */
size_t fc_quantised_bytes(int32_t rows, int32_t columns);

/* Quantise rows first ... last-1 of x [rows, columns] into `packed`, which is for all `rows`. */
void fc_quantise(const float *x, int32_t rows, int32_t columns, int32_t first, int32_t last,
                 void *packed);

static inline int32_t fc_tiles(const fc_matrix *matrix) {
    return (matrix->rows + FC_TILE - 1) / FC_TILE;
}

/* Tiles first ... last-1 of y = x times the matrix, plus `added` (may be y, or NULL). Rows of y and
 * added are `stride` floats apart. `packed` is what fc_quantise made of x; FC_BF16 reads x. */
void fc_product(const fc_matrix *matrix, int32_t first, int32_t last, int32_t rows, const float *x,
                const void *packed, float *y, const float *added, int64_t stride);

/* Tiles that make a chunk for fc_parallel: enough that claiming it costs nothing, few enough that
 * threads end together. */
int32_t fc_chunk_tiles(const fc_matrix *matrix);

/* Root-mean-square normalisation of one row. */
void fc_normalise(const float *x, const float *weight, float eps, int32_t columns, float *y);

#endif
