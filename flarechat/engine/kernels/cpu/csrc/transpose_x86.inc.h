/* Keys to columns by shuffles of float16; the including file defines put(out, column), which stores
 * a column of 16 keys. */

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

static void transpose(const uint16_t *keys, int32_t count, int32_t head_dim, float *out) {
    for (int32_t first = 0; first < count; first += 16) {
        const uint16_t *rows[16];
        for (int i = 0; i < 16; i++)
            rows[i] = first + i < count ? keys + (int64_t)(first + i) * head_dim : no_key;
        int32_t d = 0;
        for (; d + 8 <= head_dim; d += 8)
            transpose_part(rows, d, out + first);
        for (; d < head_dim; d++)
            for (int i = 0; i < 16; i++)
                out[d * FC_KEYS + first + i] = fc_half_float(rows[i][d]);
    }
}
