/* Penalties of a row, as the few values that differ from its logits. */
#ifndef FLARECHAT_ROUNDS_PENALTIES_H
#define FLARECHAT_ROUNDS_PENALTIES_H

#include "rounds.h"

/* Columns, rising, and the values that stand there in place of the logits. */
typedef struct {
    int32_t *columns;
    float *values;
    int32_t count;
} fc_overlay;

/* Of each lane that asks for penalties the columns, rising, that its text has. They stay where they
 * are until they are found anew. */
void fc_find_said(const fc_slots *slots, const int64_t *index, int32_t lanes, const fc_rows *rows);

/* Memory for `count` overlays of laws over these rows that follow at most `depth` drafts. */
void *fc_overlay_room(int32_t lanes, int32_t depth, int32_t count);

/* The overlay of row `row` of a lane, number `at` in `room`. */
fc_overlay fc_overlay_of(const fc_slots *slots, int64_t slot, int32_t lane, const fc_rows *rows,
                         int32_t row, const fc_drafts *drafts, void *room, int64_t at);

#endif
