/* A row's penalties. A text has few tokens of the vocabulary, and only those change. */
#include "rounds_penalties.h"

#include "parallel.h"

#include <string.h>

enum { BLOCK = 128, SCRATCH_SAID = FC_SCRATCH_ROUNDS, SCRATCH_OVERLAYS };

/* What fc_find_said found: columns [lanes, width], and how many of each lane. */
static struct {
    int32_t *columns, *counts;
    int64_t width;
    int32_t room; /* entries of an overlay */
} said;

static inline int64_t token_of(const fc_rows *rows, int64_t column) {
    return rows->vocabulary ? rows->vocabulary[column] : column;
}

/* The column of a token, or -1. */
static int64_t column_of(const fc_rows *rows, int64_t token) {
    if (!rows->vocabulary)
        return token;
    int64_t low = 0, high = rows->columns;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (rows->vocabulary[middle] < token)
            low = middle + 1;
        else
            high = middle;
    }
    return low < rows->columns && rows->vocabulary[low] == token ? low : -1;
}

static int is_penalised(const fc_slots *slots, int64_t slot) {
    return slots->repetition[slot] != 1 || slots->presence[slot] != 0 || slots->frequency[slot] != 0;
}

/* Whether the text has any of the tokens first ... last-1. */
static int any_said(const int32_t *counts, const uint8_t *seen, int64_t first, int64_t last) {
    int32_t any = 0;
    for (int64_t token = first; token < last; token++)
        any |= counts[token] | seen[token];
    return any != 0;
}

static int32_t find_said(const fc_slots *slots, int64_t slot, const fc_rows *rows,
                         int32_t *columns) {
    const int32_t *counts = slots->counts + slot * slots->vocabulary;
    const uint8_t *seen = slots->prompt_seen + slot * slots->vocabulary;
    int32_t found = 0;
    for (int64_t start = 0; start < rows->columns; start += BLOCK) {
        int64_t end = start + BLOCK < rows->columns ? start + BLOCK : rows->columns;
        if (!rows->vocabulary && !any_said(counts, seen, start, end))
            continue;
        for (int64_t column = start; column < end; column++) {
            int64_t token = token_of(rows, column);
            if (counts[token] > 0 || seen[token])
                columns[found++] = (int32_t)column;
        }
    }
    return found;
}

void fc_find_said(const fc_slots *slots, const int64_t *index, int32_t lanes, const fc_rows *rows) {
    size_t columns = (size_t)lanes * (size_t)rows->columns;
    said.columns = fc_scratch(SCRATCH_SAID, (columns + (size_t)lanes) * sizeof(int32_t));
    said.counts = said.columns + columns;
    said.width = rows->columns;
    for (int32_t lane = 0; lane < lanes; lane++)
        said.counts[lane] = is_penalised(slots, index[lane])
                                ? find_said(slots, index[lane], rows, said.columns + lane * said.width)
                                : 0;
}

void *fc_overlay_room(int32_t lanes, int32_t depth, int32_t count) {
    said.room = 0;
    for (int32_t lane = 0; lane < lanes; lane++)
        said.room = said.counts[lane] > said.room ? said.counts[lane] : said.room;
    said.room += depth;
    size_t entry = sizeof(int32_t) + sizeof(float);
    return fc_scratch(SCRATCH_OVERLAYS, (size_t)count * (size_t)said.room * entry);
}

static void put(fc_overlay *overlay, int32_t column, float value) {
    int32_t at = overlay->count;
    while (at > 0 && overlay->columns[at - 1] > column)
        at--;
    if (at == 0 || overlay->columns[at - 1] != column) {
        size_t after = (size_t)(overlay->count++ - at);
        memmove(overlay->columns + at + 1, overlay->columns + at, after * sizeof(int32_t));
        memmove(overlay->values + at + 1, overlay->values + at, after * sizeof(float));
        at++;
    }
    overlay->columns[at - 1] = column;
    overlay->values[at - 1] = value;
}

typedef struct {
    float repetition, presence, frequency;
} penalties;

static float penalised(float value, int32_t count, int32_t seen, penalties of) {
    if (seen || count > 0)
        value = value > 0 ? value / of.repetition : value * of.repetition;
    value = value - (count > 0 ? of.presence : 0.0f);
    return value - of.frequency * (float)count;
}

fc_overlay fc_overlay_of(const fc_slots *slots, int64_t slot, int32_t lane, const fc_rows *rows,
                         int32_t row, const fc_drafts *drafts, void *room, int64_t at) {
    fc_overlay overlay = {NULL, NULL, 0};
    if (!rows->penalties || !is_penalised(slots, slot))
        return overlay;
    overlay.columns = (int32_t *)room + 2 * at * said.room;
    overlay.values = (float *)(overlay.columns + said.room);
    penalties of = {slots->repetition[slot], slots->presence[slot], slots->frequency[slot]};
    const int32_t *counts = slots->counts + slot * slots->vocabulary;
    const uint8_t *seen = slots->prompt_seen + slot * slots->vocabulary;
    const float *logits = rows->logits + ((int64_t)lane * rows->width + row) * rows->columns;
    overlay.count = said.counts[lane];
    memcpy(overlay.columns, said.columns + lane * said.width,
           (size_t)overlay.count * sizeof(int32_t));
    for (int32_t i = 0; i < overlay.count; i++) {
        int64_t column = overlay.columns[i], token = token_of(rows, column);
        overlay.values[i] = penalised(logits[column], counts[token], seen[token], of);
    }
    const int64_t *before = drafts->tokens + lane * drafts->stride;
    int32_t most = rows->first + row < drafts->depth ? rows->first + row : drafts->depth;
    for (int32_t i = 0; i < most; i++) {
        int64_t token = before[i], column = column_of(rows, token);
        int32_t count = counts[token];
        for (int32_t j = 0; j < most; j++)
            count += before[j] == token;
        if (column >= 0)
            put(&overlay, (int32_t)column, penalised(logits[column], count, seen[token], of));
    }
    return overlay;
}
