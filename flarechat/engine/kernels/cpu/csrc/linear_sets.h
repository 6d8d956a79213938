/* One table of products' functions an instruction set. */
#ifndef FLARECHAT_LINEAR_SETS_H
#define FLARECHAT_LINEAR_SETS_H

#include "isa.h"
#include "linear.h"
#include "packed.h"

/* A product's rows and where they go; see fc_product. */
typedef struct {
    const fc_matrix *matrix;
    int32_t rows;
    const float *x;
    const fc_packed_group *packed;
    float *y;
    const float *added;
    int64_t stride;
} fc_operands;

typedef struct {
    void (*product)(const fc_operands *operands, int32_t first, int32_t last);
    void (*quantise)(const float *x, int64_t groups, fc_packed_group *packed);
    void (*normalise)(const float *x, const float *weight, float eps, int32_t columns, float *y);
} fc_linear_set;

/* A part of the second cache, which every machine has 256 KiB of; how far ahead weights are read. */
enum { CACHED_BYTES = 160 << 10, READ_AHEAD = 4096 };

extern const fc_linear_set fc_linear_portable;
#ifdef FC_X86
extern const fc_linear_set fc_linear_avx2, fc_linear_avx512;
#ifdef FC_AVXVNNI
extern const fc_linear_set fc_linear_avxvnni;
#endif
#endif

#endif
