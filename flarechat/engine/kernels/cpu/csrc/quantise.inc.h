/* Quantisation and normalisation, in plain loops that compilers vectorise for the set at hand. */

/* Adding 1.5 * 2^23 rounds to an integer, half to even, and leaves it in the low bits. */
#define ROUNDING 0x1.8p23f
/* Groups of smaller values count as zeros: 127 / amax must be finite. */
#define SMALLEST 1e-30f

static void quantise_group(const float *x, fc_packed_group *packed) {
    int32_t largest = 0, total = 0;
    for (int i = 0; i < FC_GROUP; i++) {
        const int32_t bits = (int32_t)(fc_float_bits(x[i]) & 0x7fffffff);
        largest = bits > largest ? bits : largest;
    }
    const int finite = largest < 0x7f800000;
    const float amax = fc_bits_float((uint32_t)largest);
    const float inverse = finite && amax > SMALLEST ? 127.0f / amax : 0.0f;
    const float kept = inverse > 0.0f ? 1.0f : 0.0f;
    packed->scale = finite ? amax / 127.0f : fc_bits_float(0x7fc00000);
    for (int i = 0; i < FC_GROUP; i++) {
        const float value = kept > 0.0f ? x[i] : 0.0f;
        const int32_t code =
            (int32_t)(fc_float_bits(value * inverse + ROUNDING) - fc_float_bits(ROUNDING));
        packed->codes[i] = (int8_t)code;
        total += code;
    }
    packed->total = total;
    packed->sum = packed->scale * (float)total;
}

static void quantise(const float *x, int64_t groups, fc_packed_group *packed) {
    for (int64_t group = 0; group < groups; group++)
        quantise_group(x + group * FC_GROUP, packed + group);
}

/* Squares are summed in 16 sums, column c in sum c % 16, which are then added in halves. */
static void normalise(const float *x, const float *weight, float eps, int32_t columns, float *y) {
    float sums[16] = {0};
    int32_t column = 0;
    for (; column + 16 <= columns; column += 16)
        for (int i = 0; i < 16; i++)
            sums[i] = fmaf(x[column + i], x[column + i], sums[i]);
    for (int i = 0; column + i < columns; i++)
        sums[i] = fmaf(x[column + i], x[column + i], sums[i]);
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            sums[i] += sums[i + half];
    const float scale = 1.0f / sqrtf(sums[0] / (float)columns + eps);
    for (int32_t i = 0; i < columns; i++)
        y[i] = x[i] * scale * weight[i];
}
