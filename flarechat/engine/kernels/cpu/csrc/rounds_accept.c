/* Which drafts the target keeps and the token it adds, by ratio and by match. */
#include "rounds_draws.h"

#include <string.h>

/* One lane's: its laws, drafts and place in the text. */
typedef struct {
    const float *probs, *q;
    const int64_t *ids, *q_ids, *drafts;
    int32_t found, q_found, depth;
    int64_t offered, sure, seed, first;
} lane_laws;

static float prob_of(const float *probs, const int64_t *ids, int32_t found, int64_t token) {
    double prob = 0;
    for (int32_t i = 0; i < found; i++)
        prob += ids[i] == token ? probs[i] : 0;
    return (float)prob;
}

static int is_sure(const lane_laws *lane, int32_t row) {
    return row < lane->depth && row < lane->offered && row < lane->sure;
}

/* The target's own draws, as far as they confirm drafts, and the first that does not. */
static int64_t by_match(const lane_laws *lane, int64_t *tokens) {
    int32_t row = 0;
    for (; is_sure(lane, row); row++)
        tokens[row] = lane->drafts[row];
    for (;; row++) {
        int64_t at = (int64_t)row * lane->found;
        tokens[row] = fc_winner(lane->found, lane->probs + at, lane->ids + at, lane->seed,
                                lane->first + row);
        if (row == lane->depth || row >= lane->offered || tokens[row] != lane->drafts[row])
            return row;
    }
}

static float q_of(const lane_laws *lane, int32_t row, int64_t token) {
    if (!lane->q)
        return lane->drafts[row] == token;
    int64_t at = (int64_t)row * lane->q_found;
    return prob_of(lane->q + at, lane->q_ids + at, lane->q_found, token);
}

/* max(p - q, 0) of the candidates at the draft that was not kept; p itself where nothing is left,
 * as rounding can where p equals q. */
static const float *residual(const lane_laws *lane, int32_t row, const float *own,
                             const int64_t *ids, float *left) {
    int any = 0;
    for (int32_t i = 0; i < lane->found; i++) {
        float less = own[i] - q_of(lane, row, ids[i]);
        left[i] = less > 0 ? less : 0;
        any |= left[i] > 0;
    }
    return any ? left : own;
}

/* Accepted drafts and the token after them. Draft i is tested with draw i of the lane's round; the
 * last draw is number depth where the target kept all columns, and depth + 1 otherwise. */
static int64_t by_ratio(const lane_laws *lane, int64_t *tokens) {
    int64_t draw = lane->first * FC_ACCEPT_STRIDE;
    int32_t depth = lane->depth, row = 0;
    for (; is_sure(lane, row); row++)
        tokens[row] = lane->drafts[row];
    for (; row < depth && row < lane->offered; row++) {
        int64_t at = (int64_t)row * lane->found, draft = lane->drafts[row];
        float p = prob_of(lane->probs + at, lane->ids + at, lane->found, draft);
        float u = fc_uniform(lane->seed, FC_ACCEPT, draw + row);
        if (!(u * q_of(lane, row, draft) < p))
            break;
        tokens[row] = draft;
    }
    float room[FC_CANDIDATES];
    const int64_t *ids = lane->ids + (int64_t)row * lane->found;
    const float *left = lane->probs + (int64_t)row * lane->found;
    if (row < lane->offered && row < depth)
        left = residual(lane, row, left, ids, room);
    double sum = 0;
    for (int32_t i = 0; i < lane->found; i++)
        sum += left[i];
    float last = fc_uniform(lane->seed, FC_ACCEPT, draw + (row == depth ? depth : depth + 1));
    tokens[row] = fc_token_at_mass(lane->found, left, ids, last * (float)sum);
    return row;
}

void fc_accept(const fc_slots *slots, const int64_t *index, int32_t lanes, const fc_laws *laws,
               const fc_drafts *drafts, const int64_t *offered, const int64_t *sure, int32_t mode,
               int64_t *tokens, int64_t *accepted) {
    int32_t depth = drafts->depth;
    memset(tokens, 0, sizeof(int64_t) * (size_t)lanes * (size_t)(depth + 1));
    for (int32_t lane = 0; lane < lanes; lane++) {
        int64_t slot = index[lane], q_at = (int64_t)lane * depth * laws->q_found;
        int64_t at = (int64_t)lane * (depth + 1) * laws->found;
        lane_laws own = {
            .probs = laws->probs + at, .ids = laws->ids + at, .found = laws->found,
            .q = laws->q ? laws->q + q_at : NULL, .q_ids = laws->q ? laws->q_ids + q_at : NULL,
            .q_found = laws->q_found, .drafts = drafts->tokens + lane * drafts->stride,
            .depth = depth, .offered = offered[lane], .sure = sure ? sure[lane] : 0,
            .seed = slots->seed[slot], .first = slots->consumed[slot] + 1,
        };
        int64_t *said = tokens + (int64_t)lane * (depth + 1);
        accepted[lane] = (fc_by_match(slots, slot, mode) ? by_match : by_ratio)(&own, said);
    }
}
