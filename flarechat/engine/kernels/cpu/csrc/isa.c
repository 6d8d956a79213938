#include "isa.h"

#include "flarechat.h"

#include <stdatomic.h>
#include <string.h>

#ifdef FC_X86
#include <cpuid.h>

/* A feature by its bit, where compilers differ in which names they know: 1 in register `at` (0 eax,
 * 2 ecx) of a leaf. The registers' state is asked for with AVX2. */
static int bit_of(unsigned leaf, unsigned subleaf, int at, int bit) {
    unsigned found[4] = {0, 0, 0, 0};
    return __get_cpuid_count(leaf, subleaf, &found[0], &found[1], &found[2], &found[3]) &&
           (found[at] >> bit & 1);
}
#endif

enum { PORTABLE, AVX2, AVXVNNI, AVX512, SETS };

static const struct {
    const char *name;
    fc_instruction_set set;
} sets[SETS] = {
    {"portable", FC_PORTABLE}, {"avx2", FC_AVX2}, {"avxvnni", FC_AVX2}, {"avx512", FC_AVX512}};

static atomic_int chosen = -1;

static int has(int set) {
#ifdef FC_X86
    __builtin_cpu_init();
    if (set == AVX2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               bit_of(1, 0, 2, 29); /* F16C */
#ifdef FC_AVXVNNI
    if (set == AVXVNNI)
        return has(AVX2) && bit_of(7, 1, 0, 4);
#endif
    if (set == AVX512)
        return has(AVX2) && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
#endif
    return set == PORTABLE;
}

static int in_use(void) {
    int set = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (set < 0) {
        for (set = SETS - 1; !has(set); set--) {
        }
        atomic_store_explicit(&chosen, set, memory_order_relaxed);
    }
    return set;
}

fc_instruction_set fc_isa(void) { return sets[in_use()].set; }

int fc_isa_dots(void) { return in_use() == AVXVNNI; }

const char *fc_instructions(void) { return sets[in_use()].name; }

int32_t fc_use(const char *name) {
    for (int set = 0; set < SETS; set++)
        if (!strcmp(sets[set].name, name) && has(set)) {
            atomic_store_explicit(&chosen, set, memory_order_relaxed);
            return 1;
        }
    return 0;
}
