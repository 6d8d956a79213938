#include "linear.h"

#include "linear_sets.h"
#include "parallel.h"

/* Scratch of this file. */
enum { NORMALISED = FC_SCRATCH_LINEAR, PACKED };

/* Bytes of weights a chunk reads at least: what two threads read in about 2 us. */
enum { CHUNK_BYTES = 32 << 10 };

static const fc_linear_set *set(void) {
    static const fc_linear_set *const sets[FC_INSTRUCTION_SETS] = {
        &fc_linear_portable,
#ifdef FC_X86
        &fc_linear_avx2,
        &fc_linear_avx512,
#endif
    };
#ifdef FC_AVXVNNI
    if (fc_isa_dots())
        return &fc_linear_avxvnni;
#endif
    return sets[fc_isa()];
}

size_t fc_quantised_bytes(int32_t rows, int32_t columns) {
    return (size_t)rows * (size_t)(columns / FC_GROUP) * sizeof(fc_packed_group);
}

void fc_quantise(const float *x, int32_t rows, int32_t columns, int32_t first, int32_t last,
                 void *packed) {
    const int64_t groups = columns / FC_GROUP, start = first * groups;
    (void)rows;
    set()->quantise(x + start * FC_GROUP, (last - first) * groups,
                    (fc_packed_group *)packed + start);
}

void fc_product(const fc_matrix *matrix, int32_t first, int32_t last, int32_t rows, const float *x,
                const void *packed, float *y, const float *added, int64_t stride) {
    const fc_operands operands = {matrix, rows, x, packed, y, added, stride};
    set()->product(&operands, first, last);
}

void fc_normalise(const float *x, const float *weight, float eps, int32_t columns, float *y) {
    set()->normalise(x, weight, eps, columns, y);
}

int32_t fc_chunk_tiles(const fc_matrix *matrix) {
    const int32_t tiles = (int32_t)(CHUNK_BYTES / fc_tile_bytes(matrix));
    return tiles > 1 ? tiles : 1;
}

typedef struct {
    const fc_matrix *matrix;
    const float *norm;
    float eps;
    int32_t rows, tiles;
    const float *x;
    float *normalised, *y;
    void *packed;
} linear_call;

/* One row of activations as the product reads it. */
static void prepare(void *what, int32_t row) {
    const linear_call *call = what;
    const int32_t columns = call->matrix->columns;
    const float *x = call->x;
    if (call->norm) {
        fc_normalise(x + (int64_t)row * columns, call->norm, call->eps, columns,
                     call->normalised + (int64_t)row * columns);
        x = call->normalised;
    }
    if (call->packed)
        fc_quantise(x, call->rows, columns, row, row + 1, call->packed);
}

static void multiply(void *what, int32_t chunk) {
    const linear_call *call = what;
    const int32_t first = chunk * call->tiles, all = fc_tiles(call->matrix);
    const int32_t last = first + call->tiles < all ? first + call->tiles : all;
    fc_product(call->matrix, first, last, call->rows, call->norm ? call->normalised : call->x,
               call->packed, call->y, NULL, call->matrix->rows);
}

void fc_linear(const fc_matrix *matrix, const float *norm, float eps, int32_t rows, const float *x,
               float *y) {
    const int32_t columns = matrix->columns, tiles = fc_chunk_tiles(matrix);
    linear_call call = {matrix, norm, eps, rows, tiles, x, NULL, y, NULL};
    if (norm)
        call.normalised = fc_scratch(NORMALISED, (size_t)rows * columns * sizeof(float));
    if (matrix->kind != FC_BF16)
        call.packed = fc_scratch(PACKED, fc_quantised_bytes(rows, columns));
    if (rows > 8)
        fc_parallel(prepare, &call, rows);
    else
        for (int32_t row = 0; row < rows; row++)
            prepare(&call, row);
    fc_parallel(multiply, &call, (fc_tiles(matrix) + tiles - 1) / tiles);
}
