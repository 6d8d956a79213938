/* Products with AVX2 and its dot products of bytes (AVX-VNNI), which machines without AVX-512 have. */
#include "linear_sets.h"

#ifdef FC_AVXVNNI

#include <immintrin.h>
#include <math.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avxvnni"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avxvnni")
#endif

#include "linear_256.inc.h"

FC_INLINE sums first4(void) { return _mm256_setzero_si256(); }
FC_INLINE sums more4(sums s, quads q, const int8_t *x) {
    return _mm256_dpbusd_avx_epi32(s, q, four(x));
}
FC_INLINE lanes last4(sums s) { return _mm256_cvtepi32_ps(s); }

/* Codes as the instruction wants them, unsigned: 128 more. */
FC_INLINE sums first8(int32_t total) { return _mm256_set1_epi32(-128 * total); }
FC_INLINE sums more8(sums s, quads q, const int8_t *x) {
    return more4(s, _mm256_xor_si256(q, _mm256_set1_epi8(-128)), x);
}
FC_INLINE lanes last8(sums s) { return last4(s); }

#include "linear.inc.h"
#include "quantise.inc.h"

const fc_linear_set fc_linear_avxvnni = {product, quantise, normalise};

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
