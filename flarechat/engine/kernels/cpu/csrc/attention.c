/* An attention block: where its rows stand, and how its work is cut for threads. A row's blocks of
 * keys are folded in their order however the work is cut. */
#include "block.h"
#include "block_sets.h"

#include <math.h>
#include <stdatomic.h>

/* Queries of a kv head that go over its keys together, at most. */
enum { MOST_ROWS = 48 };

/* Pieces that the work is cut into, about: some for every thread of many. */
enum { PIECES = 48 };

typedef struct {
    const fc_attention *block;
    const fc_window *window;
    const fc_block_set *set;
    float *q, *k, *v, *seen, *sums;
    atomic_int *left;
    int32_t queries;          /* rows of a kv head: window width times heads of a group */
    int32_t cuts, rows;       /* cuts of these, and rows of one */
    int32_t blocks, runs, run; /* of keys: most of a lane, runs of them and blocks of one */
} attending;

static int64_t stands(const fc_window *window, int32_t lane, int32_t w) {
    return window->consumed[window->index[lane]] + window->shift + w;
}

/* Rotate some rows and write their keys and values. */
static void place(void *what, int32_t chunk) {
    const attending *a = what;
    const fc_attention *block = a->block;
    const fc_window *window = a->window;
    const int32_t kv_heads = block->kv_heads, head_dim = block->head_dim;
    const int32_t rows = window->lanes * window->width, end = (chunk + 1) * FC_ROWS;
    for (int32_t row = chunk * FC_ROWS; row < end && row < rows; row++) {
        const int32_t lane = row / window->width, w = row % window->width;
        const int64_t slot = window->index[lane], position = stands(window, lane, w);
        const int own = position >= 0 && (window->prefilling || !window->finish[slot]);
        const int64_t angle = (position > 0 ? position : 0) * head_dim;
        const float *cos = block->cos + angle, *sin = block->sin + angle;
        float *k = a->k + (int64_t)row * kv_heads * head_dim;
        if (a->q)
            a->set->rotate(a->q + (int64_t)row * block->heads * head_dim, block->heads, head_dim,
                           cos, sin, 1.0f / sqrtf((float)head_dim));
        a->set->rotate(k, kv_heads, head_dim, cos, sin, 1.0f);
        for (int32_t head = 0; head < kv_heads; head++) {
            const int64_t at = slot * block->slot_stride + head * block->head_stride +
                               (own ? position : window->spare + w) * head_dim;
            a->set->to_half(k + head * head_dim, head_dim, block->keys + at);
            a->set->to_half(a->v + ((int64_t)row * kv_heads + head) * head_dim, head_dim,
                            block->values + at);
        }
    }
}

static fc_queries queries_of(const attending *a, int32_t lane, int32_t kv_head) {
    const fc_attention *block = a->block;
    const int64_t stride = (int64_t)block->heads * block->head_dim;
    const int64_t at = a->window->index[lane] * block->slot_stride + kv_head * block->head_stride;
    const int32_t group = block->heads / block->kv_heads;
    const int64_t head = (int64_t)kv_head * group * block->head_dim;
    return (fc_queries){a->q + lane * a->window->width * stride + head, block->keys + at,
                        block->values + at, stride, stands(a->window, lane, 0), group,
                        block->head_dim};
}

static int32_t blocks_of(const fc_queries *queries, int32_t row) {
    return (int32_t)((fc_seen(queries, row) + FC_KEYS - 1) / FC_KEYS);
}

/* Row `row` of the queries has seen all it sees. */
static void finish(const attending *a, const fc_queries *queries, int32_t row, const float *sum) {
    const int32_t head_dim = queries->head_dim;
    const float inverse = 1.0f / sum[fc_sum_values(head_dim) + 1];
    float *seen = a->seen + (queries->q - a->q) + row / queries->group * queries->stride +
                  row % queries->group * head_dim;
    for (int32_t d = 0; d < head_dim; d++)
        seen[d] = sum[d] * inverse;
}

/* One cut of one lane's and kv head's queries over all keys; the last cuts, which see most, first. */
static void attend_cut(void *what, int32_t chunk) {
    const attending *a = what;
    const int32_t kv_heads = a->block->kv_heads, heads = a->window->lanes * kv_heads;
    const int32_t cut = a->cuts - 1 - chunk / heads, head = chunk % heads;
    const fc_queries queries = queries_of(a, head / kv_heads, head % kv_heads);
    const int32_t first = cut * a->rows, end = first + a->rows;
    const int32_t last = end < a->queries ? end : a->queries;
    _Alignas(64) float sums[MOST_ROWS * (FC_HEAD_DIM + FC_SUM_TAIL)];
    for (int32_t block = 0; block < blocks_of(&queries, last - 1); block++)
        a->set->attend(&queries, block, first, last, block > 0, sums);
    for (int32_t row = first; row < last; row++)
        finish(a, &queries, row, sums + (row - first) * fc_sum_floats(queries.head_dim));
}

/* All queries of a lane and kv head over a run of blocks; who ends the last run folds them all. */
static void attend_run(void *what, int32_t chunk) {
    const attending *a = what;
    const int32_t kv_heads = a->block->kv_heads, head = chunk / a->runs;
    const fc_queries queries = queries_of(a, head / kv_heads, head % kv_heads);
    const int64_t floats = fc_sum_floats(queries.head_dim), all = a->queries * floats;
    const int32_t first = chunk % a->runs * a->run, end = first + a->run;
    float *sums = a->sums + (int64_t)head * a->blocks * all;
    for (int32_t block = first; block < end && block < blocks_of(&queries, a->queries - 1); block++)
        a->set->attend(&queries, block, 0, a->queries, 0, sums + block * all);
    if (atomic_fetch_sub_explicit(&a->left[head], 1, memory_order_acq_rel) > 1)
        return;
    /* Rows within blocks: folds of one row wait for one another. */
    for (int32_t block = 1; block < blocks_of(&queries, a->queries - 1); block++)
        for (int32_t row = 0; row < a->queries; row++)
            if (block < blocks_of(&queries, row))
                a->set->fold(sums + row * floats, sums + block * all + row * floats,
                             queries.head_dim);
    for (int32_t row = 0; row < a->queries; row++)
        finish(a, &queries, row, sums + row * floats);
}

/* Few queries are cut by their keys, many by rows. */
static void attend(attending *a) {
    const int32_t heads = a->window->lanes * a->block->kv_heads;
    const int32_t least = (a->queries + MOST_ROWS - 1) / MOST_ROWS;
    if (least > 1 || heads >= PIECES) {
        a->cuts = least;
        a->rows = (a->queries + least - 1) / least;
        fc_parallel(attend_cut, a, a->cuts * heads);
        return;
    }
    for (int32_t lane = 0; lane < a->window->lanes; lane++) {
        const fc_queries queries = queries_of(a, lane, 0);
        const int32_t blocks = blocks_of(&queries, a->queries - 1);
        a->blocks = blocks > a->blocks ? blocks : a->blocks;
    }
    a->run = (heads * a->blocks + PIECES - 1) / PIECES;
    a->runs = (a->blocks + a->run - 1) / a->run;
    a->sums = fc_scratch(FC_BLOCK_SUMS, sizeof(float) * heads * a->blocks * a->queries *
                                            fc_sum_floats(a->block->head_dim));
    a->left = fc_scratch(FC_BLOCK_LEFT, sizeof(atomic_int) * heads);
    for (int32_t head = 0; head < heads; head++)
        atomic_init(&a->left[head], a->runs);
    fc_parallel(attend_run, a, heads * a->runs);
}

/* Products of the normalised rows: keys, values and, if wanted, queries; then `place`. */
static attending begin(const fc_attention *block, const fc_window *window, const float *x,
                       int with_queries) {
    const int32_t rows = window->lanes * window->width, from = with_queries ? 0 : 1;
    const fc_matrix *const matrices[] = {&block->q, &block->k, &block->v};
    attending a = {.block = block, .window = window, .set = fc_blocks()};
    a.queries = window->width * (block->heads / block->kv_heads);
    if (with_queries)
        a.q = fc_scratch(FC_BLOCK_QUERIES, (size_t)rows * block->q.rows * sizeof(float));
    a.k = fc_scratch(FC_BLOCK_KEYS, (size_t)rows * block->k.rows * sizeof(float));
    a.v = fc_scratch(FC_BLOCK_VALUES, (size_t)rows * block->v.rows * sizeof(float));
    const fc_ready ready = fc_prepare(x, rows, block->k.columns, block->norm, block->eps,
                                      matrices + from, 3 - from);
    const fc_output outputs[] = {
        {&block->q, a.q, NULL}, {&block->k, a.k, NULL}, {&block->v, a.v, NULL}};
    fc_products(&ready, outputs + from, 3 - from);
    fc_each_rows(place, &a, rows);
    return a;
}

void fc_attention_write(const fc_attention *block, const fc_window *window, const float *x) {
    begin(block, window, x, 0);
}

void fc_attention_block(const fc_attention *block, const fc_window *window, const float *x,
                        float *y) {
    const int32_t rows = window->lanes * window->width, columns = block->out.columns;
    attending a = begin(block, window, x, 1);
    a.seen = fc_scratch(FC_BLOCK_SEEN, (size_t)rows * columns * sizeof(float));
    attend(&a);
    const fc_matrix *const matrices[] = {&block->out};
    const fc_ready seen = fc_prepare(a.seen, rows, columns, NULL, 0.0f, matrices, 1);
    const fc_output out = {&block->out, y, x};
    fc_products(&seen, &out, 1);
}
