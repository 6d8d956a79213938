/* Draws of one candidate by numbered randomness, as the engine's `rng` numbers them.
 *
 * Included by the sources of a round's steps. */
#ifndef FLARECHAT_ROUNDS_DRAWS_H
#define FLARECHAT_ROUNDS_DRAWS_H

#include "rounds.h"

#include <math.h>

enum { FC_SAMPLE = 1, FC_ACCEPT = 2, FC_DRAFT = 4 };
enum { FC_ACCEPT_STRIDE = 16, FC_DRAFT_STRIDE = 4 };

static inline uint32_t fc_mix(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

/* What `fc_bits` makes of all but the index. */
static inline uint32_t fc_salt(int64_t seed, uint32_t domain, int64_t position) {
    uint32_t key = fc_mix((uint32_t)seed ^ (domain * 0x9E3779B9u));
    key = fc_mix(key ^ (uint32_t)((uint64_t)seed >> 32));
    return fc_mix(key + (uint32_t)position * 0x85EBCA6Bu);
}

static inline uint32_t fc_bits(uint32_t salt, uint32_t index) {
    return fc_mix(fc_mix(salt ^ (index * 0x27D4EB2Fu)) ^ salt);
}

static inline float fc_gumbel(uint32_t salt, int64_t token) {
    float low = ((float)fc_bits(salt, (uint32_t)token) + 0.5f) * 0x1p-32f;
    low = low < 1.0f - 0x1p-24f ? low : 1.0f - 0x1p-24f;
    return -logf(-log1pf(-low));
}

/* Draw `number` of the stream of a seed and a domain, in (0, 1]: Philox4x32-10. */
static inline float fc_uniform(int64_t seed, uint32_t domain, int64_t number) {
    uint32_t salt = fc_salt(seed, domain, 0), low = fc_bits(salt, 0), high = fc_bits(salt, 1);
    uint64_t block = (uint64_t)number >> 2;
    uint32_t word[4] = {(uint32_t)block, (uint32_t)(block >> 32), 0, 0};
    for (int turn = 0; turn < 10; turn++) {
        uint64_t a = (uint64_t)word[0] * 0xD2511F53u, b = (uint64_t)word[2] * 0xCD9E8D57u;
        uint32_t first = (uint32_t)(b >> 32) ^ word[1] ^ low;
        uint32_t third = (uint32_t)(a >> 32) ^ word[3] ^ high;
        word[0] = first, word[1] = (uint32_t)b, word[2] = third, word[3] = (uint32_t)a;
        low += 0x9E3779B9u, high += 0xBB67AE85u;
    }
    return (float)word[number & 3] * 0x1p-32f + 0x1p-33f;
}

/* Inverse distribution function in the order of ids: the first token with which the tokens up to it
 * have more than `mass`; where rounding leaves none, the last. Never one of probability 0. */
static inline int64_t fc_token_at_mass(int32_t count, const float *probs, const int64_t *ids,
                                       float mass) {
    int32_t order[FC_CANDIDATES], held = 0;
    for (int32_t i = 0; i < count; i++) {
        if (!(probs[i] > 0))
            continue;
        int32_t at = held++;
        for (; at > 0 && ids[order[at - 1]] > ids[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    double through = 0;
    for (int32_t i = 0; i < held; i++) {
        through += probs[order[i]];
        if ((float)through > mass)
            return ids[order[i]];
    }
    return held ? ids[order[held - 1]] : 0;
}

/* The candidate that wins the race which `match` lets them run. */
static inline int64_t fc_winner(int32_t count, const float *probs, const int64_t *ids, int64_t seed,
                                int64_t position) {
    uint32_t salt = fc_salt(seed, FC_SAMPLE, position);
    int64_t winner = ids[0];
    float best = -INFINITY;
    for (int32_t i = 0; i < count; i++) {
        if (!(probs[i] > 0))
            continue;
        float race = logf(probs[i]) + fc_gumbel(salt, ids[i]);
        if (race > best)
            best = race, winner = ids[i];
    }
    return winner;
}

static inline int fc_by_match(const fc_slots *slots, int64_t slot, int32_t mode) {
    return mode == FC_MIXED ? slots->match[slot] != 0 : mode == FC_MATCH;
}

#endif
