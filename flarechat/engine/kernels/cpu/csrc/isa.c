#include "isa.h"

#include "flarechat.h"

#include <stdatomic.h>
#include <string.h>

static const char *const names[FC_INSTRUCTION_SETS] = {"portable", "avx2", "avx512"};
static atomic_int chosen = -1;

static int has(int set) {
#ifdef FC_X86
    if (set == FC_AVX2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("f16c");
    if (set == FC_AVX512)
        return has(FC_AVX2) && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
#endif
    return set == FC_PORTABLE;
}

fc_instruction_set fc_isa(void) {
    int set = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (set < 0) {
        for (set = FC_INSTRUCTION_SETS - 1; !has(set); set--) {
        }
        atomic_store_explicit(&chosen, set, memory_order_relaxed);
    }
    return (fc_instruction_set)set;
}

const char *fc_instructions(void) { return names[fc_isa()]; }

int32_t fc_use(const char *name) {
    for (int set = 0; set < FC_INSTRUCTION_SETS; set++)
        if (!strcmp(names[set], name) && has(set)) {
            atomic_store_explicit(&chosen, set, memory_order_relaxed);
            return 1;
        }
    return 0;
}
