/* pool.c: blocks, references to them, and kept chunks. See pool.h.
 *
 * A block's references are the sequences that have it, and one more while it belongs to a kept
 * chunk. A sequence that has one block of a kept chunk has all of them. */
#include "generate/pool.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "base/hash.h"

/* Blocks of one kind. */
typedef struct shelf {
    hy_cache_kind kind;
    int32_t *free; /* (free_count) */
    int32_t free_count;
    int32_t *references; /* (kind.blocks) */
} shelf;

/* A chunk of a prompt whose keys and values are kept. */
typedef struct kept_chunk {
    uint64_t hash;       /* of this chunk and those before it */
    int32_t *tokens;     /* (count) */
    int32_t *blocks;     /* (kinds, width) */
    uint64_t id, before; /* `before`: the id of the chunk before it; 0: it is the first */
    int32_t first;       /* position */
    int32_t count;       /* tokens */
    int32_t width;       /* blocks of a kind */
    int32_t state;       /* the snapshot at its end, or HY_NO_STATE */
    bool is_shared;      /* another prompt began alike */
    uint64_t used;       /* when: the number of the last use */
} kept_chunk;

struct hy_pool {
    shelf shelves[HY_CACHE_KINDS];
    int32_t kinds, chunk; /* chunk: tokens of the longest */
    int32_t longest;      /* the kind in which a sequence has most blocks */
    bool has_states;
    int32_t *snapshots; /* (snapshot_count) free ones: numbers of states */
    int32_t snapshot_count;
    kept_chunk *kept;
    size_t kept_count, kept_room;
    uint64_t uses, last_id;
};

static int32_t blocks_for(int32_t positions) {
    return (positions + HY_DECODE_BLOCK - 1) / HY_DECODE_BLOCK;
}

/* ---- creating -------------------------------------------------------------------------------- */

static hy_status stock(shelf *s, const hy_cache_kind *kind) {
    size_t count = (size_t)kind->blocks;
    HY_FAIL_IF(kind->blocks < kind->most, HY_ERR_INTERNAL,
               "a pool of %d blocks for sequences of up to %d", kind->blocks, kind->most);
    s->kind = *kind;
    s->free = malloc((count + 1) * sizeof *s->free);
    s->references = calloc(count + 1, sizeof *s->references);
    HY_FAIL_IF(!s->free || !s->references, HY_ERR_MEMORY,
               "not enough memory for a list of %zu "
               "blocks",
               count);
    while (s->free_count < kind->blocks) { /* the lowest is taken first */
        s->free[s->free_count] = kind->blocks - 1 - s->free_count;
        s->free_count++;
    }
    return HY_OK;
}

static hy_status stock_snapshots(hy_pool *p, const hy_states *states) {
    p->has_states = states->layers > 0;
    p->snapshots = malloc(((size_t)states->snapshots + 1) * sizeof *p->snapshots);
    HY_FAIL_IF(!p->snapshots, HY_ERR_MEMORY, "not enough memory for a list of snapshots");
    while (p->snapshot_count < states->snapshots) {
        p->snapshot_count++;
        p->snapshots[p->snapshot_count - 1] = states->count - p->snapshot_count;
    }
    return HY_OK;
}

hy_status hy_pool_create(const hy_cache_kind *kinds, int32_t count, const hy_states *states,
                         int32_t chunk, hy_pool **out) {
    hy_pool *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p) return hy_fail(HY_ERR_MEMORY, "not enough memory for a pool of blocks");
    p->kinds = count;
    p->chunk = chunk;
    hy_status status = stock_snapshots(p, states);
    for (int32_t i = 0; i < count && status == HY_OK; i++) {
        status = stock(&p->shelves[i], &kinds[i]);
        if (kinds[i].most > kinds[p->longest].most) p->longest = i;
    }
    if (status == HY_OK)
        *out = p;
    else
        hy_pool_destroy(p);
    return status;
}

static void free_kept(kept_chunk *c) {
    free(c->tokens);
    free(c->blocks);
}

void hy_pool_destroy(hy_pool *p) {
    if (!p) return;
    for (int32_t i = 0; i < p->kinds; i++) {
        free(p->shelves[i].free);
        free(p->shelves[i].references);
    }
    for (size_t i = 0; i < p->kept_count; i++) free_kept(&p->kept[i]);
    free(p->kept);
    free(p->snapshots);
    free(p);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static void drop_reference(shelf *s, int32_t block) {
    if (--s->references[block] == 0) s->free[s->free_count++] = block;
}

/* Does a sequence of so many positions use its blocks of this kind in turn? */
static bool is_in_turn(const shelf *s, int32_t positions) {
    return blocks_for(positions) > s->kind.most;
}

static int32_t count_needed(const shelf *s, int32_t positions) {
    return is_in_turn(s, positions) ? s->kind.most : blocks_for(positions);
}

static bool can_reuse(const hy_pool *p, int32_t positions) {
    for (int32_t i = 0; i < p->kinds; i++) {
        if (is_in_turn(&p->shelves[i], positions)) return false;
    }
    /* chunks are whole blocks, except in a context that is shorter than the first */
    return hy_chunk_length(0, p->chunk) % HY_DECODE_BLOCK == 0;
}

/* ---- kept chunks ----------------------------------------------------------------------------- */

static bool is_unused(const hy_pool *p, const kept_chunk *c) {
    return p->shelves[0].references[c->blocks[0]] == 1;
}

static void give_up(hy_pool *p, size_t at) {
    kept_chunk *c = &p->kept[at];
    for (int32_t i = 0; i < p->kinds * c->width; i++) {
        drop_reference(&p->shelves[i / c->width], c->blocks[i]);
    }
    if (c->state != HY_NO_STATE) p->snapshots[p->snapshot_count++] = c->state;
    free_kept(c);
    *c = p->kept[--p->kept_count];
}

/* Is `a` given up before `b`? The one that was not used for longer; of a prompt, the later one. */
static bool goes_first(const kept_chunk *a, const kept_chunk *b) {
    return a->used != b->used ? a->used < b->used : a->first > b->first;
}

/* False: sequences use all chunks that are kept. */
static bool give_up_oldest(hy_pool *p) {
    size_t oldest = p->kept_count;
    for (size_t i = 0; i < p->kept_count; i++) {
        if (!is_unused(p, &p->kept[i])) continue;
        if (oldest == p->kept_count || goes_first(&p->kept[i], &p->kept[oldest])) oldest = i;
    }
    if (oldest == p->kept_count) return false;
    give_up(p, oldest);
    return true;
}

void hy_pool_forget(hy_pool *p) {
    while (give_up_oldest(p)) {}
}

/* A walk along the chunks of a prompt. */
typedef struct walk {
    int32_t first;         /* position of the next chunk */
    uint64_t hash, before; /* of the chunk before it */
} walk;

static int32_t next_count(const hy_pool *p, const walk *w) {
    return hy_chunk_length(w->first, p->chunk);
}

static uint64_t next_hash(const hy_pool *p, const hy_claim *claim, const walk *w) {
    return hy_hash_bytes(claim->prompt + w->first, (size_t)next_count(p, w) * sizeof(int32_t),
                         w->hash);
}

/* Walks over the next chunk of the prompt if it is kept; NULL: it is not. */
static kept_chunk *walk_on(hy_pool *p, const hy_claim *claim, walk *w) {
    uint64_t hash = next_hash(p, claim, w);
    for (size_t i = 0; i < p->kept_count; i++) {
        kept_chunk *c = &p->kept[i];
        if (c->hash != hash || c->before != w->before || c->first != w->first) continue;
        size_t bytes = (size_t)c->count * sizeof *c->tokens;
        if (memcmp(c->tokens, claim->prompt + w->first, bytes) != 0) continue;
        c->used = p->uses;
        *w = (walk){.first = c->first + c->count, .hash = hash, .before = c->id};
        return c;
    }
    return NULL;
}

static hy_status add_kept(hy_pool *p, const kept_chunk *like, const int32_t *prompt,
                          const hy_blocks *blocks) {
    kept_chunk c = *like;
    size_t bytes = (size_t)c.count * sizeof *c.tokens;
    int32_t width = c.width = c.count / HY_DECODE_BLOCK, begin = c.first / HY_DECODE_BLOCK;
    HY_TRY(hy_array_reserve(&p->kept, &p->kept_room, p->kept_count + 1, sizeof c, "kept chunks"));
    c.tokens = malloc(bytes);
    c.blocks = malloc((size_t)p->kinds * (size_t)width * sizeof *c.blocks);
    if (!c.tokens || !c.blocks) {
        free_kept(&c);
        return hy_fail(HY_ERR_MEMORY, "not enough memory for a list of blocks");
    }
    memcpy(c.tokens, prompt + c.first, bytes);
    for (int32_t i = 0; i < p->kinds * width; i++) {
        c.blocks[i] = blocks->ids[i / width][begin + i % width];
        p->shelves[i / width].references[c.blocks[i]]++;
    }
    p->kept[p->kept_count++] = c;
    return HY_OK;
}

/* The chunk whose snapshot the chunk `next` gets; NULL: there are no snapshots. */
static kept_chunk *find_snapshot(hy_pool *p, const kept_chunk *next) {
    kept_chunk *found = NULL;
    for (size_t i = 0; i < p->kept_count; i++) {
        kept_chunk *c = &p->kept[i];
        if (c->state == HY_NO_STATE) continue;
        if (c->id == next->before && c->first > 0 && !c->is_shared) return c;
        if (!found || goes_first(c, found)) found = c;
    }
    return found;
}

/* Its sequences keep the blocks of the chunk that gives its snapshot away. */
static int32_t take_snapshot(hy_pool *p, const kept_chunk *next) {
    if (p->snapshot_count > 0) return p->snapshots[--p->snapshot_count];
    kept_chunk *from = find_snapshot(p, next);
    if (!from) return HY_NO_STATE;
    int32_t state = from->state;
    from->state = HY_NO_STATE;
    return state;
}

hy_status hy_pool_keep(hy_pool *p, const hy_claim *claim, int32_t first, const hy_blocks *blocks,
                       int32_t *state) {
    walk w = {0};
    kept_chunk *c = NULL, *last = NULL;
    *state = HY_NO_STATE;
    if (!can_reuse(p, claim->positions)) return HY_OK;
    p->uses++;
    while (w.first <= first && (c = walk_on(p, claim, &w)) != NULL) last = c;
    if (w.first < first) return HY_OK; /* one before it was given up */
    if (w.first == first) {
        kept_chunk added = {.hash = next_hash(p, claim, &w),
                            .id = ++p->last_id,
                            .before = w.before,
                            .first = first,
                            .count = next_count(p, &w),
                            .state = HY_NO_STATE,
                            .used = p->uses};
        HY_TRY(add_kept(p, &added, claim->prompt, blocks));
        last = &p->kept[p->kept_count - 1];
    }
    if (!p->has_states || last->state != HY_NO_STATE) return HY_OK;
    *state = last->state = take_snapshot(p, last);
    return HY_OK;
}

/* ---- taking ---------------------------------------------------------------------------------- */

static void free_lists(hy_blocks *blocks) {
    for (int32_t kind = 0; kind < HY_CACHE_KINDS; kind++) free(blocks->ids[kind]);
    *blocks = (hy_blocks){0};
}

void hy_pool_give(hy_pool *p, hy_blocks *blocks) {
    for (int32_t kind = 0; kind < p->kinds; kind++) {
        for (int32_t i = 0; i < blocks->counts[kind]; i++) {
            drop_reference(&p->shelves[kind], blocks->ids[kind][i]);
        }
    }
    free_lists(blocks);
}

/* Empty lists with room for a sequence's blocks. */
static hy_status make_lists(const hy_pool *p, int32_t positions, hy_blocks *out) {
    *out = (hy_blocks){0};
    for (int32_t kind = 0; kind < p->kinds; kind++) {
        size_t count = (size_t)count_needed(&p->shelves[kind], positions);
        out->ids[kind] = malloc(count * sizeof *out->ids[kind]);
        if (out->ids[kind]) continue;
        free_lists(out);
        return hy_fail(HY_ERR_MEMORY, "not enough memory for a list of %zu blocks", count);
    }
    return HY_OK;
}

static void add_block(hy_pool *p, int32_t kind, int32_t block, hy_blocks *out) {
    p->shelves[kind].references[block]++;
    out->ids[kind][out->counts[kind]++] = block;
}

/* Could so many blocks of a kind be free, if all kept chunks that nobody uses were given up? */
static bool could_free(const hy_pool *p, const shelf *s, int32_t needed) {
    int64_t unused = 0;
    for (size_t i = 0; i < p->kept_count; i++) {
        if (is_unused(p, &p->kept[i])) unused += p->kept[i].width;
    }
    return s->free_count + unused >= needed;
}

/* Adds free blocks until the sequence has all that it needs. False: there are too few. */
static bool add_free(hy_pool *p, int32_t kind, int32_t positions, hy_blocks *out) {
    shelf *s = &p->shelves[kind];
    int32_t needed = count_needed(s, positions);
    if (!could_free(p, s, needed - out->counts[kind])) return false;
    while (s->free_count < needed - out->counts[kind]) {
        if (!give_up_oldest(p)) return false;
    }
    while (out->counts[kind] < needed) add_block(p, kind, s->free[--s->free_count], out);
    return true;
}

static bool add_rest(hy_pool *p, int32_t positions, hy_blocks *out) {
    for (int32_t kind = 0; kind < p->kinds; kind++) {
        if (add_free(p, kind, positions, out)) continue;
        hy_pool_give(p, out);
        return false;
    }
    return true;
}

/* The end of the kept chunks that a prompt begins with; with states, of the last with a snapshot. */
static hy_start find_start(hy_pool *p, const hy_claim *claim) {
    bool reuses = !claim->is_whole && can_reuse(p, claim->positions);
    int32_t most = reuses ? claim->prompt_count - 1 : 0;
    hy_start start = {.state = HY_NO_STATE};
    kept_chunk *c;
    walk w = {0};
    while (w.first + next_count(p, &w) <= most && (c = walk_on(p, claim, &w)) != NULL) {
        c->is_shared = true;
        if (!p->has_states || c->state != HY_NO_STATE) start = (hy_start){w.first, c->state};
    }
    return start;
}

hy_status hy_pool_take(hy_pool *p, const hy_claim *claim, hy_blocks *out, hy_start *start,
                       bool *is_taken) {
    walk w = {0};
    HY_TRY(make_lists(p, claim->positions, out));
    p->uses++;
    *start = find_start(p, claim);
    while (w.first < start->position) {
        const kept_chunk *c = walk_on(p, claim, &w);
        for (int32_t i = 0; i < p->kinds * c->width; i++)
            add_block(p, i / c->width, c->blocks[i], out);
    }
    *is_taken = add_rest(p, claim->positions, out);
    return HY_OK;
}

hy_status hy_pool_share(hy_pool *p, const hy_claim *claim, const hy_blocks *of, hy_blocks *out,
                        bool *is_taken) {
    HY_TRY(make_lists(p, claim->positions, out));
    for (int32_t kind = 0; kind < p->kinds; kind++) {
        int32_t full = claim->prompt_count / HY_DECODE_BLOCK;
        if (is_in_turn(&p->shelves[kind], claim->positions)) full = 0;
        for (int32_t i = 0; i < full; i++) add_block(p, kind, of->ids[kind][i], out);
    }
    *is_taken = add_rest(p, claim->positions, out);
    return HY_OK;
}

bool hy_pool_needs_copy(const hy_blocks *from, const hy_blocks *to, int32_t kind, int32_t i,
                        int32_t prompt_count) {
    return i < blocks_for(prompt_count) && from->ids[kind][i] != to->ids[kind][i];
}

int64_t hy_pool_used(const hy_pool *p) {
    const shelf *s = &p->shelves[p->longest];
    int64_t blocks = s->kind.blocks - s->free_count;
    for (size_t i = 0; i < p->kept_count; i++) {
        if (is_unused(p, &p->kept[i])) blocks -= p->kept[i].width;
    }
    return blocks * HY_DECODE_BLOCK;
}
