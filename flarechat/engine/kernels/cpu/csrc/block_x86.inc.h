/* What AVX2 and AVX-512 share: reductions of 8 lanes, and keys to columns by shuffles of float16. The
 * including file defines put(out, column), which stores a column of 16 keys. */

FC_INLINE float most_of_8(__m256 v) {
    __m128 most = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    most = _mm_max_ps(most, _mm_movehl_ps(most, most));
    return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
}

FC_INLINE float sum_of_8(__m256 v) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

static const uint16_t no_key[FC_HEAD_DIM];

/* Dimensions 0 ... 7 of 16 keys, one a row of `keys`. */
FC_INLINE void transpose_part(const uint16_t *const *keys, int32_t d, float *out) {
    __m256i a[8], b[8];
    for (int i = 0; i < 8; i++)
        a[i] = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(keys[i] + d))),
            _mm_loadu_si128((const __m128i *)(keys[i + 8] + d)), 1);
    for (int i = 0; i < 4; i++) {
        b[i] = _mm256_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
        b[i + 4] = _mm256_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_epi32(b[2 * i], b[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_epi32(b[2 * i], b[2 * i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            put(out + (d + i + 2 * j) * FC_KEYS, _mm256_unpacklo_epi64(a[i + j], a[i + j + 2]));
            put(out + (d + i + 2 * j + 1) * FC_KEYS, _mm256_unpackhi_epi64(a[i + j], a[i + j + 2]));
        }
}

/* The processor fetches no further than a page by itself: ask for the keys after the next 15, and
 * for as many bytes of the values, which are wanted after the keys. */
FC_INLINE void fetch(const uint16_t *keys, const uint16_t *values, int64_t at, int32_t head_dim) {
    for (int line = 0; line < 256; line += 64) {
        _mm_prefetch((const char *)(keys + at + 16 * head_dim) + line, _MM_HINT_T0);
        _mm_prefetch((const char *)(values + at) + line, _MM_HINT_T0);
    }
}

static void transpose(const uint16_t *keys, const uint16_t *values, int32_t count, int32_t head_dim,
                      float *out) {
    for (int32_t first = 0; first < count; first += 16) {
        const uint16_t *rows[16];
        for (int i = 0; i < 16; i++)
            rows[i] = first + i < count ? keys + (int64_t)(first + i) * head_dim : no_key;
        int32_t d = 0;
        for (; d + 8 <= head_dim; d += 8) {
            fetch(keys, values, (int64_t)first * head_dim + 16 * d, head_dim);
            transpose_part(rows, d, out + first);
        }
        for (; d < head_dim; d++)
            for (int i = 0; i < 16; i++)
                out[d * FC_KEYS + first + i] = fc_half_float(rows[i][d]);
    }
}
