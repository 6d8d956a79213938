/* LANES floats at once, by the compilers' own vectors: arithmetic is written with operators. The
 * including file defines LANES before and, after,
 *
 *   madd(a, b, c)           fused a * b + c
 *   larger(a, b) smaller    b where they are equal or one is no number
 *   widen(p) narrow(p, v)   from and to float16
 *   most_of(x) sum_of(x)    of 16 lanes; summed 8 apart first, then 4, 2 and 1
 */

#include <string.h>

typedef float vector __attribute__((vector_size(4 * LANES)));
typedef int32_t integers __attribute__((vector_size(4 * LANES)));

FC_INLINE vector load(const float *p) {
    vector v;
    memcpy(&v, p, sizeof v);
    return v;
}

FC_INLINE void store(float *p, vector v) { memcpy(p, &v, sizeof v); }

FC_INLINE vector all(float value) { return value - (vector){0}; }
