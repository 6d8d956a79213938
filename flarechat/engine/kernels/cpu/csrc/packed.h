/* What fc_quantise makes of a row, group after group of FC_GROUP columns. The largest value of a
 * group is kept apart as it is, so that the steps of the others are those of the next largest. */
#ifndef FLARECHAT_PACKED_H
#define FLARECHAT_PACKED_H

#include "flarechat.h"

#include <string.h>

typedef struct {
    int8_t codes[FC_GROUP]; /* 0 for the value kept apart */
    float scale;            /* the others' largest magnitude / 127; NaN where one is not finite */
    float apart;            /* the value kept apart */
    float sum;              /* of all: scale * total + apart */
    int32_t total;          /* of the codes */
    /* Where a tile's group has the codes of the column kept apart: in words from this byte on, of
     * four bits and of eight, so many bits from the low or the high end. */
    int32_t place4, right4, place8, left8;
} fc_packed_group;

static inline uint32_t fc_float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float fc_bits_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Exact, subnormals, infinities and NaN included. */
static inline float fc_half_float(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00)
        return fc_bits_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    /* The exponent's bias differs by 112, which a multiplication also applies to subnormals. */
    return fc_bits_float(sign | fc_float_bits(fc_bits_float(rest << 13) * 0x1p112f));
}

static inline float fc_bfloat_float(uint16_t bits) { return fc_bits_float((uint32_t)bits << 16); }

/* Bytes of a quantised tile's group, and of a tile. */
static inline size_t fc_group_bytes(int32_t kind) {
    return kind == FC_Q4_1 ? 320 : kind == FC_Q4_0 ? 288 : 544;
}

static inline size_t fc_tile_bytes(const fc_matrix *matrix) {
    if (matrix->kind == FC_BF16)
        return (size_t)matrix->columns * FC_TILE * sizeof(uint16_t);
    return (size_t)(matrix->columns / FC_GROUP) * fc_group_bytes(matrix->kind);
}

#endif
