/* Products with AVX-512 and its dot products of bytes (VNNI): a tile's sixteen rows at once. */
#include "linear_sets.h"

#ifdef FC_X86

#include <immintrin.h>
#include <math.h>

#if defined(__clang__)
#pragma clang attribute push(                                                          \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"))), \
    apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#endif

#define LANES 16
#define WIDEST 8

typedef __m512 lanes;
typedef __m512i sums;
typedef __m512i quads;

FC_INLINE lanes zero(void) { return _mm512_setzero_ps(); }
FC_INLINE lanes broadcast(float value) { return _mm512_set1_ps(value); }
FC_INLINE lanes add(lanes a, lanes b) { return _mm512_add_ps(a, b); }
FC_INLINE lanes times(lanes a, lanes b) { return _mm512_mul_ps(a, b); }
FC_INLINE lanes fma_lanes(lanes a, lanes b, lanes c) { return _mm512_fmadd_ps(a, b, c); }

FC_INLINE __mmask16 first_lanes(int32_t n) { return (__mmask16)((1u << n) - 1); }

FC_INLINE lanes load(const float *p, int32_t n) {
    return _mm512_maskz_loadu_ps(first_lanes(n), p);
}

FC_INLINE void store(float *p, lanes a, int32_t n) {
    _mm512_mask_storeu_ps(p, first_lanes(n), a);
}

FC_INLINE lanes halves(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

FC_INLINE lanes bfloats(const uint16_t *p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

FC_INLINE quads low4(const uint8_t *p) {
    return _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(15));
}
FC_INLINE quads high4(const uint8_t *p) {
    return _mm512_and_si512(_mm512_srli_epi16(_mm512_loadu_si512(p), 4), _mm512_set1_epi8(15));
}
/* Unsigned, as the instruction wants them: 128 more than the code. */
FC_INLINE quads whole8(const uint8_t *p) {
    return _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(-128));
}

FC_INLINE sums first4(void) { return _mm512_setzero_si512(); }
FC_INLINE sums more4(sums s, quads q, const int8_t *x) {
    int32_t columns;
    memcpy(&columns, x, sizeof columns);
    return _mm512_dpbusd_epi32(s, q, _mm512_set1_epi32(columns));
}
FC_INLINE lanes last4(sums s) { return _mm512_cvtepi32_ps(s); }

FC_INLINE sums first8(int32_t total) { return _mm512_set1_epi32(-128 * total); }
FC_INLINE sums more8(sums s, quads q, const int8_t *x) { return more4(s, q, x); }
FC_INLINE lanes last8(sums s) { return last4(s); }

/* The permutation looks at the low four bits alone. */
FC_INLINE lanes code4(const uint8_t *p, int32_t right) {
    const __m512i words = _mm512_srlv_epi32(_mm512_loadu_si512(p), _mm512_set1_epi32(right));
    const lanes codes = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_permutexvar_ps(words, codes);
}
FC_INLINE lanes code8(const uint8_t *p, int32_t left) {
    const __m512i words = _mm512_sllv_epi32(_mm512_loadu_si512(p), _mm512_set1_epi32(left));
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(words, 24));
}

#include "linear.inc.h"
#include "quantise.inc.h"

const fc_linear_set fc_linear_avx512 = {product, quantise, normalise};

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
