#include "chain.h"

#include "block.h"

#include <string.h>

/* Scratch of this file. */
enum { PAIRS = FC_SCRATCH_CHAIN, HIDDEN, ROWS, LOGITS };

void fc_blocks(const fc_block *blocks, int32_t count, const fc_window *window, const float *x,
               float *y) {
    const int32_t rows = window->lanes * window->width;
    for (int32_t i = 0; i < count; i++) {
        fc_attention_block(blocks[i].attention, window, i ? y : x, y);
        fc_mlp_block(blocks[i].mlp, rows, y, y);
    }
}

typedef struct {
    const fc_head *head;
    const float *hidden, *embedded;
    float *pairs;
    int32_t rows;
} pairing;

static void normalise_pairs(void *what, int32_t chunk) {
    const pairing *p = what;
    const fc_head *head = p->head;
    const int32_t dim = head->pairing.rows, end = (chunk + 1) * FC_ROWS;
    for (int32_t row = chunk * FC_ROWS; row < end && row < p->rows; row++) {
        const int64_t at = (int64_t)row * dim;
        float *pair = p->pairs + 2 * at;
        fc_normalise(p->hidden + at, head->norm_hidden, head->eps, dim, pair);
        fc_normalise(p->embedded + at, head->norm_embedding, head->eps, dim, pair + dim);
    }
}

void fc_pair(const fc_head *head, int32_t rows, const float *hidden, const int64_t *ids, float *x) {
    const size_t all = (size_t)rows * head->pairing.rows;
    float *embedded = fc_scratch(PAIRS, 3 * all * sizeof(float));
    pairing p = {head, hidden, embedded, embedded + all, rows};
    fc_lookup(&head->embedding, rows, ids, embedded);
    fc_each_rows(normalise_pairs, &p, rows);
    fc_linear(&head->pairing, NULL, 0.0f, rows, p.pairs, x);
}

/* Whether any lane draws draft `step`, rather than being given it. */
static int any_draws(const fc_chain *chain, int32_t lanes, int32_t step) {
    int any = !chain->staged.tokens;
    for (int32_t lane = 0; lane < lanes && !any; lane++)
        any = step >= chain->staged_offered[lane];
    return any;
}

void fc_draft(const fc_head *head, const fc_slots *slots, const int64_t *index, int32_t lanes,
              const fc_table *table, int32_t penalties, const fc_chain *chain) {
    const size_t hidden_bytes = (size_t)(lanes * table->bytes);
    fc_rows rows = {NULL, head->vocabulary, head->output.rows, 1, 0, penalties};
    float *logits = fc_scratch(LOGITS, sizeof(float) * (size_t)lanes * (size_t)rows.columns);
    int64_t *said = fc_scratch(ROWS, sizeof(int64_t) * (size_t)lanes);
    float *hidden = fc_scratch(HIDDEN, hidden_bytes);
    fc_window window = {index, slots->consumed, slots->finish, table->spare, lanes, 1, -1, 0};
    rows.logits = logits;
    fc_last(slots, index, lanes, table, (char *)hidden);
    for (int32_t lane = 0; lane < lanes; lane++)
        said[lane] = slots->pending[index[lane]];
    for (; rows.first < chain->depth; rows.first++, window.shift++) {
        fc_pair(head, lanes, hidden, said, hidden);
        fc_blocks(head->blocks, head->count, &window, hidden, hidden);
        if (any_draws(chain, lanes, rows.first))
            fc_linear(&head->output, head->norm, head->eps, lanes, hidden, logits);
        fc_draw(slots, index, lanes, &rows, chain, said);
    }
}

/* before [lanes, width]: the hidden rows that go with a pass's inputs, each one behind its own. */
static void find_before(const fc_slots *slots, const int64_t *index, int32_t lanes, int32_t width,
                        const fc_table *table, const char *own, char *before) {
    const size_t bytes = (size_t)table->bytes, of_lane = bytes * (size_t)width;
    for (int32_t lane = 0; lane < lanes; lane++, own += of_lane, before += of_lane) {
        fc_last(slots, index + lane, 1, table, before);
        memcpy(before + bytes, own, of_lane - bytes);
    }
}

void fc_absorb(const fc_head *head, const fc_slots *slots, const int64_t *index, int32_t lanes,
               int32_t width, int32_t prefilling, const fc_table *table, const float *exported,
               const int64_t *inputs) {
    const int32_t rows = lanes * width;
    const size_t bytes = (size_t)(rows * table->bytes);
    const float *own = exported;
    if (head->fuse.data) {
        float *fused = fc_scratch(ROWS, bytes);
        fc_linear(&head->fuse, NULL, 0.0f, rows, exported, fused);
        own = fused;
    }
    float *x = inputs ? fc_scratch(HIDDEN, bytes) : NULL;
    if (inputs)
        find_before(slots, index, lanes, width, table, (const char *)own, (char *)x);
    fc_store(slots, index, lanes, width, prefilling, table, (const char *)own);
    if (!inputs)
        return;
    const fc_window window = {index,        slots->consumed, slots->finish, table->spare,
                              lanes, width, -1,              prefilling};
    const int32_t before_last = head->count - 1;
    fc_pair(head, rows, x, inputs, x);
    fc_blocks(head->blocks, before_last, &window, x, x);
    fc_attention_write(head->blocks[before_last].attention, &window, x);
}
