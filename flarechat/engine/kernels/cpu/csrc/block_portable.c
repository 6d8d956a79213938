/* Blocks in plain C, for machines without a set of their own. */
#include "block_sets.h"
#include "half.h"

#include <math.h>

#define LANES 4
#define ROWS 3
#include "vector.inc.h"

FC_INLINE vector madd(vector a, vector b, vector c) {
    for (int i = 0; i < LANES; i++)
        c[i] = fmaf(a[i], b[i], c[i]);
    return c;
}

FC_INLINE vector widen(const uint16_t *p) {
    return (vector){fc_half_float(p[0]), fc_half_float(p[1]), fc_half_float(p[2]), fc_half_float(p[3])};
}

FC_INLINE void narrow(uint16_t *p, vector v) {
    for (int i = 0; i < LANES; i++)
        p[i] = fc_float_half(v[i]);
}

FC_INLINE vector larger(vector a, vector b) {
    for (int i = 0; i < LANES; i++)
        a[i] = a[i] > b[i] ? a[i] : b[i];
    return a;
}

FC_INLINE vector smaller(vector a, vector b) {
    for (int i = 0; i < LANES; i++)
        a[i] = a[i] < b[i] ? a[i] : b[i];
    return a;
}

FC_INLINE float most_of(const vector *x) {
    const vector most = larger(larger(x[0], x[1]), larger(x[2], x[3]));
    const float a = most[0] > most[2] ? most[0] : most[2], b = most[1] > most[3] ? most[1] : most[3];
    return a > b ? a : b;
}

FC_INLINE float sum_of(const vector *x) {
    const vector sum = (x[0] + x[2]) + (x[1] + x[3]);
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

static void transpose(const uint16_t *keys, const uint16_t *values, int32_t count, int32_t head_dim,
                      float *out) {
    (void)values;
    for (int32_t d = 0; d < head_dim; d++)
        for (int32_t key = 0; key < FC_KEYS; key++)
            out[d * FC_KEYS + key] = key < count ? fc_half_float(keys[key * head_dim + d]) : 0.0f;
}

#include "block.inc.h"

const fc_block_set fc_block_portable = BLOCK_SET;
