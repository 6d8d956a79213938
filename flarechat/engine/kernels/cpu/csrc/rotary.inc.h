/* Rotation of heads and conversion of cache rows, for one instruction set. */

static void rotate(float *x, int32_t heads, int32_t head_dim, const float *cos, const float *sin,
                   float scale) {
    const int32_t half = head_dim / 2;
    for (int32_t head = 0; head < heads; head++) {
        float *restrict left = x + head * head_dim, *restrict right = left + half;
        for (int32_t i = 0; i < half; i++) {
            const float l = left[i], r = right[i];
            left[i] = (l * cos[i] - r * sin[i]) * scale;
            right[i] = (r * cos[i] + l * sin[i]) * scale;
        }
    }
}

static void to_half(const float *x, int32_t count, uint16_t *y) {
    int32_t i = 0;
    for (; i + LANES <= count; i += LANES)
        narrow(y + i, load(x + i));
    for (; i < count; i++)
        y[i] = fc_float_half(x[i]);
}
