/* The gate of an MLP, for one instruction set. */

FC_INLINE vector silu(vector x) { return x / (all(1.0f) + exponential(-x)); }

static void activate(float *gate, const float *up, int32_t count) {
    int32_t i = 0;
    for (; i + LANES <= count; i += LANES)
        store(gate + i, silu(load(gate + i)) * load(up + i));
    float rest[LANES] = {0};
    memcpy(rest, gate + i, (size_t)(count - i) * sizeof(float));
    store(rest, silu(load(rest)));
    for (int32_t j = 0; i + j < count; j++)
        gate[i + j] = rest[j] * up[i + j];
}
