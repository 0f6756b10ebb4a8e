/* mixture.c: splits a list of paths, and computes the order in which parts take turns. See
 * mixture.h.
 *
 * The cycle: at each turn every part gains its share; the part with the largest credit takes the
 * turn and pays for it. So the shares are exact to within one turn over any interval. */
#include "data/mixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/number.h"

#define LARGEST_WEIGHT 1e6

/* ---- the list -------------------------------------------------------------------------------- */

void hy_mixture_free(hy_mixture *m) {
    for (size_t i = 0; i < m->count; i++) free(m->parts[i].path);
    *m = (hy_mixture){0};
}

static hy_status add_part(hy_mixture *m, const char *text, size_t size) {
    HY_FAIL_IF(m->count == HY_MOST_PARTS, HY_ERR_INPUT, "data names more than %d paths",
               HY_MOST_PARTS);
    char *path = strndup(text, size);
    if (!path) return hy_fail(HY_ERR_MEMORY, "not enough memory for a path");
    hy_mixture_part *part = &m->parts[m->count++];
    *part = (hy_mixture_part){.path = path, .weight = 1};
    /* ":2.5" at the end of a path is its weight. */
    char *colon = strrchr(path, ':');
    double value;
    if (colon && !hy_path_exists(path) && hy_number_parse(colon + 1, strlen(colon + 1), &value)) {
        HY_FAIL_IF(!(value > 0 && value <= LARGEST_WEIGHT), HY_ERR_INPUT,
                   "the weight of %s is %s; expected above 0 and at most 1000000", path, colon + 1);
        *colon = '\0';
        part->weight = value;
        m->has_weights = true;
    }
    return path[0] ? HY_OK : hy_fail(HY_ERR_INPUT, "data contains an empty path; check its commas");
}

static hy_status split(const char *text, hy_mixture *m) {
    if (hy_path_exists(text) || !strchr(text, ',')) return add_part(m, text, strlen(text));
    for (;;) {
        size_t size = strcspn(text, ",");
        HY_TRY(add_part(m, text, size));
        if (text[size] == '\0') return HY_OK;
        text += size + 1;
    }
}

hy_status hy_mixture_parse(const char *text, hy_mixture *out) {
    *out = (hy_mixture){0};
    hy_status status = split(text, out);
    if (status != HY_OK) hy_mixture_free(out);
    return status;
}

/* ---- taking turns ---------------------------------------------------------------------------- */

void hy_cycle_make(const double *weights, size_t count, hy_cycle *out) {
    double gained[HY_MOST_PARTS] = {0}, sum = 0;
    bool are_whole = true;
    for (size_t i = 0; i < count; i++) {
        sum += weights[i];
        are_whole = are_whole && weights[i] == floor(weights[i]);
    }
    *out = (hy_cycle){.length = HY_MOST_TURNS_OF_CYCLE};
    if (are_whole && sum <= HY_MOST_TURNS_OF_CYCLE) out->length = (uint32_t)sum;
    for (uint32_t turn = 0; turn < out->length; turn++) {
        size_t best = 0;
        for (size_t i = 0; i < count; i++) {
            gained[i] += weights[i] / sum;
            if (gained[i] > gained[best] + 1e-9) best = i;
        }
        gained[best] -= 1;
        out->part[turn] = (uint8_t)best;
        out->nth[turn] = (uint16_t)out->per_cycle[best]++;
    }
}

void hy_cycle_find(const hy_cycle *cycle, uint64_t p, size_t *part, uint64_t *n) {
    uint64_t turn = p % cycle->length, round = p / cycle->length;
    *part = cycle->part[turn];
    *n = round * cycle->per_cycle[*part] + cycle->nth[turn];
}
