/* Products, for one instruction set. The including file defines
 *
 *   LANES, WIDEST            rows of a tile taken at once; rows of activations, at most 8
 *   lanes, quads, sums       LANES floats; codes of four columns a row; sums of their products
 *   zero() broadcast(f) add(a, b) times(a, b) fma_lanes(a, b, c)
 *   load(p, n) store(p, v, n)     n <= LANES floats
 *   halves(p) bfloats(p)          LANES float16 or bfloat16 as floats
 *   low4(p) high4(p) whole8(p)    quads of 64 bytes of a tile
 *   first4() more4(s, q, x) last4(s), first8(total) more8(s, q, x) last8(s)
 *                                 the exact sum of code * activation, four columns at a time
 *   code4(p, n) code8(p, n)       of each word at p the four bits above the n lowest, or the signed
 *                                 byte below the n highest, as floats
 *
 * A group adds scale * (value kept apart * its code + activations' scale * sum of the others), then
 * minimum * sum of activations.
 */

/* Rows row ... row+width-1 of the tile's rows lane ... lane+LANES-1, added to what there is. */
FC_INLINE void put(const fc_operands *o, int32_t at, int32_t row, int width, const lanes *results) {
    const int32_t left = o->matrix->rows - at, count = left < LANES ? left : LANES;
    if (count <= 0)
        return;
    for (int w = 0; w < width; w++) {
        const int64_t place = (row + w) * o->stride + at;
        lanes result = results[w];
        if (o->added)
            result = add(result, load(o->added + place, count));
        store(o->y + place, result, count);
    }
}

/* Rows are the inner loop: so many sums that do not wait for one another keep the units busy, where
 * one row's eight steps after another's would fill the scheduler with steps that wait. */
FC_INLINE void dots4(const uint8_t *codes, const fc_packed_group *x, int64_t stride,
                     const int width, sums *dots) {
    for (int w = 0; w < width; w++)
        dots[w] = first4();
    for (int i = 0; i < 4; i++) {
        const quads low = low4(codes + 64 * i), high = high4(codes + 64 * i);
        for (int w = 0; w < width; w++)
            dots[w] = more4(dots[w], low, x[w * stride].codes + 4 * i);
        for (int w = 0; w < width; w++)
            dots[w] = more4(dots[w], high, x[w * stride].codes + 16 + 4 * i);
    }
}

FC_INLINE void dots8(const uint8_t *codes, const fc_packed_group *x, int64_t stride,
                     const int width, sums *dots) {
    for (int w = 0; w < width; w++)
        dots[w] = first8(x[w * stride].total);
    for (int i = 0; i < 8; i++) {
        const quads whole = whole8(codes + 64 * i);
        for (int w = 0; w < width; w++)
            dots[w] = more8(dots[w], whole, x[w * stride].codes + 4 * i);
    }
}

FC_INLINE lanes code_apart(const uint8_t *codes, const fc_packed_group *x, const int kind) {
    return kind == FC_Q8_0 ? code8(codes + x->place8, x->left8) : code4(codes + x->place4, x->right4);
}

/* The processor reads ahead too late, and not at all into the next page. */
FC_INLINE void read_ahead(const uint8_t *group, size_t bytes) {
    for (size_t byte = 0; byte < bytes; byte += 64)
        __builtin_prefetch(group + READ_AHEAD + byte);
}

FC_INLINE void quantised_block(const fc_operands *o, const uint8_t *tile, int32_t at, int lane,
                               int32_t row, const int kind, const int width) {
    const int32_t groups = o->matrix->columns / FC_GROUP;
    const fc_packed_group *x = o->packed + (int64_t)row * groups;
    lanes results[WIDEST];
    for (int w = 0; w < width; w++)
        results[w] = zero();
    for (int32_t group = 0; group < groups; group++, tile += fc_group_bytes(kind), x++) {
        const uint16_t *scales = (const uint16_t *)(tile + (kind == FC_Q8_0 ? 512 : 256)) + lane;
        const lanes scale = halves(scales);
        if (!lane && !row)
            read_ahead(tile, fc_group_bytes(kind));
        sums dots[WIDEST];
        if (kind == FC_Q8_0)
            dots8(tile + 4 * lane, x, groups, width, dots);
        else
            dots4(tile + 4 * lane, x, groups, width, dots);
        for (int w = 0; w < width; w++) {
            const fc_packed_group *its = x + (int64_t)w * groups;
            const lanes dot = kind == FC_Q8_0 ? last8(dots[w]) : last4(dots[w]);
            const lanes code = code_apart(tile + 4 * lane, its, kind);
            const lanes others = times(dot, broadcast(its->scale));
            const lanes whole = fma_lanes(broadcast(its->apart), code, others);
            results[w] = fma_lanes(scale, whole, results[w]);
        }
        if (kind == FC_Q8_0)
            continue;
        const lanes minimum = kind == FC_Q4_1 ? halves(scales + FC_TILE) : times(scale, broadcast(-8));
        for (int w = 0; w < width; w++)
            results[w] = fma_lanes(minimum, broadcast(x[(int64_t)w * groups].sum), results[w]);
    }
    put(o, at, row, width, results);
}

FC_INLINE void bfloat_column(const float *x, int32_t columns, const uint16_t *weights, const int width,
                             lanes *results) {
    const lanes weight = bfloats(weights);
    for (int w = 0; w < width; w++)
        results[w] = fma_lanes(weight, broadcast(x[(int64_t)w * columns]), results[w]);
}

/* Even columns in one sum, odd ones in another. */
FC_INLINE void bfloat_block(const fc_operands *o, const uint8_t *tile, int32_t at, int lane,
                            int32_t row, const int width) {
    const int32_t columns = o->matrix->columns;
    const uint16_t *weights = (const uint16_t *)tile + lane;
    const float *x = o->x + (int64_t)row * columns;
    lanes even[WIDEST], odd[WIDEST];
    for (int w = 0; w < width; w++)
        even[w] = odd[w] = zero();
    int32_t column = 0;
    for (; column + 2 <= columns; column += 2) {
        bfloat_column(x + column, columns, weights + column * FC_TILE, width, even);
        bfloat_column(x + column + 1, columns, weights + (column + 1) * FC_TILE, width, odd);
    }
    if (column < columns)
        bfloat_column(x + column, columns, weights + column * FC_TILE, width, even);
    for (int w = 0; w < width; w++)
        even[w] = add(even[w], odd[w]);
    put(o, at, row, width, even);
}

FC_INLINE void block(const fc_operands *o, const uint8_t *tile, int32_t at, int lane, int32_t row,
                     const int kind, const int width) {
    if (kind == FC_BF16)
        bfloat_block(o, tile, at + lane, lane, row, width);
    else
        quantised_block(o, tile, at + lane, lane, row, kind, width);
}

/* Rows first ... last-1 of a tile whose first row is `at`. */
FC_INLINE void tile_rows(const fc_operands *o, const uint8_t *tile, int32_t at, int32_t first,
                         int32_t last, const int kind) {
    for (int lane = 0; lane < FC_TILE; lane += LANES) {
        int32_t row = first;
        for (; row + WIDEST <= last; row += WIDEST)
            block(o, tile, at, lane, row, kind, WIDEST);
        switch (last - row) {
        case 1: block(o, tile, at, lane, row, kind, 1); break;
        case 2: block(o, tile, at, lane, row, kind, 2); break;
        case 3: block(o, tile, at, lane, row, kind, 3); break;
#if WIDEST > 4
        case 4: block(o, tile, at, lane, row, kind, 4); break;
        case 5: block(o, tile, at, lane, row, kind, 5); break;
        case 6: block(o, tile, at, lane, row, kind, 6); break;
        case 7: block(o, tile, at, lane, row, kind, 7); break;
#endif
        }
    }
}

static void tile_q4_0(const fc_operands *o, const uint8_t *tile, int32_t at, int32_t first,
                      int32_t last) {
    tile_rows(o, tile, at, first, last, FC_Q4_0);
}

static void tile_q4_1(const fc_operands *o, const uint8_t *tile, int32_t at, int32_t first,
                      int32_t last) {
    tile_rows(o, tile, at, first, last, FC_Q4_1);
}

static void tile_q8_0(const fc_operands *o, const uint8_t *tile, int32_t at, int32_t first,
                      int32_t last) {
    tile_rows(o, tile, at, first, last, FC_Q8_0);
}

static void tile_bf16(const fc_operands *o, const uint8_t *tile, int32_t at, int32_t first,
                      int32_t last) {
    tile_rows(o, tile, at, first, last, FC_BF16);
}

/* Rows of activations that stay in the second cache while the tiles go by. */
static int32_t rows_at_once(const fc_matrix *matrix) {
    const int32_t bytes = matrix->kind == FC_BF16 ? matrix->columns * 4 : matrix->columns * 11 / 8;
    const int32_t rows = (CACHED_BYTES / bytes) / WIDEST * WIDEST;
    return rows > WIDEST ? rows : WIDEST;
}

static void product(const fc_operands *o, int32_t first, int32_t last) {
    static void (*const of_kind[])(const fc_operands *, const uint8_t *, int32_t, int32_t, int32_t) =
        {tile_q4_0, tile_q4_1, tile_q8_0, tile_bf16};
    const size_t bytes = fc_tile_bytes(o->matrix);
    const int32_t at_once = rows_at_once(o->matrix);
    for (int32_t row = 0; row < o->rows; row += at_once) {
        const int32_t end = row + at_once < o->rows ? row + at_once : o->rows;
        for (int32_t tile = first; tile < last; tile++)
            of_kind[o->matrix->kind](o, (const uint8_t *)o->matrix->data + tile * bytes,
                                     tile * FC_TILE, row, end);
    }
}
