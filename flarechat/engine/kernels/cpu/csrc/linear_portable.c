/* Products in plain C: for machines without a set of their own, and the order all others keep. */
#include "linear_sets.h"

#include <math.h>

#define LANES 16
#define WIDEST 4

typedef struct {
    float at[LANES];
} lanes;

typedef struct {
    int32_t at[LANES];
} sums;

typedef struct {
    int8_t at[4 * LANES];
} quads;

#define EVERY_LANE(expression)        \
    lanes result;                     \
    for (int i = 0; i < LANES; i++)   \
        result.at[i] = (expression);  \
    return result

FC_INLINE lanes broadcast(float value) { EVERY_LANE(value); }
FC_INLINE lanes zero(void) { return broadcast(0.0f); }
FC_INLINE lanes add(lanes a, lanes b) { EVERY_LANE(a.at[i] + b.at[i]); }
FC_INLINE lanes times(lanes a, lanes b) { EVERY_LANE(a.at[i] * b.at[i]); }
FC_INLINE lanes fma_lanes(lanes a, lanes b, lanes c) { EVERY_LANE(fmaf(a.at[i], b.at[i], c.at[i])); }
FC_INLINE lanes load(const float *p, int32_t n) { EVERY_LANE(i < n ? p[i] : 0.0f); }
FC_INLINE lanes halves(const uint16_t *p) { EVERY_LANE(fc_half_float(p[i])); }
FC_INLINE lanes bfloats(const uint16_t *p) { EVERY_LANE(fc_bfloat_float(p[i])); }

FC_INLINE void store(float *p, lanes a, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        p[i] = a.at[i];
}

#define EVERY_CODE(expression)           \
    quads result;                        \
    for (int i = 0; i < 4 * LANES; i++)  \
        result.at[i] = (int8_t)(expression); \
    return result

FC_INLINE quads low4(const uint8_t *p) { EVERY_CODE(p[i] & 15); }
FC_INLINE quads high4(const uint8_t *p) { EVERY_CODE(p[i] >> 4); }
FC_INLINE quads whole8(const uint8_t *p) { EVERY_CODE(p[i]); }

FC_INLINE sums first4(void) { return (sums){{0}}; }
FC_INLINE sums more4(sums s, quads q, const int8_t *x) {
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < 4; j++)
            s.at[i] += q.at[4 * i + j] * x[j];
    return s;
}
FC_INLINE lanes last4(sums s) { EVERY_LANE((float)s.at[i]); }

FC_INLINE sums first8(int32_t total) {
    (void)total;
    return first4();
}
FC_INLINE sums more8(sums s, quads q, const int8_t *x) { return more4(s, q, x); }
FC_INLINE lanes last8(sums s) { return last4(s); }

FC_INLINE lanes code4(const uint8_t *p, int32_t right) {
    EVERY_LANE((float)(p[4 * i + right / 8] >> right % 8 & 15));
}
FC_INLINE lanes code8(const uint8_t *p, int32_t left) {
    EVERY_LANE((float)(int8_t)p[4 * i + 3 - left / 8]);
}

#include "linear.inc.h"
#include "quantise.inc.h"

const fc_linear_set fc_linear_portable = {product, quantise, normalise};
