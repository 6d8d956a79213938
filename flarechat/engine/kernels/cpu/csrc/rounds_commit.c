/* The small steps around a round's pass: inputs, clip, advance, the frame and hidden rows. */
#include "rounds.h"

#include <string.h>

/* A lane's finish: playing, ended by a terminal token, out of budget. */
enum { RUNNING = 0, STOPPED = 1, EXHAUSTED = 2 };

void fc_inputs(const fc_slots *slots, const int64_t *index, int32_t lanes, const fc_drafts *drafts,
               int64_t *inputs) {
    for (int32_t lane = 0; lane < lanes; lane++) {
        *inputs++ = slots->pending[index[lane]];
        for (int32_t i = 0; i < drafts->depth; i++)
            *inputs++ = drafts->tokens[lane * drafts->stride + i];
    }
}

static int ends(const fc_slots *slots, int64_t slot, int64_t token) {
    for (int32_t i = 0; i < slots->endings; i++)
        if (slots->eos[slot * slots->endings + i] == token)
            return 1;
    return 0;
}

void fc_clip(const fc_slots *slots, const int64_t *index, int32_t lanes, int32_t width,
             const int64_t *tokens, const int64_t *accepted, int64_t *emitted, int64_t *finish) {
    for (int32_t lane = 0; lane < lanes; lane++, tokens += width) {
        int64_t slot = index[lane], count = accepted[lane] + 1, first = 0;
        int64_t left = slots->budget[slot] - slots->generated[slot];
        emitted[lane] = 0;
        finish[lane] = slots->finish[slot];
        if (finish[lane] != RUNNING)
            continue;
        while (first < count && !ends(slots, slot, tokens[first]))
            first++;
        count = first < count ? first + 1 : count;
        count = count < left ? count : left;
        emitted[lane] = count;
        finish[lane] = first < count ? STOPPED : count == left ? EXHAUSTED : RUNNING;
    }
}

void fc_advance(const fc_slots *slots, const int64_t *index, int32_t lanes, int32_t width,
                const int64_t *tokens, const int64_t *emitted, const int64_t *finish) {
    for (int32_t lane = 0; lane < lanes; lane++, tokens += width) {
        int64_t slot = index[lane], count = emitted[lane];
        if (count > 0)
            slots->pending[slot] = tokens[count - 1];
        slots->consumed[slot] += count;
        slots->generated[slot] += count;
        slots->finish[slot] = finish[lane];
        for (int64_t row = 0; row < count; row++)
            slots->counts[slot * slots->vocabulary + tokens[row]]++;
    }
}

void fc_pack(const fc_slots *slots, const int64_t *index, int32_t lanes, int32_t width,
             const int64_t *offered, const int64_t *accepted, const int64_t *emitted,
             const int64_t *finish, const int64_t *tokens, int64_t *record) {
    for (int32_t lane = 0; lane < lanes; lane++, tokens += width) {
        *record++ = offered[lane];
        *record++ = accepted[lane];
        *record++ = emitted[lane];
        *record++ = finish[lane];
        *record++ = slots->consumed[index[lane]];
        *record++ = slots->generated[index[lane]];
        for (int32_t row = 0; row < width; row++)
            *record++ = tokens[row];
    }
}

void fc_store(const fc_slots *slots, const int64_t *index, int32_t lanes, int32_t width,
              int32_t prefilling, const fc_table *table, const char *rows) {
    for (int32_t lane = 0; lane < lanes; lane++) {
        int64_t slot = index[lane];
        int64_t first = prefilling || slots->finish[slot] == RUNNING ? slots->consumed[slot]
                                                                     : table->spare;
        size_t bytes = (size_t)(width * table->bytes);
        memcpy(table->rows + (slot * table->capacity + first) * table->bytes, rows, bytes);
        rows += bytes;
    }
}

void fc_last(const fc_slots *slots, const int64_t *index, int32_t lanes, const fc_table *table,
             char *rows) {
    for (int32_t lane = 0; lane < lanes; lane++, rows += table->bytes) {
        int64_t slot = index[lane], row = slots->consumed[slot] - 1;
        row = slot * table->capacity + (row > 0 ? row : 0);
        memcpy(rows, table->rows + row * table->bytes, (size_t)table->bytes);
    }
}
