/* A round's small steps: laws of rows, drafts, acceptance and commit.
 *
 * What the engine's torch code computes (sampling, accept, slot, frame), draw for draw; of equal
 * logits the lower column comes first. Lanes are named by `index`, their slots' numbers; tensors of
 * a lane lead with it and are contiguous, drafts apart, whose lanes are `stride` numbers apart.
 */
#ifndef FLARECHAT_ROUNDS_H
#define FLARECHAT_ROUNDS_H

#include <stdint.h>

#define FC_CANDIDATES 64 /* the most that a law of few candidates has */

/* Who decides: every lane by ratio, every lane by match, or each as its slot says. */
enum { FC_RATIO = 0, FC_MATCH = 1, FC_MIXED = 2 };

/* Every request's numbers, by slot. counts and prompt_seen are [slots, vocabulary], eos is
 * [slots, endings]. */
typedef struct {
    int64_t *pending, *consumed, *generated, *finish;
    const int64_t *budget, *seed, *eos, *top_k;
    const uint8_t *match, *prompt_seen;
    const float *temperature, *top_p, *min_p, *repetition, *presence, *frequency;
    int32_t *counts;
    int64_t vocabulary;
    int32_t endings;
} fc_slots;

/* Drafts [lanes, depth] of a round. */
typedef struct {
    const int64_t *tokens;
    int64_t stride;
    int32_t depth;
} fc_drafts;

/* Logits [lanes, width, columns]. Row w follows the drafts before `first` + w, which matter where
 * `penalties` are asked for. vocabulary [columns], rising, names the columns' tokens; NULL where
 * they are the tokens. */
typedef struct {
    const float *logits;
    const int64_t *vocabulary;
    int64_t columns;
    int32_t width, first, penalties;
} fc_rows;

/* probs and ids [lanes, width, candidates]: the law of each row over its likeliest candidates, in
 * falling order; where there are fewer, probability 0 of token 0. At most FC_CANDIDATES. */
void fc_law(const fc_slots *slots, const int64_t *index, int32_t lanes, const fc_rows *rows,
            const fc_drafts *drafts, int32_t candidates, float *probs, int64_t *ids);

/* probs [lanes, width, columns]: the law of each row over all columns, in their order. */
void fc_whole_law(const fc_slots *slots, const int64_t *index, int32_t lanes, const fc_rows *rows,
                  const fc_drafts *drafts, float *probs);

/* Drafts as they are drawn, `depth` of each lane in all. The first staged_offered[lane] of a lane are
 * the staged ones, whose laws are points; staged.tokens is NULL where there are none. limits, by
 * slot, is how many a lane may draw. */
typedef struct {
    fc_drafts staged;
    const int64_t *staged_offered, *limits;
    int64_t *tokens, *ids, *offered;
    float *probs;
    int32_t depth, candidates, mode;
} fc_chain;

/* Draft number `rows->first` of each lane, and its law: written are tokens [lanes, depth], probs and
 * ids [lanes, depth, candidates] at that number, said [lanes, 1] and, of the first, offered [lanes].
 * The drafts of a chain are drawn in order, with no other law made in between. */
void fc_draw(const fc_slots *slots, const int64_t *index, int32_t lanes, const fc_rows *rows,
             const fc_chain *chain, int64_t *said);

/* A round's laws for acceptance: the target's [lanes, depth + 1, found] and the drafts' own
 * [lanes, depth, q_found]; q is NULL where all are points. */
typedef struct {
    const float *probs, *q;
    const int64_t *ids, *q_ids;
    int32_t found, q_found;
} fc_laws;

/* tokens [lanes, depth + 1]: kept drafts, then the target's own token; and how many are kept. The
 * first sure[lane] drafts, as far as they are offered, are kept without a test; NULL for none. */
void fc_accept(const fc_slots *slots, const int64_t *index, int32_t lanes, const fc_laws *laws,
               const fc_drafts *drafts, const int64_t *offered, const int64_t *sure, int32_t mode,
               int64_t *tokens, int64_t *accepted);

/* inputs [lanes, depth + 1]: the pending token of each lane and its drafts. */
void fc_inputs(const fc_slots *slots, const int64_t *index, int32_t lanes, const fc_drafts *drafts,
               int64_t *inputs);

/* How many of tokens [lanes, width] are emitted, and why the lane ends, if it does. */
void fc_clip(const fc_slots *slots, const int64_t *index, int32_t lanes, int32_t width,
             const int64_t *tokens, const int64_t *accepted, int64_t *emitted, int64_t *finish);

/* Count the emitted tokens of each lane and keep the last of them pending. */
void fc_advance(const fc_slots *slots, const int64_t *index, int32_t lanes, int32_t width,
                const int64_t *tokens, const int64_t *emitted, const int64_t *finish);

/* record [lanes, 6 + width]: offered, accepted, emitted, finish, consumed, generated, tokens. */
void fc_pack(const fc_slots *slots, const int64_t *index, int32_t lanes, int32_t width,
             const int64_t *offered, const int64_t *accepted, const int64_t *emitted,
             const int64_t *finish, const int64_t *tokens, int64_t *record);

/* A table [slots, capacity] of rows of `bytes`. Those that a lane may not write go to spare + w. */
typedef struct {
    char *rows;
    int64_t capacity, bytes, spare;
} fc_table;

/* Put rows [lanes, width] behind the consumed ones of each lane. */
void fc_store(const fc_slots *slots, const int64_t *index, int32_t lanes, int32_t width,
              int32_t prefilling, const fc_table *table, const char *rows);

/* rows [lanes]: of each lane that of its last consumed token, or the first if it has none. */
void fc_last(const fc_slots *slots, const int64_t *index, int32_t lanes, const fc_table *table,
             char *rows);

#endif
