/* traffic.c: the traffic between ranks in a step, and its duration. See traffic.h.
 *
 * problem.c calls it before memory is allocated. The dry run uses the real collectives
 * (comm/collectives.h), the real ring of gathered units (state/gather.h) and the real walk over
 * units, with an arena without memory and an exchange that only counts. */
#include "plan/traffic.h"

#include <stdlib.h>

#include "base/error.h"
#include "model/model.h"
#include "state/gather.h"
#include "state/rows.h"

/* ---- wires ----------------------------------------------------------------------------------- */

/* From data sheets, one direction: NVLink 4 of an H100 450 GB/s, PCIe x16 32 (4.0) and 64 (5.0),
 * HDR InfiniBand 200 Gb/s. Programs reach about 0.8 of that between cards and 0.92 on
 * InfiniBand. Socket rates were measured on one machine. Latencies are rules of thumb. */
static const hy_plan_wire wires[] = {
    [HY_WIRE_AUTO] = {"sockets", 2e9, 50e-6, false},
    [HY_WIRE_NVLINK] = {"nvlink", 360e9, 10e-6, false},
    [HY_WIRE_PCIE4] = {"pcie4", 25e9, 15e-6, true},
    [HY_WIRE_PCIE5] = {"pcie5", 50e9, 15e-6, true},
    [HY_WIRE_IB200] = {"ib200", 23e9, 20e-6, false},
};

const hy_plan_wire *hy_plan_wire_of(hy_wire_choice asked, bool is_between_cards) {
    bool is_open = asked == HY_WIRE_AUTO && is_between_cards;
    return &wires[is_open ? HY_WIRE_PCIE4 : asked];
}

double hy_plan_load_seconds(const hy_plan_wire *wire, double staging, const hy_plan_load *load) {
    double bytes = (double)load->bytes;
    double staged = staging > 0 ? 2 * bytes / staging : 0;
    return bytes / wire->bytes_per_second + staged + (double)load->exchanges * wire->latency;
}

/* ---- a dry run ------------------------------------------------------------------------------- */

enum { TRAINED, FROZEN, SETS };

typedef struct dry_run {
    const hy_rows *rows;
    const hy_model *model;
    int weights_row;         /* the row that passes read */
    hy_exchange *net;        /* counts */
    hy_arena memory;         /* has none */
    hy_store weights[SETS];  /* read by passes: rings of gathered units, or whole rows */
    hy_store grads;          /* the row that backward writes */
    hy_gather gathers[SETS]; /* `whole` is NULL if passes read a whole row */
    hy_gathering *units;     /* (SETS, units) */
} dry_run;

/* The bytes sent since the last call. */
static hy_plan_load take_load(dry_run *d) {
    hy_plan_load load = {d->net->dry_bytes, d->net->dry_ops};
    d->net->dry_bytes = 0;
    d->net->dry_ops = 0;
    return load;
}

/* ---- gradients, and weights that are whole --------------------------------------------------- */

/* Exchanges all units in the order of backward. last: the load of the last unit. */
static hy_status exchange_row(dry_run *d, const hy_layout *whole, bool is_reduced,
                              hy_plan_load *sum, hy_plan_load *last) {
    hy_comm_part parts[HY_RANKS_MOST];
    hy_reduction reduction;
    hy_comm_op *op;
    char *data = d->memory.data;
    for (int32_t unit = whole->unit_count - 1; unit >= 0; unit--) {
        if (whole->unit_bytes[unit] == 0) continue;
        hy_unit_parts(&d->rows->shard, &d->model->params, whole, unit, parts);
        HY_TRY(is_reduced ? hy_reduce_scatter(d->net, NULL, data, parts, data, &reduction)
                          : hy_all_gather(d->net, NULL, data, data, parts, &op));
        *last = take_load(d);
        sum->bytes += last->bytes;
        sum->exchanges += last->exchanges;
    }
    return HY_OK;
}

/* ---- weights that passes gather -------------------------------------------------------------- */

static hy_status fetch(void *context, hy_stream *stream, int32_t unit) {
    const hy_gather *g = ((dry_run *)context)->gathers;
    if (g[TRAINED].whole) HY_TRY(hy_gather_fetch(&g[TRAINED], stream, unit, NULL));
    return g[FROZEN].whole ? hy_gather_fetch(&g[FROZEN], stream, unit, NULL) : HY_OK;
}

static hy_status await(void *context, hy_stream *stream, int32_t unit) {
    const hy_gather *g = ((dry_run *)context)->gathers;
    if (g[TRAINED].whole) HY_TRY(hy_gather_await(&g[TRAINED], stream, unit));
    return g[FROZEN].whole ? hy_gather_await(&g[FROZEN], stream, unit) : HY_OK;
}

/* Runs one micro-batch: what is sent in forward and in backward. */
static hy_status walk(dry_run *d, hy_plan_load out[2]) {
    const hy_unit_hook hook = {.context = d, .fetch = fetch, .await = await};
    hy_batch_input input = {.weights = &d->weights[TRAINED],
                            .frozen = d->rows->row[HY_ROW_FROZEN].kind ? &d->weights[FROZEN] : NULL,
                            .grads = &d->grads,
                            .hook = &hook};
    HY_TRY(hy_model_walk(d->model, &input, HY_PASS_FORWARD));
    out[HY_GOES_FORWARD] = take_load(d);
    HY_TRY(hy_model_walk(d->model, &input, HY_PASS_BACKWARD));
    out[HY_GOES_BACKWARD] = take_load(d);
    return HY_OK;
}

/* The row of a set that passes read, or the ring that they gather it into. */
static hy_status open_weights(dry_run *d, int set) {
    const hy_row *read = &d->rows->row[set == FROZEN ? HY_ROW_FROZEN : d->weights_row];
    const hy_row *ring = &d->rows->row[set == FROZEN ? HY_ROW_GATHERED_FROZEN : HY_ROW_GATHERED];
    hy_store *store = &d->weights[set];
    if (!read->kind) return HY_OK;
    if (!read->is_sharded) {
        return hy_store_init(store, &d->memory, read->kind->cls, &read->layout);
    }
    HY_TRY(hy_store_init_made(store, &d->memory, ring->kind->cls, &ring->layout,
                              ring->kind->ring_depth));
    if (set == TRAINED) hy_layout_retype(&store->layout, read->dtype);
    d->gathers[set] = (hy_gather){.net = d->net,
                                  .params = &d->model->params,
                                  .shard = &d->rows->shard,
                                  .is_cut = read->kind->sharding == HY_SHARDED_BYTES,
                                  .whole = store,
                                  .units = d->units + (int64_t)set * d->model->params.units};
    return HY_OK;
}

/* At the start of a step the ring holds no trained unit, because the weights have changed.
 * Frozen units stay from the step before. */
static hy_status run_micro_batches(dry_run *d, hy_plan_traffic *out) {
    const hy_row *grads = &d->rows->row[HY_ROW_GRADS];
    hy_plan_load before[2];
    d->units = calloc(SETS * (size_t)d->model->params.units, sizeof *d->units);
    HY_FAIL_IF(!d->units, HY_ERR_MEMORY, "not enough memory to count the bytes that ranks send");
    HY_TRY(hy_store_init(&d->grads, &d->memory, HY_GRADS, &grads->layout));
    for (int set = 0; set < SETS; set++) HY_TRY(open_weights(d, set));
    HY_TRY(walk(d, before));
    hy_store_abandon(&d->weights[TRAINED]);
    HY_TRY(walk(d, out->first));
    return walk(d, out->other);
}

/* ---- a step ---------------------------------------------------------------------------------- */

static hy_status run(dry_run *d, int stage, hy_plan_traffic *out) {
    const hy_row *row = d->rows->row, *read = &row[d->weights_row];
    hy_plan_load unused;
    HY_TRY(hy_all_reduce(d->net, NULL, NULL, 2)); /* norm and loss */
    out->summed = take_load(d);
    HY_TRY(exchange_row(d, &row[HY_ROW_PARTIAL].layout, true, &out->grads, &out->last));
    if (stage == 0) {
        HY_TRY(exchange_row(d, &row[HY_ROW_GRADS].layout, false, &out->grad_sums, &unused));
    } else if (!read->is_sharded) {
        HY_TRY(exchange_row(d, &read->layout, false, &out->updated, &unused));
    }
    bool is_gathered = read->is_sharded || row[HY_ROW_FROZEN].is_sharded;
    return is_gathered ? run_micro_batches(d, out) : HY_OK;
}

hy_status hy_plan_traffic_of(const hy_rows *rows, const hy_model *model, const hy_types *types,
                             int stage, hy_plan_traffic *out) {
    hy_exchange net;
    dry_run d = {.rows = rows,
                 .model = model,
                 .net = &net,
                 .weights_row = (int)hy_weights_row(types, hy_types_step(types, HY_FULL))};
    *out = (hy_plan_traffic){0};
    if (!hy_rows_shard(rows)) return HY_OK;
    hy_exchange_open_dry(&net, rows->shard.rank, rows->shard.count);
    hy_arena_init_dry(&d.memory);
    hy_status status = run(&d, stage, out);
    for (int i = 0; i < SETS; i++) hy_store_fini(&d.weights[i]);
    hy_store_fini(&d.grads);
    free(d.units);
    return status;
}

void hy_plan_reduce_once(hy_plan_traffic *t) {
    t->grad_sums.bytes += t->grads.bytes;
    t->grad_sums.exchanges += t->grads.exchanges;
    t->grads = t->last = (hy_plan_load){0};
}
