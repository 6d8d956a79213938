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

typedef const uint8_t *codes;

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
FC_INLINE lanes to_float(sums a) { EVERY_LANE((float)a.at[i]); }
FC_INLINE lanes load(const float *p, int32_t n) { EVERY_LANE(i < n ? p[i] : 0.0f); }
FC_INLINE lanes halves(const uint16_t *p) { EVERY_LANE(fc_half_float(p[i])); }
FC_INLINE lanes bfloats(const uint16_t *p) { EVERY_LANE(fc_bfloat_float(p[i])); }

FC_INLINE void store(float *p, lanes a, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        p[i] = a.at[i];
}

FC_INLINE codes decode4(const uint8_t *p) { return p; }
FC_INLINE codes decode8(const uint8_t *p) { return p; }

FC_INLINE sums dot4(codes c, const fc_packed_group *x) {
    sums result = {{0}};
    for (int quad = 0; quad < 4; quad++)
        for (int i = 0; i < LANES; i++)
            for (int j = 0; j < 4; j++) {
                const int32_t code = c[64 * quad + 4 * i + j];
                result.at[i] += (code & 15) * x->codes[4 * quad + j];
                result.at[i] += (code >> 4) * x->codes[16 + 4 * quad + j];
            }
    return result;
}

FC_INLINE sums dot8(codes c, const fc_packed_group *x) {
    sums result = {{0}};
    for (int quad = 0; quad < 8; quad++)
        for (int i = 0; i < LANES; i++)
            for (int j = 0; j < 4; j++)
                result.at[i] += (int8_t)c[64 * quad + 4 * i + j] * x->codes[4 * quad + j];
    return result;
}

#include "linear.inc.h"
#include "quantise.inc.h"

const fc_linear_set fc_linear_portable = {product, quantise, normalise};
