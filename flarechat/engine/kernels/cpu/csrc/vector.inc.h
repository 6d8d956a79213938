/* LANES floats at once, by the compilers' own vectors: arithmetic is written with operators. The
 * including file defines LANES and, after this file, madd, widen and narrow. */

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

/* Of every lane `then` where the condition is all ones, `otherwise` where it is zero. */
FC_INLINE vector choose(integers condition, vector then, vector otherwise) {
    return (vector)((condition & (integers)then) | (~condition & (integers)otherwise));
}

FC_INLINE vector larger(vector a, vector b) { return choose(a > b, a, b); }
