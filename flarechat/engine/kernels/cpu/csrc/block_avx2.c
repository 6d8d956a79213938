#include "block_sets.h"

#ifdef FC_X86
#include "half.h"

#include <immintrin.h>
#include <math.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

#define LANES 8
#define ROWS 3
#include "vector.inc.h"

FC_INLINE vector madd(vector a, vector b, vector c) { return _mm256_fmadd_ps(a, b, c); }

FC_INLINE vector larger(vector a, vector b) { return _mm256_max_ps(a, b); }
FC_INLINE vector smaller(vector a, vector b) { return _mm256_min_ps(a, b); }

FC_INLINE vector widen(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

FC_INLINE void narrow(uint16_t *p, vector v) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

FC_INLINE void put(float *out, __m256i column) {
    store(out, _mm256_cvtph_ps(_mm256_castsi256_si128(column)));
    store(out + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(column, 1)));
}

#include "block_x86.inc.h"

FC_INLINE float most_of(const vector *x) { return most_of_8(larger(x[0], x[1])); }
FC_INLINE float sum_of(const vector *x) { return sum_of_8(x[0] + x[1]); }

#include "block.inc.h"

const fc_block_set fc_block_avx2 = BLOCK_SET;

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
