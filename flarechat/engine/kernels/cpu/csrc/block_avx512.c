#include "block_sets.h"

#ifdef FC_X86
#include "half.h"

#include <immintrin.h>
#include <math.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif

#define LANES 16
#define ROWS 6
#include "vector.inc.h"

FC_INLINE vector madd(vector a, vector b, vector c) { return _mm512_fmadd_ps(a, b, c); }

FC_INLINE vector larger(vector a, vector b) { return _mm512_max_ps(a, b); }
FC_INLINE vector smaller(vector a, vector b) { return _mm512_min_ps(a, b); }

FC_INLINE vector widen(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

FC_INLINE void narrow(uint16_t *p, vector v) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

FC_INLINE void put(float *out, __m256i column) { store(out, _mm512_cvtph_ps(column)); }

#include "block_x86.inc.h"

FC_INLINE float most_of(const vector *x) {
    return most_of_8(_mm256_max_ps(_mm512_castps512_ps256(*x), _mm512_extractf32x8_ps(*x, 1)));
}

FC_INLINE float sum_of(const vector *x) {
    return sum_of_8(_mm256_add_ps(_mm512_castps512_ps256(*x), _mm512_extractf32x8_ps(*x, 1)));
}

#include "block.inc.h"

const fc_block_set fc_block_avx512 = BLOCK_SET;

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
