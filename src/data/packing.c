/* packing.c: first-fit packing, and filling of packed sequences. See packing.h.
 *
 * Open sequences are in a list in the order they were opened. A full one is closed at once; the
 * oldest is closed when a new one needs its slot; the rest are closed at the end, oldest first. The
 * same examples, order and length give the same sequences on every machine. */
#include "data/packing.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "base/rng.h"

/* A sequence that is being filled. */
typedef struct open_sequence {
    uint64_t *members;
    size_t count, capacity;
    int32_t room;
} open_sequence;

typedef struct packer {
    hy_packing *out;
    const hy_packing_options *options;
    open_sequence open[HY_OPEN_SEQUENCES];
    size_t count; /* open sequences: the first `count`, oldest first */
} packer;

/* Writes sequence `at` and removes it from the list; its memory moves to the end for the next
 * one. */
static hy_status close_sequence(packer *p, size_t at) {
    open_sequence s = p->open[at];
    hy_packing *out = p->out;
    HY_TRY(hy_spool_put(&out->members, s.members, s.count * sizeof *s.members));
    uint64_t end = out->members.size / sizeof *s.members;
    HY_TRY(hy_spool_put(&out->ends, &end, sizeof end));
    out->sequences++;
    memmove(&p->open[at], &p->open[at + 1], (p->count - at - 1) * sizeof s);
    p->count--;
    s.count = 0;
    p->open[p->count] = s;
    return HY_OK;
}

uint64_t hy_packing_unit(hy_pairs pairs) { return pairs ? 2 : 1; }

/* Adds the positions and the targets of an example. */
static hy_status measure(const packer *p, uint64_t example, int32_t *places, uint64_t *targets) {
    uint32_t count;
    const int32_t *tokens = hy_examples_get(p->out->examples, example, &count);
    int32_t room = p->options->seq - *places;
    uint32_t least = p->options->prompts ? 1 : 2;
    HY_FAIL_IF(count < least || count - 1 > (uint32_t)room, HY_ERR_IO,
               "the temporary file of examples is damaged: example %llu has %u tokens",
               (unsigned long long)example, (unsigned)count);
    *places += (int32_t)count - 1;
    for (uint32_t i = 1; i < count; i++) *targets += tokens[i] < 0;
    return HY_OK;
}

/* Places an example, or the pair that begins with it. */
static hy_status place(packer *p, uint64_t first) {
    const uint64_t each = hy_packing_unit(p->options->pairs);
    int32_t places = 0;
    uint64_t targets = 0;
    for (uint64_t i = 0; i < each; i++) HY_TRY(measure(p, first + i, &places, &targets));
    size_t at = p->options->packs ? 0 : p->count;
    /* the first sequence with enough room */
    while (at < p->count && p->open[at].room < places) at++;
    if (at == p->count) {
        if (p->count == HY_OPEN_SEQUENCES) HY_TRY(close_sequence(p, 0));
        at = p->count++;
        p->open[at].room = p->options->seq;
    }
    open_sequence *s = &p->open[at];
    HY_TRY(hy_array_reserve(&s->members, &s->capacity, s->count + each, sizeof first,
                            "examples that share a sequence"));
    for (uint64_t i = 0; i < each; i++) s->members[s->count++] = first + i;
    s->room -= places;
    p->out->targets += p->options->pairs || p->options->prompts ? 1 : targets;
    p->out->places += (uint64_t)places;
    bool is_full = s->room == 0 || !p->options->packs;
    return is_full ? close_sequence(p, at) : HY_OK;
}

static hy_status place_all(packer *p) {
    const hy_packing_options *o = p->options;
    const uint64_t each = hy_packing_unit(o->pairs), count = o->count / each;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = o->shuffles ? hy_rng_permute(o->seed, HY_RNG_SHUFFLE, count, i) : i;
        HY_TRY(place(p, o->first + at * each));
    }
    while (p->count > 0) HY_TRY(close_sequence(p, 0));
    return HY_OK;
}

hy_status hy_packing_make(const hy_examples *examples, const hy_packing_options *options,
                          hy_packing *out) {
    *out = (hy_packing){
        .examples = examples, .pairs = options->pairs, .members.fd = -1, .ends.fd = -1};
    packer p = {.out = out, .options = options};
    hy_status status = hy_spool_open(&out->members);
    if (status == HY_OK) status = hy_spool_open(&out->ends);
    if (status == HY_OK) status = place_all(&p);
    if (status == HY_OK) status = hy_spool_map(&out->members);
    if (status == HY_OK) status = hy_spool_map(&out->ends);
    for (size_t i = 0; i < HY_OPEN_SEQUENCES; i++) free(p.open[i].members);
    if (status != HY_OK) hy_packing_close(out);
    return status;
}

void hy_packing_close(hy_packing *p) {
    hy_spool_close(&p->members);
    hy_spool_close(&p->ends);
    *p = (hy_packing){.members.fd = -1, .ends.fd = -1};
}

/* ---- filling --------------------------------------------------------------------------------- */

int64_t hy_packing_fill(const hy_packing *p, uint64_t i, int32_t seq, int32_t *tokens,
                        int32_t *targets, int32_t *doc_starts) {
    const uint64_t *ends = p->ends.data, *members = p->members.data;
    const uint64_t first = i ? ends[i - 1] : 0;
    const bool shows_prompts = p->pairs == HY_PAIRS_WITH_PROMPTS;
    int64_t counted = 0;
    int32_t at = 0;
    for (uint64_t m = first; m < ends[i]; m++) {
        uint32_t count;
        const int32_t *stored = hy_examples_get(p->examples, members[m], &count);
        int32_t begin = at;
        for (uint32_t k = 0; k + 1 < count; k++, at++) {
            bool counts = stored[k + 1] < 0;
            int32_t next = stored[k + 1] & INT32_MAX;
            tokens[at] = stored[k] & INT32_MAX;
            targets[at] = counts ? next : shows_prompts ? -2 - next : -1;
            if (doc_starts) doc_starts[at] = begin;
            counted += counts;
        }
    }
    for (int32_t begin = at; at < seq; at++) {
        tokens[at] = 0;
        targets[at] = -1;
        if (doc_starts) doc_starts[at] = begin;
    }
    return p->pairs ? (int64_t)((ends[i] - first) / hy_packing_unit(p->pairs)) : counted;
}
