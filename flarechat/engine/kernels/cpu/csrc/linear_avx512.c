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
typedef struct {
    __m512i at[8]; /* of four columns each */
} codes;

FC_INLINE lanes zero(void) { return _mm512_setzero_ps(); }
FC_INLINE lanes broadcast(float value) { return _mm512_set1_ps(value); }
FC_INLINE lanes add(lanes a, lanes b) { return _mm512_add_ps(a, b); }
FC_INLINE lanes times(lanes a, lanes b) { return _mm512_mul_ps(a, b); }
FC_INLINE lanes fma_lanes(lanes a, lanes b, lanes c) { return _mm512_fmadd_ps(a, b, c); }
FC_INLINE lanes to_float(sums a) { return _mm512_cvtepi32_ps(a); }

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

FC_INLINE codes decode4(const uint8_t *p) {
    const __m512i low = _mm512_set1_epi8(15);
    codes result;
    for (int i = 0; i < 4; i++) {
        const __m512i both = _mm512_loadu_si512(p + 64 * i);
        result.at[i] = _mm512_and_si512(both, low);
        result.at[4 + i] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
    return result;
}

/* Unsigned, as the instruction wants them: 128 more than the code. */
FC_INLINE codes decode8(const uint8_t *p) {
    codes result;
    for (int i = 0; i < 8; i++)
        result.at[i] = _mm512_xor_si512(_mm512_loadu_si512(p + 64 * i), _mm512_set1_epi8(-128));
    return result;
}

FC_INLINE sums dot(__m512i result, codes c, const fc_packed_group *x) {
    for (int i = 0; i < 8; i++) {
        int32_t four;
        memcpy(&four, x->codes + 4 * i, sizeof four);
        result = _mm512_dpbusd_epi32(result, c.at[i], _mm512_set1_epi32(four));
    }
    return result;
}

FC_INLINE sums dot4(codes c, const fc_packed_group *x) {
    return dot(_mm512_setzero_si512(), c, x);
}

FC_INLINE sums dot8(codes c, const fc_packed_group *x) {
    return dot(_mm512_set1_epi32(-128 * x->total), c, x);
}

#include "linear.inc.h"
#include "quantise.inc.h"

const fc_linear_set fc_linear_avx512 = {product, quantise, normalise};

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
