/* Attention of a block of queries to a block of keys, for one instruction set.
 *
 * A score is a sum over the head's dimensions in order, a weighted value one over keys in order,
 * each by fused multiply-adds in a lane of its own: keys beside each other for scores, dimensions
 * for values. So every set computes the same bits, and what a row sees alone decides them. The
 * including file defines, beside those of vector.inc.h,
 *
 *   ROWS                    rows taken at once, whose sums fit the registers
 *   transpose(keys, values, count, head_dim, out)
 *                           columns of `count` keys as floats, out[d][FC_KEYS]; the same rows of
 *                           values, which are wanted next, may be fetched meanwhile
 */

/* Keys and values of a block as floats, columns of keys and rows of values. */
typedef struct {
    _Alignas(64) float keys[FC_HEAD_DIM * FC_KEYS];
    _Alignas(64) float values[FC_KEYS * FC_HEAD_DIM];
} opened;

/* Rows taken at once: their queries, scores that become weights, and sums. */
typedef struct {
    _Alignas(64) float scores[ROWS][FC_KEYS];
    _Alignas(64) float sums[ROWS][FC_HEAD_DIM + FC_SUM_TAIL];
    const float *q[ROWS];
    int32_t seen[ROWS]; /* keys of the block */
} taken;

static void open_values(const uint16_t *values, int32_t count, int32_t head_dim, float *out) {
    const int32_t padded = fc_sum_values(head_dim);
    for (int32_t key = 0; key < count; key++) {
        int32_t d = 0;
        for (; d + LANES <= head_dim; d += LANES)
            store(out + key * padded + d, widen(values + key * head_dim + d));
        for (; d < head_dim; d++)
            out[key * padded + d] = fc_half_float(values[key * head_dim + d]);
        for (; d < padded; d++)
            out[key * padded + d] = 0.0f;
    }
}

FC_INLINE void score(const int rows, taken *take, const float *keys, int32_t head_dim) {
    for (int first = 0; first < FC_KEYS; first += 4 * LANES) {
        vector sums[ROWS][4];
        for (int row = 0; row < rows; row++)
            for (int i = 0; i < 4; i++)
                sums[row][i] = all(0.0f);
        for (int32_t d = 0; d < head_dim; d++)
            for (int i = 0; i < 4; i++) {
                const vector key = load(keys + d * FC_KEYS + first + i * LANES);
                for (int row = 0; row < rows; row++)
                    sums[row][i] = madd(all(take->q[row][d]), key, sums[row][i]);
            }
        for (int row = 0; row < rows; row++)
            for (int i = 0; i < 4; i++)
                store(take->scores[row] + first + i * LANES, sums[row][i]);
    }
}

/* Scores to weights, of keys that are not seen 0. Keys 16 apart are summed first. */
FC_INLINE void weigh(float *scores, int32_t seen, float *largest, float *sum) {
    enum { SIXTEEN = 16 / LANES };
    vector weights[4 * SIXTEEN], reduced[SIXTEEN];
    for (int32_t key = seen; key < FC_KEYS; key++)
        scores[key] = -INFINITY;
    for (int i = 0; i < 4 * SIXTEEN; i++)
        weights[i] = load(scores + i * LANES);
    for (int i = 0; i < SIXTEEN; i++)
        reduced[i] = larger(larger(weights[i], weights[i + SIXTEEN]),
                            larger(weights[i + 2 * SIXTEEN], weights[i + 3 * SIXTEEN]));
    *largest = most_of(reduced);
    for (int i = 0; i < 4 * SIXTEEN; i++) {
        weights[i] = exponential(weights[i] - all(*largest));
        store(scores + i * LANES, weights[i]);
    }
    for (int i = 0; i < SIXTEEN; i++)
        reduced[i] = (weights[i] + weights[i + SIXTEEN]) +
                     (weights[i + 2 * SIXTEEN] + weights[i + 3 * SIXTEEN]);
    *sum = sum_of(reduced);
}

/* Add keys first ... last-1 of the dimensions d ... d + vectors * LANES - 1. */
FC_INLINE void gather_part(const int rows, const int vectors, float (*sums)[FC_HEAD_DIM + FC_SUM_TAIL],
                           float (*weights)[FC_KEYS], const float *values, int32_t padded, int32_t d,
                           int32_t first, int32_t last) {
    vector part[ROWS][4];
    for (int row = 0; row < rows; row++)
        for (int i = 0; i < vectors; i++)
            part[row][i] = first ? load(sums[row] + d + i * LANES) : all(0.0f);
    for (int32_t key = first; key < last; key++)
        for (int i = 0; i < vectors; i++) {
            const vector value = load(values + key * padded + d + i * LANES);
            for (int row = 0; row < rows; row++)
                part[row][i] = madd(all(weights[row][key]), value, part[row][i]);
        }
    for (int row = 0; row < rows; row++)
        for (int i = 0; i < vectors; i++)
            store(sums[row] + d + i * LANES, part[row][i]);
}

FC_INLINE void gather(const int rows, float (*sums)[FC_HEAD_DIM + FC_SUM_TAIL],
                      float (*weights)[FC_KEYS], const float *values, int32_t padded, int32_t first,
                      int32_t last) {
    int32_t d = 0;
    for (; d + 4 * LANES <= padded; d += 4 * LANES)
        gather_part(rows, 4, sums, weights, values, padded, d, first, last);
    for (; d < padded; d += LANES)
        gather_part(rows, 1, sums, weights, values, padded, d, first, last);
}

/* Keys that all rows see are gathered together, those that only later rows see row by row: what a
 * row does not see is not even multiplied by 0. */
FC_INLINE void attend_rows(const int rows, taken *take, const opened *open, int32_t head_dim) {
    const int32_t padded = fc_sum_values(head_dim);
    score(rows, take, open->keys, head_dim);
    for (int row = 0; row < rows; row++)
        weigh(take->scores[row], take->seen[row], take->sums[row] + padded,
              take->sums[row] + padded + 1);
    gather(rows, take->sums, take->scores, open->values, padded, 0, take->seen[0]);
    for (int row = 1; row < rows; row++)
        if (take->seen[row] > take->seen[0])
            gather(1, take->sums + row, take->scores + row, open->values, padded, take->seen[0],
                   take->seen[row]);
}

static void fold(float *sum, const float *later, int32_t head_dim) {
    const int32_t padded = fc_sum_values(head_dim);
    const float apart = sum[padded] - later[padded];
    float factor[LANES];
    store(factor, exponential(all(apart > 0.0f ? -apart : apart)));
    const float before = apart > 0.0f ? 1.0f : factor[0], after = apart > 0.0f ? factor[0] : 1.0f;
    for (int32_t d = 0; d < padded; d += LANES)
        store(sum + d, madd(load(later + d), all(after), load(sum + d) * all(before)));
    if (!(apart > 0.0f))
        sum[padded] = later[padded];
    sum[padded + 1] = fmaf(later[padded + 1], after, sum[padded + 1] * before);
}

static void attend(const fc_queries *queries, int64_t block, int32_t first, int32_t last,
                   int folding, float *sums) {
    const int32_t head_dim = queries->head_dim, floats = fc_sum_floats(head_dim);
    const int64_t start = block * FC_KEYS, end = fc_seen(queries, last - 1) - start;
    const int32_t count = end < FC_KEYS ? (int32_t)end : FC_KEYS;
    if (count <= 0)
        return;
    opened open;
    taken take;
    const int64_t at = start * head_dim;
    transpose(queries->keys + at, queries->values + at, count, head_dim, open.keys);
    open_values(queries->values + at, count, head_dim, open.values);
    int32_t row = first;
    while (fc_seen(queries, row) <= start)
        row++;
    for (int32_t rows; row < last; row += rows) {
        rows = last - row < ROWS ? last - row : ROWS;
        for (int32_t i = 0; i < rows; i++) {
            const int64_t seen = fc_seen(queries, row + i) - start;
            take.seen[i] = seen < FC_KEYS ? (int32_t)seen : FC_KEYS;
            take.q[i] = queries->q + (row + i) / queries->group * queries->stride +
                        (row + i) % queries->group * head_dim;
        }
        switch (rows) {
        case 1: attend_rows(1, &take, &open, head_dim); break;
        case 2: attend_rows(2, &take, &open, head_dim); break;
        case 3: attend_rows(3, &take, &open, head_dim); break;
#if ROWS > 3
        case 4: attend_rows(4, &take, &open, head_dim); break;
        case 5: attend_rows(5, &take, &open, head_dim); break;
        case 6: attend_rows(6, &take, &open, head_dim); break;
#endif
        }
        for (int32_t i = 0; i < rows; i++) {
            float *sum = sums + (int64_t)(row + i - first) * floats;
            if (folding)
                fold(sum, take.sums[i], head_dim);
            else
                memcpy(sum, take.sums[i], (size_t)floats * sizeof(float));
        }
    }
}
