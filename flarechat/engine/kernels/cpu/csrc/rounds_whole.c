/* Logits to the law of a row over the whole vocabulary, in the order of its columns. */
#include "parallel.h"
#include "rounds_penalties.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Probabilities fall into buckets by their upper bits, which grow with them; 1 is in the last. */
enum { BUCKETS = 0x3F80 + 1, SCRATCH_BUCKETS = FC_SCRATCH_ROUNDS + 3 };

/* Rows that have room at once: a round's, at most. Each takes a fifth of a megabyte and more. */
enum { TOGETHER = 64 };

typedef struct {
    double masses[BUCKETS];
    int32_t counts[BUCKETS];
} buckets;

typedef struct {
    const fc_slots *slots;
    const int64_t *index;
    const fc_rows *rows;
    const fc_drafts *drafts;
    void *overlays;
    char *room; /* of each row buckets and a number a column */
    size_t row_bytes;
    float *probs;
    int32_t first; /* of the rows that have room */
} whole_job;

static inline uint32_t bits_of(float prob) {
    uint32_t bits;
    memcpy(&bits, &prob, sizeof bits);
    return bits;
}

/* Likelier before less likely, of equals the lower column first. */
static int by_rank(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a < b) - (a > b);
}

/* Zero all but the `most` likeliest, and those before which others have `mass` or more. Only the
 * bucket that has the last one is sorted. */
static void keep_likeliest(float *probs, int64_t columns, int64_t most, float mass, buckets *of,
                           uint64_t *order) {
    memset(of, 0, sizeof *of);
    for (int64_t c = 0; c < columns; c++) {
        uint32_t bucket = bits_of(probs[c]) >> 16;
        of->masses[bucket] += probs[c];
        of->counts[bucket]++;
    }
    int32_t last = BUCKETS - 1;
    int64_t count = 0, in_last = 0;
    double through = 0;
    for (; last > 0 && count + of->counts[last] < most && through + of->masses[last] < mass; last--) {
        count += of->counts[last];
        through += of->masses[last];
    }
    for (int64_t c = 0; c < columns; c++) {
        int32_t bucket = (int32_t)(bits_of(probs[c]) >> 16);
        if (bucket == last)
            order[in_last++] = (uint64_t)bits_of(probs[c]) << 32 | (uint32_t)(0x7FFFFFFF - c);
        else if (bucket < last)
            probs[c] = 0;
    }
    qsort(order, (size_t)in_last, sizeof *order, by_rank);
    for (int64_t i = 0; i < in_last; i++, count++) {
        float *prob = probs + (0x7FFFFFFF - (int64_t)(order[i] & 0x7FFFFFFF)), own = *prob;
        through += own;
        if (count > 0 && !(count < most && (float)through - own < mass))
            *prob = 0;
    }
}

static double sum_of(const float *values, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += values[i];
    return sum;
}

static void divide(float *values, int64_t count, float by) {
    for (int64_t i = 0; i < count; i++)
        values[i] = values[i] / by;
}

/* values [columns] to their law, in place. */
static void filter(const fc_slots *slots, int64_t slot, float *values, int64_t columns, buckets *of,
                   uint64_t *order) {
    float heat = slots->temperature[slot], top_p = slots->top_p[slot];
    int64_t top_k = slots->top_k[slot], best = 0;
    for (int64_t c = 1; c < columns; c++)
        if (values[c] > values[best] || values[best] != values[best])
            best = c;
    float highest = values[best];
    for (int64_t c = 0; c < columns; c++) {
        float away = values[c] == highest ? 0 : (values[c] - highest) / heat;
        values[c] = c != best && !(heat > 0) ? 0 : away == away ? expf(away) : 0;
    }
    values[best] = 1;
    if (!(heat > 0))
        return;
    divide(values, columns, (float)sum_of(values, columns));
    if (top_k > 0 && top_k < columns)
        keep_likeliest(values, columns, top_k, INFINITY, of, order);
    if (top_p < 1) {
        float mass = top_p * (float)sum_of(values, columns);
        keep_likeliest(values, columns, columns, mass, of, order);
    }
    float floor = slots->min_p[slot] * values[best];
    for (int64_t c = 0; c < columns; c++)
        values[c] = values[c] >= floor ? values[c] : 0;
    divide(values, columns, (float)sum_of(values, columns));
}

static void whole_chunk(void *what, int32_t chunk) {
    const whole_job *job = what;
    const fc_rows *rows = job->rows;
    int32_t at = job->first + chunk, lane = at / rows->width, row = at % rows->width;
    int64_t slot = job->index[lane], columns = rows->columns;
    float *probs = job->probs + at * columns;
    char *room = job->room + (size_t)chunk * job->row_bytes;
    memcpy(probs, rows->logits + at * columns, (size_t)columns * sizeof(float));
    fc_overlay over =
        fc_overlay_of(job->slots, slot, lane, rows, row, job->drafts, job->overlays, at);
    for (int32_t i = 0; i < over.count; i++)
        probs[over.columns[i]] = over.values[i];
    filter(job->slots, slot, probs, columns, (buckets *)room, (uint64_t *)(room + sizeof(buckets)));
}

void fc_whole_law(const fc_slots *slots, const int64_t *index, int32_t lanes, const fc_rows *rows,
                  const fc_drafts *drafts, float *probs) {
    int32_t count = lanes * rows->width;
    whole_job job = {slots, index, rows, drafts, NULL, NULL, 0, probs, 0};
    if (rows->penalties) {
        fc_find_said(slots, index, lanes, rows);
        job.overlays = fc_overlay_room(lanes, drafts->depth, count);
    }
    job.row_bytes = (sizeof(buckets) + (size_t)rows->columns * sizeof(uint64_t) + 63) / 64 * 64;
    int32_t most = count < TOGETHER ? count : TOGETHER;
    job.room = fc_scratch(SCRATCH_BUCKETS, (size_t)most * job.row_bytes);
    for (; job.first < count; job.first += most)
        fc_parallel(whole_chunk, &job, count - job.first < most ? count - job.first : most);
}
