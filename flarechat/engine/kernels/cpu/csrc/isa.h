/* Which instruction set runs. Every set computes the same bits; one text is compiled for each. */
#ifndef FLARECHAT_ISA_H
#define FLARECHAT_ISA_H

#if defined(__x86_64__)
#define FC_X86 1
#endif

typedef enum { FC_PORTABLE, FC_AVX2, FC_AVX512, FC_INSTRUCTION_SETS } fc_instruction_set;

/* The set in use, an index for tables of functions: the best of the machine, or fc_use's. */
fc_instruction_set fc_isa(void);

#define FC_INLINE static inline __attribute__((always_inline))

#endif
