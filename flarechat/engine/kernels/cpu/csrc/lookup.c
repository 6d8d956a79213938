#include "packed.h"
#include "parallel.h"

typedef struct {
    const fc_matrix *matrix;
    const int64_t *ids;
    float *y;
} lookup_call;

static float value_q4(const uint8_t *group, int32_t kind, int32_t row, int32_t column) {
    const uint16_t *scales = (const uint16_t *)(group + 256);
    const uint8_t byte = group[64 * (column % 16 / 4) + 4 * row + column % 4];
    const float code = (float)(column < 16 ? byte & 15 : byte >> 4);
    const float scale = fc_half_float(scales[row]);
    if (kind == FC_Q4_0)
        return (code - 8.0f) * scale;
    /* A code times a float16 is exact, so that this rounds once, as a fused operation would. */
    return code * scale + fc_half_float(scales[FC_TILE + row]);
}

static float value_q8(const uint8_t *group, int32_t row, int32_t column) {
    const int8_t code = (int8_t)group[64 * (column / 4) + 4 * row + column % 4];
    return (float)code * fc_half_float(((const uint16_t *)(group + 512))[row]);
}

static void look_up(void *what, int32_t chunk) {
    const lookup_call *call = what;
    const fc_matrix *matrix = call->matrix;
    const int32_t row = (int32_t)(call->ids[chunk] % FC_TILE);
    const uint8_t *tile = (const uint8_t *)matrix->data +
                          (size_t)(call->ids[chunk] / FC_TILE) * fc_tile_bytes(matrix);
    float *y = call->y + (int64_t)chunk * matrix->columns;
    for (int32_t column = 0; column < matrix->columns; column++) {
        const uint8_t *group = tile + (column / FC_GROUP) * fc_group_bytes(matrix->kind);
        if (matrix->kind == FC_BF16)
            y[column] = fc_bfloat_float(((const uint16_t *)tile)[column * FC_TILE + row]);
        else if (matrix->kind == FC_Q8_0)
            y[column] = value_q8(group, row, column % FC_GROUP);
        else
            y[column] = value_q4(group, matrix->kind, row, column % FC_GROUP);
    }
}

void fc_lookup(const fc_matrix *matrix, int32_t count, const int64_t *ids, float *y) {
    lookup_call call = {matrix, ids, y};
    if (count > 8)
        fc_parallel(look_up, &call, count);
    else
        for (int32_t i = 0; i < count; i++)
            look_up(&call, i);
}
