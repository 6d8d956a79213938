/* Products with AVX2, FMA and F16C. */
#include "linear_sets.h"

#ifdef FC_X86

#include <immintrin.h>
#include <math.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#include "linear_256.inc.h"

/* The sum as it is now. gcc otherwise adds later, all at once, and spills what it has to add. */
FC_INLINE sums now(sums s) {
    __asm__("" : "+x"(s));
    return s;
}

/* Eight sums of two products, each at most 2 * 15 * 127, stay within an int16. */
FC_INLINE sums first4(void) { return _mm256_setzero_si256(); }
FC_INLINE sums more4(sums s, quads q, const int8_t *x) {
    return now(_mm256_add_epi16(s, _mm256_maddubs_epi16(q, four(x))));
}
FC_INLINE lanes last4(sums s) {
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(s, _mm256_set1_epi16(1)));
}

/* The sign goes over to the activations: at most 2 * 128 * 127 then, which an int16 holds. */
FC_INLINE sums first8(int32_t total) {
    (void)total;
    return _mm256_setzero_si256();
}
FC_INLINE sums more8(sums s, quads q, const int8_t *x) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(four(x), q));
    return now(_mm256_add_epi32(s, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))));
}
FC_INLINE lanes last8(sums s) { return _mm256_cvtepi32_ps(s); }

#include "linear.inc.h"
#include "quantise.inc.h"

const fc_linear_set fc_linear_avx2 = {product, quantise, normalise};

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
