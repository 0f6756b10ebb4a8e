/* tokenizer_merges.c: byte-pair encoding. Of all neighbours that can merge, the pair with the
 * lowest rank (the leftmost of equal ones) becomes one symbol, until none is left.
 *
 * A short word is scanned for the best pair repeatedly, which is fastest. A long word uses a linked
 * list and a heap, so n symbols take n log n steps. Both give the same symbols. */
#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "tokenizer/tokenizer_parts.h"

/* ---- tokens by text and by id ---------------------------------------------------------------- */

/* One block holds all texts. An open-addressing table, at most half full, maps the hash of a text
 * to its id. The slot contains the upper half of the hash, so texts are compared only if they are
 * almost certainly equal. */

hy_status hy_vocab_init(hy_vocab *vocab, int32_t ids, size_t tokens, size_t bytes) {
    uint32_t slots = 16;
    while (slots < tokens * 2) slots *= 2;
    size_t places = ids > 0 ? (size_t)ids : 1;
    *vocab = (hy_vocab){.ids = ids, .mask = slots - 1};
    vocab->bytes = malloc(bytes + tokens + 1);
    vocab->places = malloc(places * sizeof *vocab->places);
    vocab->slots = calloc(slots, sizeof *vocab->slots);
    if (!vocab->bytes || !vocab->places || !vocab->slots) {
        hy_vocab_fini(vocab);
        return hy_fail(HY_ERR_MEMORY, "not enough memory for a vocabulary of %zu tokens", tokens);
    }
    memset(vocab->places, 0xFF, places * sizeof *vocab->places);
    return HY_OK;
}

void hy_vocab_fini(hy_vocab *vocab) {
    free(vocab->bytes);
    free(vocab->places);
    free(vocab->slots);
    *vocab = (hy_vocab){0};
}

/* The slot of a text, or the empty slot where it belongs. */
static uint64_t *slot_of(const hy_vocab *vocab, const char *text, size_t size, uint64_t hash) {
    for (uint32_t i = (uint32_t)hash & vocab->mask;; i = (i + 1) & vocab->mask) {
        uint64_t slot = vocab->slots[i];
        if (!slot) return &vocab->slots[i];
        if (slot >> 32 != hash >> 32) continue;
        const hy_token_place *place = &vocab->places[(uint32_t)slot - 1];
        bool is_it = place->size == size && memcmp(vocab->bytes + place->start, text, size) == 0;
        if (is_it) return &vocab->slots[i];
    }
}

bool hy_vocab_add(hy_vocab *vocab, const char *text, size_t size, int32_t id) {
    uint64_t hash = hy_vocab_hash(text, size), *slot = slot_of(vocab, text, size, hash);
    if (*slot || vocab->places[id].start != UINT32_MAX) return false;
    *slot = (hash >> 32) << 32 | (uint32_t)(id + 1);
    memcpy(vocab->bytes + vocab->used, text, size);
    vocab->bytes[vocab->used + size] = '\0';
    vocab->places[id] = (hy_token_place){(uint32_t)vocab->used, (uint32_t)size};
    vocab->used += size + 1;
    return true;
}

int32_t hy_vocab_find(const hy_vocab *vocab, const char *text, size_t size) {
    return (int32_t)(uint32_t)*slot_of(vocab, text, size, hy_vocab_hash(text, size)) - 1;
}

/* ---- merges ---------------------------------------------------------------------------------- */

#define SHORT_WORD 48 /* symbols; near this length both methods take the same time */

hy_status hy_merges_init(hy_merges *merges, size_t count) {
    uint32_t slots = 16;
    while (slots < count + count / 2) slots *= 2;
    merges->mask = slots - 1;
    merges->slots = malloc(slots * sizeof *merges->slots);
    if (!merges->slots) return hy_fail(HY_ERR_MEMORY, "not enough memory for %zu merges", count);
    memset(merges->slots, 0xFF, slots * sizeof *merges->slots);
    return HY_OK;
}

void hy_merges_fini(hy_merges *merges) {
    free(merges->slots);
    *merges = (hy_merges){0};
}

void hy_merges_put(hy_merges *merges, int32_t left, int32_t right, uint32_t rank, int32_t id) {
    uint32_t i = hy_merges_slot(merges, left, right);
    while (merges->slots[i].left >= 0) {
        if (merges->slots[i].left == left && merges->slots[i].right == right) break;
        i = (i + 1) & merges->mask;
    }
    merges->slots[i] = (hy_merge){.left = left, .right = right, .rank = rank, .id = id};
}

/* ---- short words ----------------------------------------------------------------------------- */

typedef struct neighbours {
    uint32_t rank; /* HY_NO_RANK: they do not merge */
    int32_t id;
} neighbours;

static neighbours look_up(const hy_merges *merges, int32_t left, int32_t right) {
    const hy_merge *m = hy_merges_find(merges, left, right);
    return m ? (neighbours){m->rank, m->id} : (neighbours){HY_NO_RANK, -1};
}

static size_t merge_short(const hy_merges *merges, int32_t *ids, size_t count) {
    neighbours pair[SHORT_WORD];
    for (size_t i = 0; i + 1 < count; i++) pair[i] = look_up(merges, ids[i], ids[i + 1]);
    for (;;) {
        size_t best = 0;
        uint32_t rank = HY_NO_RANK;
        for (size_t i = 0; i + 1 < count; i++) {
            if (pair[i].rank >= rank) continue;
            rank = pair[i].rank;
            best = i;
        }
        if (rank == HY_NO_RANK) return count;
        ids[best] = pair[best].id;
        count--;
        for (size_t i = best + 1; i < count; i++) ids[i] = ids[i + 1];
        for (size_t i = best; i + 1 < count; i++) pair[i] = pair[i + 1];
        if (best > 0) pair[best - 1] = look_up(merges, ids[best - 1], ids[best]);
        if (best + 1 < count) pair[best] = look_up(merges, ids[best], ids[best + 1]);
    }
}

/* ---- long words ------------------------------------------------------------------------------ */

#define NO_SYMBOL UINT32_MAX

typedef struct symbol {
    int32_t id;
    uint32_t previous, next; /* NO_SYMBOL at the ends */
    neighbours pair;         /* this symbol and the next */
} symbol;

/* Candidates as rank << 32 | position: the smallest is merged next. An outdated candidate stays in
 * the heap until it is taken; then its rank differs from that of the symbol's current pair. */
typedef struct heap {
    uint64_t *items;
    size_t count;
} heap;

static uint64_t heap_take(heap *h) {
    uint64_t least = h->items[0], item = h->items[--h->count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < h->count; i = child) {
        if (child + 1 < h->count && h->items[child + 1] < h->items[child]) child++;
        if (item <= h->items[child]) break;
        h->items[i] = h->items[child];
    }
    h->items[i] = item;
    return least;
}

/* Looks up the pair of a symbol and the next, and adds it to the heap. */
static void pair_up(const hy_merges *merges, symbol *symbols, uint32_t at, heap *h) {
    symbol *s = &symbols[at];
    s->pair = s->next == NO_SYMBOL ? (neighbours){HY_NO_RANK, -1}
                                   : look_up(merges, s->id, symbols[s->next].id);
    if (s->pair.rank == HY_NO_RANK) return;
    uint64_t item = (uint64_t)s->pair.rank << 32 | at;
    size_t i = h->count++;
    for (size_t parent; i > 0 && item < h->items[parent = (i - 1) / 2]; i = parent) {
        h->items[i] = h->items[parent];
    }
    h->items[i] = item;
}

static hy_status merge_long(const hy_merges *merges, int32_t *ids, size_t *count,
                            hy_merge_memory *memory) {
    /* Each merge adds at most two candidates, and there are fewer merges than symbols. So room for
     * three times as many candidates as symbols is enough. */
    HY_TRY(hy_array_reserve(&memory->data, &memory->room, *count,
                            sizeof(symbol) + 3 * sizeof(uint64_t), "a long word"));
    heap h = {.items = memory->data};
    symbol *symbols = (symbol *)(h.items + 3 * memory->room);
    uint32_t last = (uint32_t)(*count - 1);
    for (uint32_t i = 0; i <= last; i++) {
        symbols[i] = (symbol){
            .id = ids[i], .previous = i ? i - 1 : NO_SYMBOL, .next = i < last ? i + 1 : NO_SYMBOL};
    }
    for (uint32_t i = 0; i <= last; i++) pair_up(merges, symbols, i, &h);
    while (h.count) {
        uint64_t item = heap_take(&h);
        uint32_t at = (uint32_t)item;
        symbol *s = &symbols[at];
        if (s->pair.rank != item >> 32) continue;
        symbol *gone = &symbols[s->next];
        s->id = s->pair.id;
        s->next = gone->next;
        gone->id = -1;
        gone->pair.rank = HY_NO_RANK;
        if (s->next != NO_SYMBOL) symbols[s->next].previous = at;
        if (s->previous != NO_SYMBOL) pair_up(merges, symbols, s->previous, &h);
        pair_up(merges, symbols, at, &h);
    }
    size_t kept = 0;
    for (uint32_t i = 0; i != NO_SYMBOL; i = symbols[i].next) ids[kept++] = symbols[i].id;
    *count = kept;
    return HY_OK;
}

hy_status hy_merges_apply(const hy_merges *merges, int32_t *ids, size_t *count,
                          hy_merge_memory *memory) {
    if (*count > SHORT_WORD) return merge_long(merges, ids, count, memory);
    if (*count > 1) *count = merge_short(merges, ids, *count);
    return HY_OK;
}
