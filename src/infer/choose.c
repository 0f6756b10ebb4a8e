/* choose.c: chooses the next token. See choose.h.
 *
 * Candidates are sorted by logit only as far as an option needs: top_k uses a heap of k, and top_p
 * first drops candidates that are too unlikely to matter even together. */
#include "infer/choose.h"

#include <math.h>
#include <stdbool.h>

#include "base/rng.h"

static bool is_likelier(const float *logits, int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
}

/* ---- sorting --------------------------------------------------------------------------------- */

/* The root of the heap is the least likely candidate in it. */
static void sink(const float *logits, int32_t *heap, int32_t count, int32_t at) {
    for (;;) {
        int32_t least = at;
        for (int32_t child = 2 * at + 1; child <= 2 * at + 2 && child < count; child++) {
            if (is_likelier(logits, heap[least], heap[child])) least = child;
        }
        if (least == at) return;
        int32_t swap = heap[at];
        heap[at] = heap[least];
        heap[least] = swap;
        at = least;
    }
}

static void make_heap(const float *logits, int32_t *heap, int32_t count) {
    for (int32_t at = count / 2 - 1; at >= 0; at--) sink(logits, heap, count, at);
}

/* ---- candidates ------------------------------------------------------------------------------ */

static int32_t keep_likeliest(const float *logits, int32_t *ids, int32_t count, int32_t most) {
    if (most <= 0 || most >= count) return count;
    make_heap(logits, ids, most);
    for (int32_t i = most; i < count; i++) {
        if (!is_likelier(logits, ids[i], ids[0])) continue;
        ids[0] = ids[i];
        sink(logits, ids, most, 0);
    }
    return most;
}

static double weight(const hy_choice *c, const float *logits, int32_t id, float top) {
    return exp(((double)logits[id] - (double)top) / c->temperature);
}

/* The candidates dropped before sorting together have less weight than top_p excludes. */
static int32_t keep_share(const hy_choice *c, const float *logits, int32_t *ids, int32_t count,
                          float top) {
    double sum = 0, held = 0;
    int32_t kept = 0;
    if (c->top_p <= 0 || c->top_p >= 1) return count;
    for (int32_t i = 0; i < count; i++) sum += weight(c, logits, ids[i], top);
    double least = (1 - c->top_p) * sum / count;
    for (int32_t i = 0; i < count; i++) {
        if (weight(c, logits, ids[i], top) >= least) ids[kept++] = ids[i];
    }
    /* Sort: the likeliest first. */
    make_heap(logits, ids, kept);
    for (int32_t left = kept - 1; left > 0; left--) {
        int32_t swap = ids[0];
        ids[0] = ids[left];
        ids[left] = swap;
        sink(logits, ids, left, 0);
    }
    for (int32_t i = 0; i < kept; i++) {
        held += weight(c, logits, ids[i], top);
        if (held >= c->top_p * sum) return i + 1;
    }
    return kept;
}

int32_t hy_choose_token(const hy_choice *c, const float *logits, int32_t vocab, uint64_t position,
                        int32_t *order) {
    int32_t best = 0;
    for (int32_t i = 1; i < vocab; i++) {
        if (is_likelier(logits, i, best)) best = i;
    }
    if (c->temperature <= 0) return best;
    for (int32_t i = 0; i < vocab; i++) order[i] = i;
    int32_t count = keep_likeliest(logits, order, vocab, c->top_k);
    count = keep_share(c, logits, order, count, logits[best]);
    double sum = 0;
    for (int32_t i = 0; i < count; i++) sum += weight(c, logits, order[i], logits[best]);
    double point = sum * hy_rng_uniform(c->seed, HY_RNG_SAMPLE, position);
    for (int32_t i = 0; i < count; i++) {
        point -= weight(c, logits, order[i], logits[best]);
        if (point < 0) return order[i];
    }
    return best; /* the sums were rounded differently, or a logit is NaN */
}
