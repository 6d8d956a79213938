#include "block.h"
#include "block_sets.h"

typedef struct {
    const fc_mlp *block;
    const fc_block_set *set;
    fc_ready x;
    float *gate, *up;
    int32_t tiles;
} activating;

/* Some tiles of gate and up, and of them the gate's product at once. */
static void activate(void *what, int32_t chunk) {
    const activating *a = what;
    const int32_t inner = a->block->gate.rows, all = fc_tiles(&a->block->gate);
    const int32_t first = chunk * a->tiles, end = first + a->tiles, last = end < all ? end : all;
    const int32_t column = first * FC_TILE, stop = last * FC_TILE;
    const int32_t columns = (stop < inner ? stop : inner) - column;
    fc_product(&a->block->gate, first, last, a->x.rows, a->x.x, a->x.packed, a->gate, NULL, inner);
    fc_product(&a->block->up, first, last, a->x.rows, a->x.x, a->x.packed, a->up, NULL, inner);
    for (int32_t row = 0; row < a->x.rows; row++) {
        const int64_t at = (int64_t)row * inner + column;
        a->set->activate(a->gate + at, a->up + at, columns);
    }
}

void fc_mlp_block(const fc_mlp *block, int32_t rows, const float *x, float *y) {
    const fc_matrix *const first[] = {&block->gate, &block->up}, *const second = &block->down;
    const int32_t hidden = block->gate.columns, inner = block->gate.rows;
    const size_t bytes = (size_t)rows * inner * sizeof(float);
    activating a = {.block = block, .set = fc_blocks()};
    a.x = fc_prepare(x, rows, hidden, block->norm, block->eps, first, 2);
    a.gate = fc_scratch(FC_BLOCK_GATE, bytes);
    a.up = fc_scratch(FC_BLOCK_UP, bytes);
    a.tiles = (fc_chunk_tiles(&block->gate) + 1) / 2;
    fc_parallel(activate, &a, (fc_tiles(&block->gate) + a.tiles - 1) / a.tiles);
    const fc_ready inside = fc_prepare(a.gate, rows, inner, NULL, 0.0f, &second, 1);
    const fc_output down = {&block->down, y, x};
    fc_products(&inside, &down, 1);
}
