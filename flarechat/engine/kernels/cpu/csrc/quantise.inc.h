/* Quantisation and normalisation, in plain loops that compilers vectorise for the set at hand. */

/* Adding 1.5 * 2^23 rounds to an integer, half to even, and leaves it in the low bits. */
#define ROUNDING 0x1.8p23f
/* Groups of smaller values count as zeros: 127 / amax must be finite. */
#define SMALLEST 1e-30f

/* A float's magnitude as an integer, which orders them alike, NaN above all. */
FC_INLINE int32_t magnitude(float value) { return (int32_t)(fc_float_bits(value) & 0x7fffffff); }

/* Highest for the largest magnitude, whose last five bits give way to the column: one maximum then
 * finds both, and the first of equal ones. */
FC_INLINE int32_t rank(float value, int32_t column) {
    return (magnitude(value) & ~(FC_GROUP - 1)) | (FC_GROUP - 1 - column);
}

static void keep_apart(float value, int32_t column, fc_packed_group *packed) {
    packed->apart = value;
    packed->place4 = 64 * (column % 16 / 4);
    packed->right4 = 8 * (column % 4) + 4 * (column / 16);
    packed->place8 = 64 * (column / 4);
    packed->left8 = 24 - 8 * (column % 4);
}

static void quantise_group(const float *x, fc_packed_group *packed) {
    int32_t highest = 0, most = 0, total = 0;
    for (int i = 0; i < FC_GROUP; i++)
        highest = rank(x[i], i) > highest ? rank(x[i], i) : highest;
    for (int i = 0; i < FC_GROUP; i++) {
        const int32_t other = rank(x[i], i) == highest ? 0 : magnitude(x[i]);
        most = other > most ? other : most;
    }
    const int32_t column = FC_GROUP - 1 - highest % FC_GROUP;
    const int finite = highest < 0x7f800000;
    const float amax = fc_bits_float((uint32_t)most);
    const float kept = finite && amax > SMALLEST ? 1.0f : 0.0f;
    const float inverse = finite && amax > SMALLEST ? 127.0f / amax : 0.0f;
    packed->scale = finite ? amax / 127.0f : fc_bits_float(0x7fc00000);
    for (int i = 0; i < FC_GROUP; i++) {
        const float value = kept > 0.0f && i != column ? x[i] : 0.0f;
        const int32_t code =
            (int32_t)(fc_float_bits(value * inverse + ROUNDING) - fc_float_bits(ROUNDING));
        packed->codes[i] = (int8_t)code;
        total += code;
    }
    keep_apart(fabsf(x[column]) > SMALLEST ? x[column] : 0.0f, column, packed);
    packed->total = total;
    packed->sum = fmaf(packed->scale, (float)total, packed->apart);
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
