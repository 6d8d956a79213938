#include "parallel.h"

#include <stdio.h>
#include <stdlib.h>

void *fc_scratch(int32_t purpose, size_t bytes) {
    static struct {
        void *data;
        size_t bytes;
    } held[FC_SCRATCHES];
    if (bytes > held[purpose].bytes) {
        const size_t wanted = (bytes + bytes / 2 + 63) / 64 * 64;
        void *data = aligned_alloc(64, wanted);
        if (!data) {
            fprintf(stderr, "flarechat: no memory for %zu bytes of scratch\n", wanted);
            abort();
        }
        free(held[purpose].data);
        held[purpose].data = data;
        held[purpose].bytes = wanted;
    }
    return held[purpose].data;
}
