/* test_shard.c: shards of trained parameters: their elements and layout, and the stores, files,
 * batches and bytes of a rank. */
#include "data_rig.h"

#include "base/rng.h"
#include "data/loader.h"
#include "formats/safetensors.h"
#include "memory/store.h"
#include "model/model.h"
#include "state/rows.h"

enum { MOST_RANKS = 50, MOST_PARAMS = 240 };

/* ---- models ---------------------------------------------------------------------------------- */

/* Sizes that 256 does not divide; biases and norms smaller than that. */
static hy_shape odd_shape(int32_t layers) {
    return (hy_shape){.layers = layers,
                      .width = 44,
                      .heads = 2,
                      .mlp_width = 100,
                      .vocab = 301,
                      .context = 16,
                      .has_qkv_bias = true,
                      .has_proj_bias = true,
                      .has_tied_head = true,
                      .norm_eps = 1e-5,
                      .init_std = 0.02};
}

typedef enum model_kind { TIED, UNTIED, PARTLY_FROZEN, ADAPTERS, MODEL_KINDS } model_kind;

static hy_params make_params(model_kind kind, int32_t layers) {
    hy_shape shape = odd_shape(layers);
    hy_params params;
    shape.has_tied_head = kind == TIED || kind == ADAPTERS;
    if (kind == ADAPTERS)
        shape.adapter = (hy_adapter){.rank = 5, .scale = 2, .parts = HY_ADAPT_ALL};
    must(hy_shape_complete(&shape));
    must(hy_params_init(&params, &shape));
    if (kind == PARTLY_FROZEN) must(hy_params_select(&params, "last:1,*norm*"));
    if (kind == ADAPTERS) must(hy_params_select(&params, "*.lora_a,*.lora_b"));
    ck_assert_int_le(params.count, MOST_PARAMS);
    return params;
}

static const hy_optimizer_id optimizers[] = {HY_ADAMW, HY_MUON, HY_ADAFACTOR};
enum { OPTIMIZERS = 3 };

/* The shard of one rank, as a run of this optimizer has it. */
static hy_shard make_shard(const hy_params *params, hy_optimizer_id id, int32_t rank, int32_t count,
                           bool is_whole[MOST_PARAMS]) {
    hy_optimizer optimizer = {.kind = hy_optimizer_kind_of(id)};
    hy_shard shard;
    hy_optimizer_mark_whole(&optimizer, params, is_whole);
    must(hy_shard_init(&shard, params, is_whole, rank, count));
    return shard;
}

/* ---- cutting --------------------------------------------------------------------------------- */

/* Slices of a parameter lie one behind the other from its first element to its last, in some order
 * of ranks. */
static void check_param(const hy_shard *s, const hy_param *p, int32_t index, bool is_whole) {
    int64_t covered = 0;
    for (int32_t found = 1; found;) {
        found = 0;
        for (int32_t r = 0; r < s->count; r++) {
            hy_slice own = hy_shard_of(s, index, r);
            if (own.count == 0 || own.begin != covered) continue;
            ck_assert_msg(own.begin % HY_QUANT_BLOCK == 0, "%s is cut at %lld", p->name,
                          (long long)own.begin);
            covered += own.count;
            found = 1;
            break;
        }
    }
    ck_assert_int_eq(covered, p->is_trainable ? p->count : 0);
    int64_t given = 0;
    int32_t owners = 0;
    for (int32_t r = 0; r < s->count; r++) {
        given += hy_shard_of(s, index, r).count;
        owners += hy_shard_of(s, index, r).count > 0;
    }
    ck_assert_int_eq(given, covered); /* nobody else has any of it */
    if (is_whole && p->is_trainable) ck_assert_int_eq(owners, 1);
}

START_TEST(every_trained_element_belongs_to_one_rank) {
    static const int32_t counts[] = {1, 2, 3, 4, 5, 6, 7, MOST_RANKS};
    hy_params params = make_params((model_kind)_i, 3);
    bool is_whole[MOST_PARAMS];
    for (int o = 0; o < OPTIMIZERS; o++) {
        for (int c = 0; c < 8; c++) {
            hy_shard first = make_shard(&params, optimizers[o], 0, counts[c], is_whole);
            hy_shard last = make_shard(&params, optimizers[o], counts[c] - 1, counts[c], is_whole);
            for (int32_t i = 0; i < params.count; i++) {
                check_param(&first, &params.list[i], i, is_whole[i]);
            }
            size_t bytes = (size_t)params.count * (size_t)counts[c] * sizeof(hy_slice);
            ck_assert_mem_eq(first.slices, last.slices, bytes); /* all ranks cut alike */
            hy_shard_fini(&first);
            hy_shard_fini(&last);
        }
    }
    hy_params_fini(&params);
}
END_TEST

START_TEST(muon_and_adafactor_have_matrices_whole_and_adamw_has_none) {
    hy_params params = make_params(UNTIED, 2);
    bool is_whole[OPTIMIZERS][MOST_PARAMS];
    for (int o = 0; o < OPTIMIZERS; o++) {
        hy_shard shard = make_shard(&params, optimizers[o], 0, 2, is_whole[o]);
        hy_shard_fini(&shard);
    }
    for (int32_t i = 0; i < params.count; i++) {
        const hy_param *p = &params.list[i];
        ck_assert(!is_whole[0][i]);
        ck_assert_msg(is_whole[1][i] == p->is_hidden, "%s", p->name);
        if (p->ndim == 2) ck_assert_msg(is_whole[2][i], "%s", p->name);
    }
    hy_params_fini(&params);
}
END_TEST

/* A cut is at most half a quantisation block away from where it should be. */
START_TEST(ranks_have_about_as_much) {
    hy_params params = make_params(UNTIED, 12);
    bool is_whole[MOST_PARAMS];
    hy_optimizer optimizer = {.kind = hy_optimizer_kind_of(HY_ADAMW)};
    hy_shard shard;
    hy_optimizer_mark_whole(&optimizer, &params, is_whole);
    for (int32_t count = 2; count <= 7; count++) {
        must(hy_shard_init(&shard, &params, is_whole, 0, count));
        for (int32_t r = 0; r < count; r++) {
            int64_t own = 0, even = params.elements / count;
            for (int32_t i = 0; i < params.count; i++) own += hy_shard_of(&shard, i, r).count;
            ck_assert_msg(llabs(own - even) <= params.units * HY_QUANT_BLOCK,
                          "rank %d of %d has %lld of %lld", r, count, (long long)own,
                          (long long)params.elements);
        }
        hy_shard_fini(&shard);
    }
    hy_params_fini(&params);
}
END_TEST

/* Whole matrices cannot be divided evenly inside a block; which rank has more of it turns. */
START_TEST(what_is_left_over_of_blocks_goes_round) {
    static const int32_t counts[] = {2, 3, 4, 6}; /* of 12 blocks */
    hy_params params = make_params(UNTIED, 12);
    bool is_whole[MOST_PARAMS];
    for (int c = 0; c < 4; c++) {
        int64_t own[6] = {0};
        hy_shard shard = make_shard(&params, HY_MUON, 0, counts[c], is_whole);
        for (int32_t i = 0; i < params.count; i++) {
            bool is_block = params.list[i].unit > 0 && params.list[i].unit < params.units - 1;
            for (int32_t r = 0; r < counts[c]; r++) {
                own[r] += is_block ? hy_shard_of(&shard, i, r).count : 0;
            }
        }
        for (int32_t r = 1; r < counts[c]; r++) ck_assert_int_eq(own[r], own[0]);
        hy_shard_fini(&shard);
    }
    hy_params_fini(&params);
}
END_TEST

/* ---- layouts --------------------------------------------------------------------------------- */

/* A shard's unit is the span of the whole one, byte for byte: each tensor lies there where its
 * elements do. */
static void check_unit(const hy_shard *s, const hy_params *params, const hy_layout *whole,
                       const hy_layout *part, int32_t unit) {
    uint64_t begin, bytes;
    hy_shard_span(s, params, whole, unit, s->rank, &begin, &bytes);
    ck_assert_uint_eq(part->unit_bytes[unit], bytes);
    ck_assert_uint_le(begin + bytes, whole->unit_bytes[unit]);
    for (int32_t i = 0; i < params->count; i++) {
        hy_slice own = hy_shard_own(s, params, i);
        int32_t item = part->item_of[i], all = whole->item_of ? whole->item_of[i] : i;
        if (params->list[i].unit != unit) continue;
        ck_assert_int_eq(item >= 0, own.count > 0);
        if (item < 0) continue;
        const hy_layout_item *mine = &part->items[item], *theirs = &whole->items[all];
        ck_assert_int_eq(mine->count, own.count);
        ck_assert_int_eq(mine->begin, own.begin);
        ck_assert_int_eq(mine->dtype, theirs->dtype);
        uint64_t at = theirs->offset + hy_dtype_bytes(theirs->dtype, own.begin);
        ck_assert_uint_eq(mine->offset, at - begin);
    }
}

/* Spans of all ranks: none over another, all of them together the unit. */
static void check_spans(const hy_shard *s, const hy_params *params, const hy_layout *whole,
                        int32_t unit) {
    uint64_t begin[MOST_RANKS], bytes[MOST_RANKS], sum = 0;
    for (int32_t r = 0; r < s->count; r++) {
        hy_shard_span(s, params, whole, unit, r, &begin[r], &bytes[r]);
        ck_assert_uint_eq((begin[r] | bytes[r]) % HY_ALIGNMENT, 0);
        sum += bytes[r];
        for (int32_t k = 0; k < r; k++) {
            bool is_apart = begin[k] + bytes[k] <= begin[r] || begin[r] + bytes[r] <= begin[k];
            ck_assert(is_apart || bytes[r] == 0 || bytes[k] == 0);
        }
    }
    ck_assert_uint_eq(sum, whole->unit_bytes[unit]);
}

START_TEST(a_shard_is_one_piece_of_each_whole_unit) {
    static const hy_dtype types[] = {HY_F32, HY_BF16, HY_F16};
    static const int32_t counts[] = {1, 2, 3, 5, 7, MOST_RANKS};
    hy_params params = make_params((model_kind)(_i / OPTIMIZERS), 2);
    bool is_whole[MOST_PARAMS];
    for (int k = 0; k < 3 * 6; k++) {
        int32_t count = counts[k % 6];
        hy_layout whole, part;
        uint64_t sum = 0;
        must(hy_params_layout(&params, HY_SET_TRAINABLE, types[k / 6], &whole));
        for (int32_t rank = 0; rank < count; rank++) {
            uint64_t most = 0;
            hy_shard shard =
                make_shard(&params, optimizers[_i % OPTIMIZERS], rank, count, is_whole);
            must(hy_shard_layout(&shard, &params, &whole, &part));
            for (int32_t u = 0; u < params.units; u++) {
                check_unit(&shard, &params, &whole, &part, u);
                if (rank == 0) check_spans(&shard, &params, &whole, u);
                if (part.unit_bytes[u] > most) most = part.unit_bytes[u];
            }
            ck_assert_uint_eq(hy_shard_largest(&shard, &params, &whole), most);
            sum += part.bytes;
            hy_layout_fini(&part);
            hy_shard_fini(&shard);
        }
        ck_assert_uint_eq(sum, whole.bytes);
        hy_layout_fini(&whole);
    }
    hy_params_fini(&params);
}
END_TEST

/* Codes and scales are never torn apart: parts have as many of both as the whole. */
START_TEST(parts_of_codes_have_their_scales) {
    hy_params params = make_params(UNTIED, 2);
    bool is_whole[MOST_PARAMS];
    for (int32_t count = 1; count <= 7; count++) {
        int64_t codes = 0, scales = 0, all_codes = 0, all_scales = 0;
        hy_layout whole, part;
        must(hy_params_layout(&params, HY_SET_TRAINABLE, HY_U8, &whole));
        for (int32_t i = 0; i < whole.item_count; i++) {
            all_codes += whole.items[i].count;
            all_scales += hy_layout_scales(&whole.items[i], whole.items[i].count);
        }
        for (int32_t rank = 0; rank < count; rank++) {
            hy_shard shard = make_shard(&params, HY_ADAMW, rank, count, is_whole);
            must(hy_shard_layout(&shard, &params, &whole, &part));
            for (int32_t i = 0; i < part.item_count; i++) {
                codes += part.items[i].count;
                scales += hy_layout_scales(&part.items[i], part.items[i].count);
            }
            hy_layout_fini(&part);
            hy_shard_fini(&shard);
        }
        ck_assert_int_eq(codes, all_codes);
        ck_assert_int_eq(scales, all_scales);
        ck_assert_int_gt(scales, 0);
        hy_layout_fini(&whole);
    }
    hy_params_fini(&params);
}
END_TEST

/* Rows and columns of a factored second moment go with their matrix. */
START_TEST(arrays_that_are_not_like_their_parameter_go_with_it_whole) {
    hy_params params = make_params(UNTIED, 2);
    hy_optimizer optimizer = {.kind = hy_optimizer_kind_of(HY_ADAFACTOR)};
    bool is_whole[MOST_PARAMS];
    hy_layout whole;
    uint64_t sum = 0;
    must(hy_optimizer_layout(&optimizer, &params, 0, HY_F32, &whole));
    for (int32_t rank = 0; rank < 3; rank++) {
        hy_layout part;
        hy_shard shard = make_shard(&params, HY_ADAFACTOR, rank, 3, is_whole);
        must(hy_shard_layout(&shard, &params, &whole, &part));
        for (int32_t i = 0; i < params.count; i++) {
            hy_slice own = hy_shard_own(&shard, &params, i);
            int32_t all = whole.item_of ? whole.item_of[i] : i;
            if (!is_whole[i] || all < 0 || own.count == 0) continue;
            ck_assert_int_ge(part.item_of[i], 0);
            ck_assert_int_eq(part.items[part.item_of[i]].count, whole.items[all].count);
        }
        sum += part.bytes;
        hy_layout_fini(&part);
        hy_shard_fini(&shard);
    }
    ck_assert_uint_eq(sum, whole.bytes);
    hy_layout_fini(&whole);
    hy_params_fini(&params);
}
END_TEST

/* ---- stores ---------------------------------------------------------------------------------- */

typedef struct part_rig {
    hy_backend *backend;
    hy_stream *stream;
    hy_ledger ledger;
    hy_arena arena;
    hy_store store;
} part_rig;

static void open_part(part_rig *r, const hy_layout *layout) {
    *r = (part_rig){0};
    must(hy_cpu_backend_create(&(hy_cpu_options){.threads = 1}, &r->backend));
    must(r->backend->stream_create(r->backend, "test", &r->stream));
    must(hy_arena_init(&r->arena, r->backend, &r->ledger, HY_DEVICE, layout->bytes, "a test"));
    must(hy_store_init(&r->store, &r->arena, HY_WEIGHTS, layout));
    memset(r->arena.data, 0xee, layout->bytes);
}

static void close_part(part_rig *r) {
    hy_store_fini(&r->store);
    hy_arena_fini(&r->arena);
    r->backend->stream_destroy(r->stream);
    r->backend->destroy(r->backend);
}

static uint16_t number_of(int32_t param, int64_t element) {
    return (uint16_t)(param * 7919 + element * 31 + 1);
}

/* A parameter comes in pieces that know nothing of ranks; what lies between tensors stays as it
 * was. */
static void put_all(part_rig *r, const hy_params *params, uint64_t seed) {
    uint16_t piece[700];
    for (int32_t i = 0; i < params->count; i++) {
        int32_t item = hy_store_item_of(&r->store, i);
        int64_t count = params->list[i].count;
        for (int64_t at = 0, some; item >= 0 && at < count; at += some) {
            some = 1 + (int64_t)(hy_rng_u64(seed, (uint64_t)i, (uint64_t)at) % 700);
            if (some > count - at) some = count - at;
            for (int64_t k = 0; k < some; k++) piece[k] = number_of(i, at + k);
            must(hy_store_put(&r->store, r->stream, item, at, some, piece));
        }
    }
}

START_TEST(a_store_takes_its_part_of_a_parameter) {
    hy_params params = make_params(TIED, 2);
    bool is_whole[MOST_PARAMS];
    for (int32_t rank = 0; rank < 5; rank++) {
        hy_layout whole, part;
        part_rig r;
        hy_shard shard = make_shard(&params, HY_ADAMW, rank, 5, is_whole);
        must(hy_params_layout(&params, HY_SET_TRAINABLE, HY_BF16, &whole));
        must(hy_shard_layout(&shard, &params, &whole, &part));
        open_part(&r, &part);
        put_all(&r, &params, (uint64_t)rank);
        for (int32_t i = 0; i < params.count; i++) {
            hy_slice own = hy_shard_own(&shard, &params, i);
            if (own.count == 0) continue;
            const hy_layout_item *item = &part.items[part.item_of[i]];
            const char *at = r.arena.data + part.unit_offset[item->unit] + item->offset;
            const uint16_t *numbers = (const uint16_t *)(const void *)at;
            for (int64_t k = 0; k < own.count; k++) {
                ck_assert_uint_eq(numbers[k], number_of(i, own.begin + k));
            }
            uint64_t used = 2 * (uint64_t)own.count;
            for (uint64_t k = used; k < hy_align(used); k++) ck_assert_int_eq((uint8_t)at[k], 0xee);
        }
        close_part(&r);
        hy_layout_fini(&part);
        hy_layout_fini(&whole);
        hy_shard_fini(&shard);
    }
    hy_params_fini(&params);
}
END_TEST

/* ---- bytes of what nobody trains ------------------------------------------------------------- */

/* Frozen matrices as codes and as they are; widths that codes can have. */
static hy_params make_frozen(hy_dtype codes) {
    hy_shape shape = odd_shape(3);
    hy_params params;
    shape.width = 64;
    shape.mlp_width = 128;
    shape.adapter = (hy_adapter){.rank = 5, .scale = 2, .parts = HY_ADAPT_ALL};
    must(hy_shape_complete(&shape));
    must(hy_params_init(&params, &shape));
    must(hy_params_select(&params, "*.lora_a,*.lora_b"));
    params.frozen_codes = codes;
    return params;
}

static hy_layout cut_of(const hy_layout *whole, int32_t rank, int32_t count) {
    hy_layout layout, copy;
    must(hy_layout_copy(&layout, whole));
    must(hy_layout_cut(&layout, rank, count));
    must(hy_layout_copy(&copy, &layout)); /* what stores have */
    hy_layout_fini(&layout);
    return copy;
}

/* One behind the other they are the unit, on round addresses; none has more than a line more than
 * another. */
static void check_cuts(const hy_layout *whole, int32_t unit, int32_t count) {
    uint64_t at = 0, least = UINT64_MAX, most = 0;
    for (int32_t rank = 0; rank < count; rank++) {
        hy_layout part = cut_of(whole, rank, count);
        uint64_t bytes = part.unit_bytes[unit];
        ck_assert_uint_eq(part.part_begin[unit], at);
        ck_assert_uint_eq(at % HY_ALIGNMENT, 0);
        ck_assert_uint_eq(hy_layout_unit_at(&part, unit), whole->unit_offset[unit] + at);
        ck_assert_uint_le(part.unit_offset[unit] + bytes, part.bytes);
        at += bytes;
        if (bytes < least) least = bytes;
        if (bytes > most) most = bytes;
        hy_layout_fini(&part);
    }
    ck_assert_uint_eq(at, whole->unit_bytes[unit]);
    ck_assert_uint_le(most - least, HY_ALIGNMENT);
}

static const hy_dtype stored_as[] = {HY_F32, HY_NF4, HY_I8, HY_E4M3}; /* F32: as they are */
enum { STORED_AS = 4 };

START_TEST(cuts_of_bytes_are_the_whole_one_behind_the_other) {
    hy_params params = make_frozen(stored_as[_i]);
    hy_layout whole;
    must(hy_params_layout(&params, HY_SET_FROZEN, HY_BF16, &whole));
    for (int32_t count = 1; count <= MOST_RANKS; count += count < 8 ? 1 : 7) {
        for (int32_t unit = 0; unit < whole.unit_count; unit++) check_cuts(&whole, unit, count);
    }
    hy_layout_fini(&whole);
    hy_params_fini(&params);
}
END_TEST

/* All of the class comes in pieces that know nothing of ranks, some of them over the borders of
 * parts and units. */
static void write_all(part_rig *r, const char *bytes, uint64_t size) {
    for (uint64_t at = 0, some; at < size; at += some) {
        some = 1 + hy_rng_u64(3, at, 0) % 3000;
        if (some > size - at) some = size - at;
        must(hy_store_write(&r->store, r->stream, at, bytes + at, some));
    }
}

START_TEST(a_store_keeps_and_gives_its_part_of_the_bytes) {
    enum { RANKS = 5 };
    hy_params params = make_frozen(stored_as[_i]);
    hy_layout whole;
    must(hy_params_layout(&params, HY_SET_FROZEN, HY_BF16, &whole));
    char *bytes = malloc(whole.bytes), *got = malloc(whole.bytes);
    ck_assert(bytes && got);
    for (uint64_t i = 0; i < whole.bytes; i++) bytes[i] = (char)hy_rng_u64(1, i, 0);
    for (int32_t rank = 0; rank < RANKS; rank++) {
        hy_layout part = cut_of(&whole, rank, RANKS);
        part_rig r;
        open_part(&r, &part);
        write_all(&r, bytes, whole.bytes);
        for (int32_t u = 0; u < whole.unit_count; u++) {
            uint64_t at = hy_layout_unit_at(&part, u), size = part.unit_bytes[u];
            uint64_t from = whole.unit_offset[u], all = whole.unit_bytes[u];
            must(hy_store_read(&r.store, r.stream, at, got, size));
            ck_assert_mem_eq(got, bytes + at, size);
            ck_assert_mem_eq(r.arena.data + part.unit_offset[u], bytes + at, size);
            ck_assert_int_eq(hy_store_clip(&r.store, &from, &all), size > 0);
            if (size == 0) continue;
            ck_assert_uint_eq(from, at);
            ck_assert_uint_eq(all, size);
            must_fail(hy_store_read(&r.store, r.stream, at, got, size + 1), HY_ERR_INTERNAL,
                      "another rank");
        }
        for (int32_t i = 0; i < whole.item_count; i++) {
            ck_assert_ptr_eq(hy_store_host(&r.store, i), NULL);
            uint64_t at = whole.unit_offset[whole.items[i].unit] + whole.items[i].offset;
            ck_assert_uint_eq(hy_store_offset(&r.store, i), at);
        }
        close_part(&r);
        hy_layout_fini(&part);
    }
    free(bytes);
    free(got);
    hy_layout_fini(&whole);
    hy_params_fini(&params);
}
END_TEST

/* ---- batches --------------------------------------------------------------------------------- */

enum { SEQ = 16, BATCH = 2, FIRST = 5 };

static void check_sequences(const hy_dataset *data, const hy_batch *batch, uint64_t first) {
    int32_t tokens[SEQ], targets[SEQ];
    ck_assert_uint_eq(batch->first, first);
    for (int32_t row = 0; row < BATCH; row++) {
        hy_dataset_fill(data, HY_TRAIN, first + (uint64_t)row, tokens, targets, NULL);
        ck_assert_mem_eq(batch->tokens + row * SEQ, tokens, sizeof tokens);
        ck_assert_mem_eq(batch->targets + row * SEQ, targets, sizeof targets);
    }
}

/* In each step, the batches of rank 0, then those of rank 1 and so on are what one would have
 * read. */
static void check_share(const hy_dataset *data, const hy_loader_share *share) {
    hy_loader *loader;
    must(hy_loader_create(data, BATCH, 3, FIRST, share, NULL, &loader));
    for (int step = 0; step < 6; step++) {
        uint64_t begin = FIRST + (uint64_t)(step * share->count * share->run * BATCH);
        ck_assert_uint_eq(hy_loader_cursor(loader), begin);
        for (int b = 0; b < share->run; b++) {
            hy_batch batch;
            must(hy_loader_peek(loader, 0, &batch));
            check_sequences(data, &batch,
                            begin + (uint64_t)((share->rank * share->run + b) * BATCH));
            hy_loader_pop(loader);
        }
    }
    hy_loader_destroy(loader);
}

START_TEST(ranks_read_together_what_one_would_have_read) {
    hy_dataset *data = open_data((hy_dataset_options){.path = "builtin",
                                                      .val_fraction = 0.1,
                                                      .builtin_bytes = 5000,
                                                      .seq = SEQ,
                                                      .vocab = 256,
                                                      .seed = 4,
                                                      .shuffle = true});
    for (int32_t count = 1; count <= 4; count++) {
        for (int32_t run = 1; run <= 3; run++) {
            for (int32_t rank = 0; rank < count; rank++) {
                check_share(data, &(hy_loader_share){.rank = rank, .count = count, .run = run});
            }
        }
    }
    hy_dataset_close(data);
}
END_TEST

/* ---- files ----------------------------------------------------------------------------------- */

static const hy_safetensors_entry entries[] = {
    {.name = "a", .dtype = HY_F32, .ndim = 2, .shape = {7, 300}},
    {.name = "b", .dtype = HY_BF16, .ndim = 1, .shape = {1001}},
    {.name = "empty", .dtype = HY_F32, .ndim = 1, .shape = {0}},
    {.name = "number", .dtype = HY_F32, .ndim = 0},
    {.name = "codes", .dtype = HY_U8, .ndim = 3, .shape = {3, 5, 11}},
};
enum { ENTRIES = sizeof entries / sizeof entries[0] };
static const char *const metadata[] = {"format", "a test", NULL};

static uint64_t bytes_of(const hy_safetensors_entry *e) {
    int64_t count = 1;
    for (int i = 0; i < e->ndim; i++) count *= e->shape[i];
    return hy_dtype_bytes(e->dtype, count);
}

static void fill(size_t entry, uint64_t first, char *out, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; i++) out[i] = (char)(entry * 37 + (first + i) * 101 + 3);
}

static void write_alone(const char *path) {
    hy_safetensors_writer *writer;
    char data[9000];
    must(hy_safetensors_create(path, entries, ENTRIES, metadata, &writer));
    for (size_t i = 0; i < ENTRIES; i++) {
        uint64_t bytes = bytes_of(&entries[i]);
        ck_assert_uint_le(bytes, sizeof data);
        fill(i, 0, data, bytes);
        must(hy_safetensors_put(writer, data, bytes));
    }
    must(hy_safetensors_finish(writer, NULL, NULL));
}

/* Every third part, from the last tensor to the first. */
static void write_parts(const char *path, uint64_t rank) {
    hy_shared_tensors *file;
    char data[100];
    must(hy_shared_tensors_open(path, entries, ENTRIES, metadata, &file));
    for (size_t i = ENTRIES; i-- > 0;) {
        uint64_t bytes = bytes_of(&entries[i]);
        for (uint64_t at = 0, number = i; at < bytes; at += sizeof data, number++) {
            uint64_t some = bytes - at < sizeof data ? bytes - at : sizeof data;
            if (number % 3 != rank) continue;
            fill(i, at, data, some);
            must(hy_shared_tensors_put(file, i, at, data, some));
        }
    }
    must(hy_shared_tensors_close(file));
}

static void must_be_alike(const char *a, const char *b) {
    char *data[2];
    size_t size[2];
    must(hy_file_read(a, &data[0], &size[0]));
    must(hy_file_read(b, &data[1], &size[1]));
    ck_assert_uint_eq(size[0], size[1]);
    ck_assert_mem_eq(data[0], data[1], size[0]);
    free(data[0]);
    free(data[1]);
}

START_TEST(a_file_that_three_write_is_what_one_writes) {
    char folder[256], alone[300], shared[300];
    temp_folder(folder);
    snprintf(alone, sizeof alone, "%s/alone", folder);
    snprintf(shared, sizeof shared, "%s/shared", folder);
    write_alone(alone);
    must(hy_file_write_atomic(shared, "what was there before", 21));
    must(hy_shared_tensors_make(shared, entries, ENTRIES, metadata));
    for (uint64_t rank = 3; rank-- > 0;) write_parts(shared, rank);
    must_be_alike(alone, shared);
    remove_folder(folder);
}
END_TEST

START_TEST(bytes_beyond_a_tensor_are_refused) {
    char folder[256], path[300], data[16] = "";
    hy_shared_tensors *file;
    temp_folder(folder);
    snprintf(path, sizeof path, "%s/file", folder);
    must_fail(hy_shared_tensors_open(path, entries, ENTRIES, metadata, &file), HY_ERR_IO, path);
    ck_assert_ptr_null(file);
    must(hy_shared_tensors_make(path, entries, ENTRIES, metadata));
    must(hy_shared_tensors_open(path, entries, ENTRIES, metadata, &file));
    must_fail(hy_shared_tensors_put(file, 0, 7 * 300 * 4 - 8, data, 9), HY_ERR_STATE, path);
    must_fail(hy_shared_tensors_put(file, 2, 0, data, 1), HY_ERR_STATE, path);
    must_fail(hy_shared_tensors_put(file, ENTRIES, 0, data, 1), HY_ERR_STATE, path);
    must_fail(hy_shared_tensors_put(file, 1u << 20, 0, data, 1), HY_ERR_STATE, path);
    must_fail(hy_shared_tensors_put(file, 0, UINT64_MAX - 4, data, 16), HY_ERR_STATE, path);
    must(hy_shared_tensors_put(file, 0, 7 * 300 * 4 - 8, data, 8));
    must(hy_shared_tensors_close(file));
    must(hy_shared_tensors_close(NULL));
    remove_folder(folder);
}
END_TEST

/* ---- bytes ----------------------------------------------------------------------------------- */

static const hy_plan_choice on_device = {
    .state = {HY_DEVICE, HY_DEVICE, HY_DEVICE, HY_DEVICE}, .predictor = HY_PINNED, .ring_depth = 2};

/* Master in fp32, passes in bf16; slow weights and an average. */
static hy_rows rows_of(const hy_params *params, hy_rank_spec ranks) {
    hy_rows rows;
    hy_rows_spec spec = {.types = {.of = {HY_BF16, HY_BF16, HY_BF16, HY_BF16},
                                   .master = HY_F32,
                                   .low = HY_BF16,
                                   .has_low = true,
                                   .grads = HY_F32,
                                   .optim = HY_F32,
                                   .slow = HY_F32},
                         .optimizer.kind = hy_optimizer_kind_of(HY_ADAMW),
                         .slow_count = 1,
                         .has_average = true,
                         .ranks = ranks};
    must(hy_rows_init(&rows, params, &spec));
    return rows;
}

static hy_plan_state need_of(const hy_params *params, hy_rank_spec ranks, uint64_t *saved) {
    hy_plan_state need;
    hy_rows rows = rows_of(params, ranks);
    hy_rows_need(&rows, &on_device, NULL, &need);
    *saved = hy_rows_saved_bytes(&rows, false);
    hy_rows_fini(&rows);
    return need;
}

/* Which classes are shared, from which stage on. */
static const struct {
    int state, stage;
} shared_from[] = {
    {HY_PLAN_WEIGHTS, 3}, {HY_PLAN_MASTER, 1}, {HY_PLAN_GRADS, 1}, {HY_PLAN_OPTIM, 1}};

/* Weights that are not trained among them. */
START_TEST(ranks_keep_together_what_one_keeps_and_each_the_rest) {
    hy_params params = make_params(_i ? ADAPTERS : UNTIED, 3);
    uint64_t saved_alone, saved;
    hy_plan_state alone = need_of(&params, (hy_rank_spec){0}, &saved_alone);
    ck_assert_uint_eq(alone.rings, 0);
    for (int32_t count = 2; count <= 7; count++) {
        for (int32_t stage = 0; stage < 4; stage++) {
            uint64_t sum[HY_PLAN_STATES] = {0}, kept = 0;
            for (int32_t rank = 0; rank < count; rank++) {
                hy_rank_spec ranks = {.rank = rank, .count = count, .stage = stage};
                hy_plan_state need = need_of(&params, ranks, &saved);
                for (int i = 0; i < HY_PLAN_STATES; i++) sum[i] += need.bytes[i];
                kept += need.kept;
                ck_assert_uint_gt(need.rings, 0);
                double off = (double)saved / (double)saved_alone - 1;
                ck_assert_msg(off > -0.02 && off < 0.02, "a checkpoint of %llu bytes, not %llu",
                              (unsigned long long)saved, (unsigned long long)saved_alone);
            }
            for (int i = 0; i < 4; i++) {
                bool is_shared = stage >= shared_from[i].stage;
                uint64_t all =
                    alone.bytes[shared_from[i].state] * (is_shared ? 1u : (uint64_t)count);
                ck_assert_uint_eq(sum[shared_from[i].state], all);
            }
            ck_assert_uint_eq(kept, alone.kept); /* what predictors keep is shared in any stage */
        }
    }
    hy_params_fini(&params);
}
END_TEST

/* With stage 3 a rank has 1/N of the state; what units pass through does not grow with the
 * model. */
START_TEST(rings_of_stage_3_are_as_large_for_any_number_of_layers) {
    uint64_t rings[2], state[2], saved;
    for (int i = 0; i < 2; i++) {
        /* Rank 1 has the same of the head. */
        hy_params params = make_params(_i ? ADAPTERS : UNTIED, i ? 11 : 7);
        hy_plan_state alone = need_of(&params, (hy_rank_spec){0}, &saved);
        hy_plan_state need =
            need_of(&params, (hy_rank_spec){.rank = 1, .count = 4, .stage = 3}, &saved);
        rings[i] = need.rings;
        state[i] = need.device;
        double share = (double)need.device / (double)alone.device;
        ck_assert_msg(share > 0.22 && share < 0.28, "a quarter of the state is %.3f of it", share);
        hy_params_fini(&params);
    }
    ck_assert_uint_gt(4 * state[1], 5 * state[0]);
    ck_assert_uint_eq(rings[0], rings[1]);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("shard");
    TCase *c = tcase_create("shard");
    tcase_add_loop_test(c, every_trained_element_belongs_to_one_rank, 0, MODEL_KINDS);
    tcase_add_test(c, muon_and_adafactor_have_matrices_whole_and_adamw_has_none);
    tcase_add_test(c, ranks_have_about_as_much);
    tcase_add_test(c, what_is_left_over_of_blocks_goes_round);
    tcase_add_loop_test(c, a_shard_is_one_piece_of_each_whole_unit, 0, MODEL_KINDS * OPTIMIZERS);
    tcase_add_test(c, parts_of_codes_have_their_scales);
    tcase_add_test(c, arrays_that_are_not_like_their_parameter_go_with_it_whole);
    tcase_add_test(c, a_store_takes_its_part_of_a_parameter);
    tcase_add_test(c, ranks_read_together_what_one_would_have_read);
    tcase_add_test(c, a_file_that_three_write_is_what_one_writes);
    tcase_add_test(c, bytes_beyond_a_tensor_are_refused);
    tcase_add_loop_test(c, cuts_of_bytes_are_the_whole_one_behind_the_other, 0, STORED_AS);
    tcase_add_loop_test(c, a_store_keeps_and_gives_its_part_of_the_bytes, 0, STORED_AS);
    tcase_add_loop_test(c, ranks_keep_together_what_one_keeps_and_each_the_rest, 0, 2);
    tcase_add_loop_test(c, rings_of_stage_3_are_as_large_for_any_number_of_layers, 0, 2);
    suite_add_tcase(s, c);
    return s;
}

HY_TEST_MAIN(suite)
