/* e to the power of x, for every lane: within 2 units in the last place from -87.3 to 88.3, zero
 * below, as at 88.3 above. Even 1 at 0 is exact. */
FC_INLINE vector exponential(vector x) {
    const vector least = all(-87.3f), within = smaller(larger(x, least), all(88.3f));
    /* x = k ln 2 + r: adding 1.5 * 2^23 rounds to k and leaves it in the low bits. */
    const vector rounded = madd(within, all(0x1.715476p+0f), all(0x1.8p23f));
    const vector k = rounded - all(0x1.8p23f);
    const vector r = madd(k, all(0x1.05c610p-29f), madd(k, all(-0x1.62e430p-1f), within));
    /* Taylor's series: what is left out is below 6e-9 for r up to ln 2 / 2. */
    static const float terms[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
    vector power = all(1.0f / 5040);
    for (int i = 0; i < 7; i++)
        power = madd(power, r, all(terms[i]));
    const vector scale = (vector)(((integers)rounded << 23) + (integers)all(1.0f));
    return (vector)((integers)(power * scale) & (x >= least));
}
