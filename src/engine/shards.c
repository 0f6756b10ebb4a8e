/* shards.c: several ranks train one model: what goes between them, unit by unit. See engine.h.
 *
 * Gradients. Backward leaves a unit's gradients of one micro-batch in a buffer of their own (HY_ROW_PARTIAL). Each rank
 * sends the others their parts of it while the next unit is computed; then the parts that came are added to its own in
 * the order of ranks, and to the sum of the micro-batches before. So it is in every stage, and the sums have the same
 * bits in all of them. Where gradients are whole, the finished parts go to everybody.
 *
 * Weights. Whoever has changed its part of a unit sends it to the others: into the row that passes read where that is
 * whole, else, each time that a pass comes there, into a buffer (HY_ROW_GATHERED). What was updated leaves at once, what
 * is gathered when the pass comes to the unit before (fetch); both are waited for when it needs them (await). What is
 * pending of an update is applied to a unit before that. How much goes beside compute is tried by
 * tests/long/test_ranks_overlap.c.
 *
 * A rank that is alone (--transport nccl) is its own peer: the same jobs at the same places, and what it sends comes back
 * to it. So NCCL can be tried and timed with one card. Its part is the whole: gradients are summed as
 * without ranks and sent where they lie, and so are weights on the device. Weights elsewhere, those that are not
 * trained and those that fp8 makes codes of are gathered as several ranks do it. */
#include <stdlib.h>

#include "base/error.h"
#include "engine/engine.h"

/* ---- taking ---------------------------------------------------------------------------------------------- */

static bool is_several(const hy_engine *e) { return hy_rows_shard(&e->rows) != NULL; }

static hy_status take_staging(hy_engine *e) {
    hy_shards *s = &e->shards;
    uint64_t bytes = e->rows.wire_staging;
    void *data;
    if (bytes == 0) return HY_OK;
    HY_TRY(hy_arena_init(&s->staging, e->backend, &e->ledger, HY_PINNED, bytes,
                         "what goes between ranks"));
    HY_TRY(hy_arena_push(&s->staging, HY_WORKSPACE, bytes, &data));
    s->net.staging = data;
    s->net.staging_bytes = bytes;
    return HY_OK;
}

hy_status hy_shards_take(hy_engine *e) {
    hy_shards *s = &e->shards;
    if (!is_several(e)) return HY_OK;
    int32_t units = e->model->params.units;
    s->fetched = calloc((size_t)units, sizeof *s->fetched);
    HY_FAIL_IF(!s->fetched, HY_ERR_MEMORY, "no memory for exchanges between ranks");
    s->source = s->in_place = s->fetching = -1;
    HY_TRY(hy_frozen_take(e));
    HY_TRY(hy_exchange_open(&s->net, e->team, e->backend, 4 * units + 16));
    HY_TRY(take_staging(e));
    HY_TRY(hy_arena_init(&s->arena, e->backend, &e->ledger, HY_DEVICE, e->rows.arriving,
                         "gradients of other ranks"));
    for (int i = 0; i < 2 && e->rows.arriving > 0; i++) {
        void *at;
        HY_TRY(hy_arena_push(&s->arena, HY_WORKSPACE, e->rows.arriving / 2, &at));
        s->arriving[i] = at;
    }
    return HY_OK;
}

hy_status hy_shards_connect(hy_engine *e) {
    return is_several(e) ? hy_exchange_connect(&e->shards.net) : HY_OK;
}

void hy_shards_release(hy_engine *e) {
    hy_shards *s = &e->shards;
    if (s->net.backend) hy_exchange_close(&s->net);
    hy_arena_fini(&s->arena);
    hy_arena_fini(&s->staging);
    free(s->fetched);
    free(s->frozen);
    *s = (hy_shards){0};
}

/* ---- parts ------------------------------------------------------------------------------------------------ */

static void span_of(const hy_engine *e, const hy_layout *whole, int32_t unit, int32_t rank,
                    uint64_t *begin, uint64_t *bytes) {
    hy_shard_span(&e->rows.shard, &e->model->params, whole, unit, rank, begin, bytes);
}

/* Everybody gets everybody's part of a unit: own from `mine`, the others' into their places in `whole`. */
static hy_status send_parts(hy_engine *e, hy_stream *stream, const hy_layout *layout, int32_t unit,
                            char *whole, const char *mine, hy_job **out) {
    const hy_shard *shard = &e->rows.shard;
    uint64_t begin, bytes, own;
    hy_job *job;
    HY_TRY(hy_job_begin(&e->shards.net, &job));
    span_of(e, layout, unit, shard->rank, &begin, &own);
    for (int32_t i = 1; i <= hy_shard_peers(shard); i++) {
        hy_job_send(job, (shard->rank + i) % shard->count, mine, own);
    }
    for (int32_t i = 1; i <= hy_shard_peers(shard); i++) {
        int32_t from = (shard->rank + shard->count - i) % shard->count;
        span_of(e, layout, unit, from, &begin, &bytes);
        hy_job_receive(job, from, whole + begin, bytes);
    }
    *out = job;
    return hy_job_go(job, stream);
}

/* The same where own part lies at its place. */
static hy_status spread_unit(hy_engine *e, hy_stream *stream, const hy_store *store, int32_t unit,
                             hy_job **out) {
    uint64_t begin, own;
    char *whole = hy_store_unit(store, unit);
    span_of(e, &store->layout, unit, e->rows.shard.rank, &begin, &own);
    return send_parts(e, stream, &store->layout, unit, whole, whole + begin, out);
}

static bool has_bytes(const hy_store *store, int32_t unit) {
    return store->layout.unit_bytes[unit] > 0;
}

/* A caller's weights: through a buffer, which is held until the others' parts have come. */
static hy_status spread_outside(hy_engine *e, hy_stream *stream, int32_t unit, hy_job **out) {
    HY_TRY(hy_outside_depart(e, stream, unit));
    return spread_unit(e, stream, hy_store_of(e, HY_ROW_GATHERED), unit, out);
}

hy_status hy_shards_spread_held(hy_engine *e, hy_stream *stream, hy_store *store, int32_t unit) {
    hy_job *job;
    if (!is_several(e) || !has_bytes(store, unit)) return HY_OK;
    HY_TRY(store->outside ? spread_outside(e, stream, unit, &job)
                          : spread_unit(e, stream, store, unit, &job));
    HY_TRY(hy_job_await(job, stream));
    return store->outside ? hy_outside_arrive(e, stream, unit) : HY_OK;
}

hy_status hy_shards_spread_row(hy_engine *e, int row) {
    hy_store *store = hy_store_of(e, row);
    if (!is_several(e) || e->rows.row[row].is_sharded) return HY_OK;
    for (int32_t unit = 0; unit < store->layout.unit_count; unit++) {
        HY_TRY(hy_store_get(store, e->compute, unit));
        HY_TRY(hy_shards_spread_held(e, e->compute, store, unit));
        HY_TRY(hy_store_release_changed(store, e->compute, unit));
    }
    return HY_OK;
}

/* ---- one rank -------------------------------------------------------------------------------------------- */

/* Its own part is all there is. */
static bool is_alone(const hy_engine *e) { return e->rows.shard.count == 1; }

static hy_status send_in_place(hy_engine *e, hy_stream *stream, const hy_store *store, int32_t unit,
                               hy_job **out) {
    char *data = hy_store_unit(store, unit);
    uint64_t bytes = store->layout.unit_bytes[unit];
    HY_TRY(hy_job_begin(&e->shards.net, out));
    hy_job_send(*out, 0, data, bytes);
    hy_job_receive(*out, 0, data, bytes);
    return hy_job_go(*out, stream);
}

/* ---- gradients -------------------------------------------------------------------------------------------- */

/* The parts of the unit that is on the wire are here: they are added up. */
static hy_status take_parts(hy_engine *e, hy_stream *stream) {
    hy_shards *s = &e->shards;
    hy_store *grads = hy_store_of(e, HY_ROW_GRADS);
    const hy_layout *layout = &e->rows.row[HY_ROW_PARTIAL].layout;
    hy_given_unit given = s->given;
    uint64_t begin, bytes;
    if (!given.job) return HY_OK;
    s->given.job = NULL;
    HY_TRY(hy_job_await(given.job, stream));
    if (is_alone(e)) return HY_OK; /* they were added before they were sent */
    span_of(e, layout, given.unit, e->rows.shard.rank, &begin, &bytes);
    HY_TRY(given.is_first ? hy_store_get_new(grads, stream, given.unit)
                          : hy_store_get(grads, stream, given.unit));
    if (bytes > 0) {
        hy_dtype dtype = e->plan.types.grads;
        int64_t count = (int64_t)(bytes / hy_dtype_size(dtype));
        bool is_whole = !e->rows.row[HY_ROW_GRADS].is_sharded;
        char *out = hy_store_unit(grads, given.unit) + (is_whole ? begin : 0);
        hy_op_call add = {.kind = HY_OP_ADD_PARTS,
                          .attr = {.accumulate = !given.is_first,
                                   .add_parts = {.count = e->rows.shard.count,
                                                 .rank = e->rows.shard.rank,
                                                 .stride = count}}};
        add.t[HY_ADD_PARTS_OWN] = hy_tensor_1d(given.partial + begin, dtype, count);
        add.t[HY_ADD_PARTS_PARTS] =
            hy_tensor_1d(given.arriving, dtype, count * (e->rows.shard.count - 1));
        add.t[HY_ADD_PARTS_OUT] = hy_tensor_1d(out, dtype, count);
        HY_TRY(e->backend->enqueue(stream, &add));
    }
    bool is_told = given.is_last && !e->rows.row[HY_ROW_GRADS].is_sharded;
    if (is_told) HY_TRY(hy_shards_spread_held(e, stream, grads, given.unit));
    return hy_store_release_changed(grads, stream, given.unit);
}

/* A buffer of a ring is held as long as this lasts, and no longer. */
static hy_status give_alone(hy_engine *e, hy_stream *stream, int32_t unit) {
    hy_given_unit given = {.unit = unit};
    const hy_store *grads = hy_store_of(e, HY_ROW_GRADS);
    if (!has_bytes(grads, unit)) return HY_OK;
    HY_TRY(send_in_place(e, stream, grads, unit, &given.job));
    HY_TRY(take_parts(e, stream));
    e->shards.given = given;
    return grads->place == HY_DEVICE ? HY_OK : take_parts(e, stream);
}

hy_status hy_shards_give(void *context, hy_stream *stream, int32_t unit) {
    hy_engine *e = context;
    hy_shards *s = &e->shards;
    if (is_alone(e)) return give_alone(e, stream, unit);
    const hy_store *partial = hy_store_of(e, HY_ROW_PARTIAL);
    const hy_shard *shard = &e->rows.shard;
    if (!has_bytes(partial, unit)) return HY_OK;
    hy_given_unit given = {.unit = unit,
                           .partial = hy_store_unit(partial, unit),
                           .arriving = s->arriving[s->turn],
                           .is_first = s->is_first,
                           .is_last = s->is_last};
    uint64_t begin, bytes, own;
    s->turn ^= 1;
    HY_TRY(hy_job_begin(&s->net, &given.job));
    span_of(e, &partial->layout, unit, shard->rank, &begin, &own);
    for (int32_t i = 1; i <= hy_shard_peers(shard); i++) {
        int32_t to = (shard->rank + i) % shard->count;
        span_of(e, &partial->layout, unit, to, &begin, &bytes);
        hy_job_send(given.job, to, given.partial + begin, bytes);
    }
    for (int32_t i = 1; i <= hy_shard_peers(shard); i++) {
        int32_t from = (shard->rank + shard->count - i) % shard->count;
        uint64_t place = (uint64_t)(from > shard->rank ? from - 1 : from) * own;
        hy_job_receive(given.job, from, given.arriving + place, own);
    }
    HY_TRY(hy_job_go(given.job, stream));
    if (!given.is_first) HY_TRY(hy_store_gather(hy_store_of(e, HY_ROW_GRADS), unit));
    HY_TRY(take_parts(e, stream)); /* of the unit before, whose parts came meanwhile */
    s->given = given;
    return HY_OK;
}

hy_status hy_shards_take_last(hy_engine *e) { return take_parts(e, e->compute); }

hy_store *hy_shards_begin_pass(hy_engine *e, bool is_first, bool is_last, bool *accumulates) {
    bool has_others = e->rows.shard.count > 1;
    *accumulates = !is_first && !has_others;
    if (!has_others) return hy_store_of(e, HY_ROW_GRADS);
    e->shards.is_first = is_first;
    e->shards.is_last = is_last;
    return hy_store_of(e, HY_ROW_PARTIAL);
}

hy_store *hy_shards_grads(hy_engine *e, int32_t micro_batch, bool *accumulates) {
    return hy_shards_begin_pass(e, micro_batch == 0, micro_batch == e->plan.choice.accum - 1,
                                accumulates);
}

/* ---- weights ---------------------------------------------------------------------------------------------- */

/* The stream goes on when the unit is here. */
static hy_status take_fetched(hy_engine *e, hy_stream *stream, int32_t unit) {
    hy_fetched_unit fetched = e->shards.fetched[unit];
    if (!fetched.job) return HY_OK;
    e->shards.fetched[unit] = (hy_fetched_unit){0};
    HY_TRY(hy_job_await(fetched.job, stream));
    if (e->guest) return hy_outside_arrive(e, stream, unit);
    return fetched.held ? hy_store_release_changed(fetched.held, stream, unit) : HY_OK;
}

bool hy_shards_spreads(const hy_engine *e, int row) {
    return is_several(e) && e->plan.zero_stage > 0 && !e->rows.row[row].is_sharded;
}

hy_status hy_shards_updated(hy_engine *e, hy_stream *stream, int row, int32_t unit) {
    hy_store *store = hy_store_of(e, row);
    if (!hy_shards_spreads(e, row) || !has_bytes(store, unit)) return HY_OK;
    hy_fetched_unit *fetched = &e->shards.fetched[unit];
    if (store->outside) {
        HY_TRY(spread_outside(e, stream, unit, &fetched->job));
        return unit > 0 ? take_fetched(e, stream, unit - 1) : HY_OK; /* its buffer is free then */
    }
    fetched->held = store->place == HY_DEVICE ? NULL : store;
    HY_TRY(hy_store_get(store, stream, unit));
    HY_TRY(spread_unit(e, stream, store, unit, &fetched->job));
    /* Its buffer is kept for it where the pass is about to come there: a ring has no room for more. */
    if (fetched->held) return e->shards.fetching == unit ? HY_OK : take_fetched(e, stream, unit);
    return hy_store_release_changed(store, stream, unit);
}

hy_store *hy_shards_weights(hy_engine *e, int row) {
    hy_shards *s = &e->shards;
    hy_row *gathered = &e->rows.row[HY_ROW_GATHERED];
    const hy_row *source = &e->rows.row[row];
    s->in_place = -1;
    if (!is_several(e) || !source->is_sharded) {
        s->source = -1;
        return hy_store_of(e, row);
    }
    bool makes_codes = hy_row_is_exchanged(&e->rows.row[HY_ROW_FP8]); /* of gathered units */
    if (is_alone(e) && source->store.place == HY_DEVICE && !makes_codes) {
        s->source = -1;
        s->in_place = row;
        return hy_store_of(e, row);
    }
    bool is_other = s->source != row;
    if (is_other || gathered->made_of != e->rows.row[HY_ROW_MASTER].version) {
        hy_store_abandon(&gathered->store);
        hy_layout_retype(&gathered->store.layout, source->dtype);
        gathered->made_of = e->rows.row[HY_ROW_MASTER].version;
    }
    s->source = row;
    return &gathered->store;
}

static hy_status gather_unit(hy_engine *e, hy_stream *stream, int32_t unit) {
    hy_shards *s = &e->shards;
    hy_store *whole = hy_store_of(e, HY_ROW_GATHERED), *from = hy_store_of(e, s->source);
    uint64_t begin, own;
    hy_fetched_unit *fetched = &s->fetched[unit];
    if (!has_bytes(whole, unit) || fetched->job || hy_store_touch(whole, unit)) return HY_OK;
    HY_TRY(hy_store_get_new(whole, stream, unit));
    span_of(e, &whole->layout, unit, e->rows.shard.rank, &begin, &own);
    char *to = hy_store_unit(whole, unit);
    if (own > 0) { /* the shard is not held meanwhile: its ring may be small */
        HY_TRY(hy_store_get_read(from, stream, unit));
        HY_TRY(e->backend->copy(stream, to + begin, hy_store_unit(from, unit), own));
        HY_TRY(hy_store_release(from, stream, unit));
    }
    fetched->held = whole;
    return send_parts(e, stream, &whole->layout, unit, to, to + begin, &fetched->job);
}

static hy_status fetch_in_place(hy_engine *e, hy_stream *stream, int32_t unit) {
    const hy_store *store = hy_store_of(e, e->shards.in_place);
    hy_fetched_unit *fetched = &e->shards.fetched[unit];
    if (!has_bytes(store, unit) || fetched->job) return HY_OK;
    fetched->held = NULL;
    return send_in_place(e, stream, store, unit, &fetched->job);
}

hy_status hy_shards_fetch(void *context, hy_stream *stream, int32_t unit) {
    hy_engine *e = context;
    e->shards.fetching = unit;
    hy_status status = hy_update_upto(e, unit);
    e->shards.fetching = -1;
    HY_TRY(status);
    if (e->shards.in_place >= 0) return fetch_in_place(e, stream, unit);
    return e->shards.source >= 0 ? gather_unit(e, stream, unit) : HY_OK;
}

hy_status hy_shards_await(void *context, hy_stream *stream, int32_t unit) {
    hy_engine *e = context;
    hy_shards *s = &e->shards;
    if (!is_several(e)) return HY_OK;
    if (s->source >= 0) HY_TRY(hy_shards_fetch(e, stream, unit)); /* it may have left again */
    /* The head is where backward begins: gradients of the pass before have had time to come. */
    if (unit == e->model->params.units - 1) HY_TRY(take_parts(e, stream));
    return take_fetched(e, stream, unit);
}

hy_status hy_shards_await_all(hy_engine *e) {
    if (!is_several(e) || !e->shards.fetched || e->shards.source >= 0) return HY_OK;
    for (int32_t unit = 0; unit < e->model->params.units; unit++) {
        HY_TRY(hy_shards_await(e, e->compute, unit));
    }
    return HY_OK;
}

void hy_shards_abandon(hy_engine *e) {
    hy_shards *s = &e->shards;
    s->given.job = NULL;
    hy_frozen_abandon(e);
    for (int32_t u = 0; s->fetched && u < e->model->params.units; u++) {
        s->fetched[u] = (hy_fetched_unit){0};
    }
}

/* ---- sums ------------------------------------------------------------------------------------------------- */

hy_status hy_shards_sum(hy_engine *e, double *const *numbers, int32_t count) {
    return is_several(e) ? hy_exchange_sum(&e->shards.net, e->compute, numbers, count) : HY_OK;
}

hy_status hy_shards_check(hy_engine *e) {
    return is_several(e) ? hy_exchange_check(&e->shards.net) : HY_OK;
}

hy_tensor hy_shards_view(const hy_engine *e, int row, int32_t param) {
    const hy_store *store = hy_store_of(e, row);
    const hy_params *params = &e->model->params;
    int32_t item = hy_store_item_of(store, param);
    hy_slice own = hy_shard_own(hy_rows_shard(&e->rows), params, param);
    if (item < 0 || own.count == 0) return (hy_tensor){0};
    hy_tensor all = hy_store_tensor(store, item, hy_store_device(store, item));
    bool is_cut = own.count < params->list[param].count && !e->rows.row[row].is_sharded;
    return is_cut ? hy_tensor_rows(&all, own.begin, own.count) : all;
}
