/* What products with vectors of eight lanes have in common: half a tile, eight rows, at once. */

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

FC_INLINE lanes code4(const uint8_t *p, int32_t right) {
    const __m256i words = _mm256_srlv_epi32(whole8(p), _mm256_set1_epi32(right));
    return _mm256_cvtepi32_ps(_mm256_and_si256(words, _mm256_set1_epi32(15)));
}
FC_INLINE lanes code8(const uint8_t *p, int32_t left) {
    const __m256i words = _mm256_sllv_epi32(whole8(p), _mm256_set1_epi32(left));
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(words, 24));
}
