/* Products with AVX2, FMA and F16C: half a tile, eight rows, at once. */
#include "linear_sets.h"

#ifdef FC_X86

#include <immintrin.h>
#include <math.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#define LANES 8
#define WIDEST 4

typedef __m256 lanes;
typedef __m256i sums;
typedef __m256i quads;

FC_INLINE lanes zero(void) { return _mm256_setzero_ps(); }
FC_INLINE lanes broadcast(float value) { return _mm256_set1_ps(value); }
FC_INLINE lanes add(lanes a, lanes b) { return _mm256_add_ps(a, b); }
FC_INLINE lanes times(lanes a, lanes b) { return _mm256_mul_ps(a, b); }
FC_INLINE lanes fma_lanes(lanes a, lanes b, lanes c) { return _mm256_fmadd_ps(a, b, c); }

FC_INLINE __m256i first_lanes(int32_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

FC_INLINE lanes load(const float *p, int32_t n) {
    return n == LANES ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, first_lanes(n));
}

FC_INLINE void store(float *p, lanes a, int32_t n) {
    if (n == LANES)
        _mm256_storeu_ps(p, a);
    else
        _mm256_maskstore_ps(p, first_lanes(n), a);
}

FC_INLINE lanes halves(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

FC_INLINE lanes bfloats(const uint16_t *p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

FC_INLINE quads whole8(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
FC_INLINE quads low4(const uint8_t *p) {
    return _mm256_and_si256(whole8(p), _mm256_set1_epi8(15));
}
FC_INLINE quads high4(const uint8_t *p) {
    return _mm256_and_si256(_mm256_srli_epi16(whole8(p), 4), _mm256_set1_epi8(15));
}

FC_INLINE __m256i four(const int8_t *x) {
    int32_t columns;
    memcpy(&columns, x, sizeof columns);
    return _mm256_set1_epi32(columns);
}

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
