/* The pool: chunks of one piece of work, taken by whichever thread is free. */
#ifndef FLARECHAT_PARALLEL_H
#define FLARECHAT_PARALLEL_H

#include <stddef.h>
#include <stdint.h>

typedef void (*fc_work)(void *what, int32_t chunk);

/* Call work(what, chunk) for every chunk in 0 ... chunks-1, each once; returns when all are done.
 * What a chunk computes may not depend on the thread. */
void fc_parallel(fc_work work, void *what, int32_t chunks);

/* Memory for one purpose (a small number of the caller's file), at least `bytes`, aligned to 64; it
 * stays valid and keeps its content until the next call for that purpose. */
void *fc_scratch(int32_t purpose, size_t bytes);

enum {
    FC_SCRATCH_LINEAR = 0,
    FC_SCRATCH_BLOCKS = 8,
    FC_SCRATCH_ROUNDS = 16,
    FC_SCRATCH_CHAIN = 20,
    FC_SCRATCHES = 24
};

#endif
