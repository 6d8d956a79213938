/* Which instruction set runs. Every set computes the same bits; one text is compiled for each. */
#ifndef FLARECHAT_ISA_H
#define FLARECHAT_ISA_H

#if defined(__x86_64__)
#define FC_X86 1
#if defined(__has_include)
#if __has_include(<avxvnniintrin.h>)
#define FC_AVXVNNI 1 /* The compiler knows it. */
#endif
#endif
#endif

typedef enum { FC_PORTABLE, FC_AVX2, FC_AVX512, FC_INSTRUCTION_SETS } fc_instruction_set;

/* The set in use, an index for tables of functions: the best of the machine, or fc_use's. "avxvnni"
 * counts as FC_AVX2, of which fc_isa_dots() then says 1. */
fc_instruction_set fc_isa(void);
int fc_isa_dots(void);

#define FC_INLINE static inline __attribute__((always_inline))

#endif
