#include "block.h"

void fc_each_rows(fc_work work, void *what, int32_t rows) {
    fc_parallel(work, what, (rows + FC_ROWS - 1) / FC_ROWS);
}

typedef struct {
    const float *x, *norm;
    float eps, *normalised;
    void *packed;
    int32_t rows, columns;
} preparing;

static void prepare(void *what, int32_t chunk) {
    const preparing *p = what;
    const int32_t first = chunk * FC_ROWS, end = first + FC_ROWS;
    const int32_t last = end < p->rows ? end : p->rows;
    for (int32_t row = first; p->norm && row < last; row++)
        fc_normalise(p->x + (int64_t)row * p->columns, p->norm, p->eps, p->columns,
                     p->normalised + (int64_t)row * p->columns);
    if (p->packed)
        fc_quantise(p->norm ? p->normalised : p->x, p->rows, p->columns, first, last, p->packed);
}

fc_ready fc_prepare(const float *x, int32_t rows, int32_t columns, const float *norm, float eps,
                    const fc_matrix *const *matrices, int32_t count) {
    preparing p = {x, norm, eps, NULL, NULL, rows, columns};
    if (norm)
        p.normalised = fc_scratch(FC_BLOCK_NORMALISED, (size_t)rows * columns * sizeof(float));
    for (int32_t i = 0; i < count && !p.packed; i++)
        if (matrices[i]->kind != FC_BF16)
            p.packed = fc_scratch(FC_BLOCK_PACKED, fc_quantised_bytes(rows, columns));
    fc_each_rows(prepare, &p, rows);
    return (fc_ready){norm ? p.normalised : x, p.packed, rows};
}

typedef struct {
    const fc_ready *x;
    const fc_output *outputs;
    int32_t count, tiles;
} multiplying;

/* Some tiles of the outputs' matrices, which lie one after the other. */
static void multiply(void *what, int32_t chunk) {
    const multiplying *m = what;
    int32_t first = chunk * m->tiles, last = first + m->tiles;
    for (int32_t i = 0; i < m->count; i++) {
        const fc_output *output = &m->outputs[i];
        const int32_t tiles = fc_tiles(output->matrix), end = last < tiles ? last : tiles;
        if (first < end)
            fc_product(output->matrix, first, end, m->x->rows, m->x->x, m->x->packed, output->y,
                       output->added, output->matrix->rows);
        first = first > tiles ? first - tiles : 0;
        last -= tiles;
    }
}

void fc_products(const fc_ready *x, const fc_output *outputs, int32_t count) {
    multiplying m = {x, outputs, count, fc_chunk_tiles(outputs[0].matrix)};
    int32_t tiles = 0;
    for (int32_t i = 0; i < count; i++)
        tiles += fc_tiles(outputs[i].matrix);
    fc_parallel(multiply, &m, (tiles + m.tiles - 1) / m.tiles);
}
