/* float32 to float16; the way back is in packed.h. */
#ifndef FLARECHAT_HALF_H
#define FLARECHAT_HALF_H

#include "packed.h"

/* The nearest float16, of two the even one; too large ones are infinite. */
static inline uint16_t fc_float_half(float value) {
    const uint32_t bits = fc_float_bits(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
    if (rest >= 0x47800000)
        return (uint16_t)(sign | 0x7c00);
    /* Below 2^-14 a float16 counts steps of 2^-24, as floats beside 1/2 do. */
    if (rest < 0x38800000)
        return (uint16_t)(sign | (fc_float_bits(fc_bits_float(rest) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13);
}

#endif
