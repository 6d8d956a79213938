/* Logits to the law of a row over its likeliest tokens, and a draft's draw. */
#include "parallel.h"
#include "rounds_draws.h"
#include "rounds_penalties.h"

#include <stddef.h>
#include <string.h>

enum { BLOCK = 128, SCRATCH_MAXIMA = FC_SCRATCH_ROUNDS + 2 };

typedef struct {
    const fc_slots *slots;
    const int64_t *index;
    const fc_rows *rows;
    const fc_drafts *drafts;
    float *maxima;
    void *overlays;
    int32_t candidates;
    float *probs;
    int64_t *ids;
} law_job;

/* A value and its column in one number: in the order of values, and of lower columns first. */
static inline int64_t packed(float value, int64_t column) {
    int32_t bits;
    value = value == 0 ? 0 : value;
    memcpy(&bits, &value, sizeof bits);
    int64_t ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF);
    return (int64_t)((uint64_t)ordered << 32) + (column ^ 0x7FFFFFFF);
}

static inline int64_t column_of(int64_t key) { return (key & 0xFFFFFFFF) ^ 0x7FFFFFFF; }

static inline float value_of(int64_t key) {
    int32_t ordered = (int32_t)(key >> 32), bits = ordered ^ ((ordered >> 31) & 0x7FFFFFFF);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Falling keys, `most` of them at most. */
typedef struct {
    int64_t keys[FC_CANDIDATES];
    int32_t count, most;
} best_keys;

static inline void insert(best_keys *best, int64_t key) {
    int32_t at = best->count;
    if (at == best->most) {
        if (key <= best->keys[at - 1])
            return;
        at--;
    } else {
        best->count++;
    }
    for (; at > 0 && best->keys[at - 1] < key; at--)
        best->keys[at] = best->keys[at - 1];
    best->keys[at] = key;
}

static float maximum(const float *values, int64_t count) {
    float lanes[16], best = -INFINITY;
    int64_t i = 0;
    for (int j = 0; j < 16; j++)
        lanes[j] = -INFINITY;
    for (; i + 16 <= count; i += 16)
        for (int j = 0; j < 16; j++)
            lanes[j] = values[i + j] > lanes[j] ? values[i + j] : lanes[j];
    for (; i < count; i++)
        best = values[i] > best ? values[i] : best;
    for (int j = 0; j < 16; j++)
        best = lanes[j] > best ? lanes[j] : best;
    return best;
}

/* A row's values in blocks: its logits, but where the overlay has others. */
typedef struct {
    const float *logits;
    int64_t columns;
    fc_overlay overlay;
    int32_t next; /* entry of the overlay */
} row_values;

/* The values of columns start ... end-1, in `room` if some are the overlay's. Blocks are asked for
 * in rising order. */
static const float *block_at(row_values *row, int64_t start, int64_t end, float *room) {
    const fc_overlay *over = &row->overlay;
    while (row->next < over->count && over->columns[row->next] < start)
        row->next++;
    if (row->next == over->count || over->columns[row->next] >= end)
        return row->logits + start;
    memcpy(room, row->logits + start, (size_t)(end - start) * sizeof(float));
    for (; row->next < over->count && over->columns[row->next] < end; row->next++)
        room[over->columns[row->next] - start] = over->values[row->next];
    return room;
}

/* The likeliest columns. As many blocks as there are candidates have one value each that is no less
 * than the last of the blocks' largest; so all candidates are found above that bar. */
static void likeliest(row_values *row, float *maxima, best_keys *best) {
    best_keys blocks = {.most = best->most};
    int64_t columns = row->columns, count = (columns + BLOCK - 1) / BLOCK;
    float room[BLOCK];
    for (int64_t b = 0; b < count; b++) {
        int64_t start = b * BLOCK, end = start + BLOCK < columns ? start + BLOCK : columns;
        maxima[b] = maximum(block_at(row, start, end, room), end - start);
        insert(&blocks, packed(maxima[b], b));
    }
    float bar = blocks.count < blocks.most ? -INFINITY : value_of(blocks.keys[blocks.most - 1]);
    best->count = row->next = 0;
    for (int64_t b = 0; b < count; b++) {
        if (!(maxima[b] >= bar))
            continue;
        int64_t start = b * BLOCK, end = start + BLOCK < columns ? start + BLOCK : columns;
        const float *values = block_at(row, start, end, room);
        for (int64_t i = 0; i < end - start; i++)
            if (values[i] >= bar)
                insert(best, packed(values[i], start + i));
        if (best->count == best->most)
            bar = value_of(best->keys[best->most - 1]);
    }
}

/* probs *= whatever makes them one together. */
static void normalise(float *probs, int32_t count) {
    double sum = 0;
    for (int32_t i = 0; i < count; i++)
        sum += probs[i];
    for (int32_t i = 0; i < count; i++)
        probs[i] = probs[i] / (float)sum;
}

static void truncate_law(float *probs, int32_t count, int64_t top_k, float top_p, float min_p) {
    double sum = 0, through = 0;
    for (int32_t i = 0; i < count; i++) {
        probs[i] = i < top_k || top_k == 0 ? probs[i] : 0;
        sum += probs[i];
    }
    float mass = top_p * (float)sum;
    for (int32_t i = 0; i < count; i++) {
        through += probs[i];
        if (!((float)through - probs[i] < mass || top_p >= 1 || i == 0))
            probs[i] = 0;
    }
    for (int32_t i = 1; i < count; i++)
        probs[i] = probs[i] >= min_p * probs[0] ? probs[i] : 0;
}

/* The law of the falling values of `best`. */
static void filtered(const fc_slots *slots, int64_t slot, const best_keys *best, float *probs) {
    float heat = slots->temperature[slot], highest = value_of(best->keys[0]);
    memset(probs, 0, sizeof(float) * (size_t)best->most);
    probs[0] = 1;
    if (!(heat > 0) || best->most == 1)
        return;
    for (int32_t i = 0; i < best->count; i++) {
        float value = value_of(best->keys[i]);
        probs[i] = value == highest ? 1 : expf((value - highest) / heat);
    }
    normalise(probs, best->count);
    truncate_law(probs, best->count, slots->top_k[slot], slots->top_p[slot], slots->min_p[slot]);
    normalise(probs, best->count);
}

/* The law of row `row` of a lane, written to probs and ids [candidates]. */
static void law_of(const law_job *job, int32_t lane, int32_t row, float *probs, int64_t *ids) {
    const fc_rows *rows = job->rows;
    int64_t slot = job->index[lane], at = (int64_t)lane * rows->width + row;
    row_values values = {.logits = rows->logits + at * rows->columns, .columns = rows->columns};
    values.overlay =
        fc_overlay_of(job->slots, slot, lane, rows, row, job->drafts, job->overlays, at);
    best_keys best = {.keys = {0}, .most = job->candidates};
    likeliest(&values, job->maxima + at * (rows->columns / BLOCK + 1), &best);
    filtered(job->slots, slot, &best, probs);
    for (int32_t i = 0; i < job->candidates; i++) {
        int64_t column = i < best.count ? column_of(best.keys[i]) : 0;
        ids[i] = rows->vocabulary ? rows->vocabulary[column] : column;
    }
}

static void law_chunk(void *what, int32_t chunk) {
    const law_job *job = what;
    int64_t at = (int64_t)chunk * job->candidates;
    int32_t width = job->rows->width;
    law_of(job, chunk / width, chunk % width, job->probs + at, job->ids + at);
}

static law_job job_for(const fc_slots *slots, const int64_t *index, int32_t lanes,
                       const fc_rows *rows, const fc_drafts *drafts, int32_t candidates,
                       float *probs, int64_t *ids) {
    int32_t count = lanes * rows->width;
    law_job job = {slots, index, rows, drafts, NULL, NULL, candidates, probs, ids};
    size_t blocks = (size_t)count * (size_t)(rows->columns / BLOCK + 1);
    job.maxima = fc_scratch(SCRATCH_MAXIMA, blocks * sizeof(float));
    if (rows->penalties)
        job.overlays = fc_overlay_room(lanes, drafts->depth, count);
    return job;
}

void fc_law(const fc_slots *slots, const int64_t *index, int32_t lanes, const fc_rows *rows,
            const fc_drafts *drafts, int32_t candidates, float *probs, int64_t *ids) {
    if (rows->penalties)
        fc_find_said(slots, index, lanes, rows);
    law_job job = job_for(slots, index, lanes, rows, drafts, candidates, probs, ids);
    fc_parallel(law_chunk, &job, lanes * rows->width);
}

static int64_t drawn(const fc_slots *slots, int64_t slot, int32_t step, const fc_chain *chain,
                     const float *probs, const int64_t *ids) {
    int64_t position = slots->consumed[slot] + 1 + step, seed = slots->seed[slot];
    if (chain->candidates == 1)
        return ids[0];
    if (fc_by_match(slots, slot, chain->mode))
        return fc_winner(chain->candidates, probs, ids, seed, position);
    float u = fc_uniform(seed, FC_DRAFT, position * FC_DRAFT_STRIDE);
    return fc_token_at_mass(chain->candidates, probs, ids, u);
}

void fc_draw(const fc_slots *slots, const int64_t *index, int32_t lanes, const fc_rows *rows,
             const fc_chain *chain, int64_t *said) {
    const fc_drafts before = {chain->tokens, chain->depth, chain->depth};
    int32_t step = rows->first, found = chain->candidates;
    if (rows->penalties && step == 0)
        fc_find_said(slots, index, lanes, rows);
    law_job job =
        job_for(slots, index, lanes, rows, &before, found, chain->probs, chain->ids);
    for (int32_t lane = 0; lane < lanes; lane++) {
        int64_t slot = index[lane], to = (int64_t)lane * chain->depth + step, given = 0;
        float *probs = chain->probs + to * found;
        int64_t *ids = chain->ids + to * found;
        if (chain->staged.tokens)
            given = chain->staged_offered[lane];
        if (step == 0) {
            int64_t most = chain->limits[slot] < chain->depth ? chain->limits[slot] : chain->depth;
            chain->offered[lane] = most > given ? most : given;
        }
        if (step < given) {
            memset(probs, 0, sizeof(float) * (size_t)found);
            memset(ids, 0, sizeof(int64_t) * (size_t)found);
            said[lane] = ids[0] = chain->staged.tokens[lane * chain->staged.stride + step];
            probs[0] = 1;
        } else {
            law_of(&job, lane, 0, probs, ids);
            said[lane] = drawn(slots, slot, step, chain, probs, ids);
        }
        chain->tokens[to] = said[lane];
    }
}
