/* traffic.c: what goes between ranks in a step, and how long it takes. See traffic.h. */
#include "plan/traffic.h"

#include <stdlib.h>

#include "state/rows.h"

/* ---- wires ------------------------------------------------------------------------------------------ */

/* Data sheets, one way: NVLink 4 of an H100 450 GB/s, PCIe x16 32 (4.0) and 64 (5.0), HDR InfiniBand 200 Gb/s. Of that
 * programs reach about 0.8 on cables of cards and 0.92 on InfiniBand. Sockets are those of one machine, measured.
 * Latencies are rules of thumb. */
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

/* ---- parts of units --------------------------------------------------------------------------------- */

static void add(hy_plan_load *load, uint64_t bytes) {
    load->bytes += bytes;
    load->exchanges++;
}

static uint64_t own_part(const hy_rows *rows, const hy_params *params, const hy_layout *whole,
                         int32_t unit) {
    uint64_t begin, bytes;
    hy_shard_span(&rows->shard, params, whole, unit, rows->shard.rank, &begin, &bytes);
    return bytes;
}

/* To everybody, the own part of each unit. */
static hy_plan_load spread(const hy_rows *rows, const hy_params *params, const hy_layout *whole) {
    hy_plan_load load = {0};
    uint64_t others = (uint64_t)rows->shard.count - 1;
    for (int32_t unit = 0; unit < whole->unit_count; unit++) {
        if (whole->unit_bytes[unit] > 0) add(&load, others * own_part(rows, params, whole, unit));
    }
    return load;
}

/* To each its part, of each unit: the parts of all ranks are the unit. A single rank has no such row, and nobody to
 * send to. */
static void give(const hy_rows *rows, const hy_params *params, hy_plan_traffic *out) {
    const hy_layout *whole = &rows->row[HY_ROW_PARTIAL].layout;
    for (int32_t unit = whole->unit_count - 1; unit >= 0; unit--) {
        if (whole->unit_bytes[unit] == 0) continue;
        uint64_t bytes = whole->unit_bytes[unit] - own_part(rows, params, whole, unit);
        out->last = (hy_plan_load){bytes, 1};
        add(&out->given, bytes);
    }
}

/* ---- gathered weights: what the ring no longer holds ------------------------------------------------ */

typedef struct buffer {
    hy_buffer_kind kind;
    int32_t unit; /* -1: none */
    bool is_held; /* its unit is on the wire */
    int64_t used_at;
} buffer;

/* The walk of passes over units, as model/visit.c makes it, and the ring, as memory/store_ring.c keeps it. */
typedef struct walker {
    buffer ring[2 * HY_GATHERED_DEPTH + 1];
    int32_t buffers;
    int64_t clock;
    hy_buffer_kind *kinds; /* (units) */
    uint64_t *sent;        /* (units) when it is gathered; UINT64_MAX: it has no such weights */
    int32_t lowest, last;  /* unit that backward goes down to; the head */
    bool is_tied;          /* the head works with the table of unit 0 */
    hy_plan_load *load;    /* of the walk that goes on */
} walker;

static buffer *holder_of(walker *w, int32_t unit) {
    for (int32_t i = 0; i < w->buffers; i++) {
        if (w->ring[i].unit == unit) return &w->ring[i];
    }
    return NULL;
}

/* As hy_ring_choose. */
static buffer *choose(walker *w, hy_buffer_kind kind) {
    buffer *oldest = NULL;
    for (int32_t i = 0; i < w->buffers; i++) {
        buffer *b = &w->ring[i];
        if (b->kind != kind || b->is_held) continue;
        if (!oldest || b->used_at < oldest->used_at) oldest = b;
    }
    return oldest;
}

static void fetch(walker *w, int32_t unit) {
    buffer *b = holder_of(w, unit);
    if (w->sent[unit] == UINT64_MAX || (b && b->is_held)) return;
    if (!b) {
        b = choose(w, w->kinds[unit]);
        if (!b) return; /* the run would fail */
        *b = (buffer){.kind = b->kind, .unit = unit, .is_held = true};
        add(w->load, w->sent[unit]);
    }
    b->used_at = ++w->clock;
}

static void await(walker *w, int32_t unit) {
    fetch(w, unit);
    buffer *b = holder_of(w, unit);
    if (b) b->is_held = false;
}

static void with_table(walker *w, int32_t unit, void (*call)(walker *, int32_t)) {
    if (w->is_tied && unit == w->last) call(w, 0);
    call(w, unit);
}

static void visit(walker *w, int32_t unit, int32_t next) {
    if (next >= 0) with_table(w, next, fetch);
    with_table(w, unit, await);
}

/* The head is fetched in forward and visited in backward alone. */
static void walk_both(walker *w, hy_plan_load load[2]) {
    w->load = &load[HY_GOES_FORWARD];
    with_table(w, 0, fetch);
    for (int32_t unit = 0; unit < w->last; unit++) visit(w, unit, unit + 1);
    w->load = &load[HY_GOES_BACKWARD];
    with_table(w, w->last, fetch);
    for (int32_t unit = w->last; unit >= w->lowest; unit--) {
        visit(w, unit, unit > w->lowest ? unit - 1 : -1);
    }
}

static void add_buffers(walker *w, hy_buffer_kind kind, int32_t count) {
    for (int32_t i = 0; i < count; i++) w->ring[w->buffers++] = (buffer){.kind = kind, .unit = -1};
}

static void make_ring(walker *w, const hy_layout *layout, int32_t depth) {
    hy_ring_plan plan = hy_store_plan_ring(layout, depth, 0);
    hy_store_ring_kinds(layout, 0, w->kinds);
    w->buffers = 0;
    add_buffers(w, HY_BUFFER_ORDINARY, depth);
    add_buffers(w, HY_BUFFER_LARGE, plan.large_bytes > 0);
    add_buffers(w, HY_BUFFER_SMALL, plan.small_count);
}

static hy_status begin_walk(walker *w, const hy_rows *rows, const hy_params *params) {
    int32_t units = params->units;
    *w = (walker){.kinds = calloc((size_t)units, sizeof *w->kinds),
                  .sent = calloc((size_t)units, sizeof *w->sent),
                  .lowest = rows->lowest_trained,
                  .last = units - 1,
                  .is_tied = hy_params_tied_table(params) >= 0};
    HY_FAIL_IF(!w->kinds || !w->sent, HY_ERR_MEMORY, "no memory to count what ranks send");
    return HY_OK;
}

static void end_walk(walker *w) {
    free(w->kinds);
    free(w->sent);
}

/* A step begins with an empty ring, because weights have changed. What the ring holds at the end of a micro-batch is
 * the same for all of them. */
static hy_status gather(const hy_rows *rows, const hy_params *params, const hy_layout *whole,
                        hy_plan_traffic *out) {
    walker w;
    hy_status status = begin_walk(&w, rows, params);
    for (int32_t unit = 0; status == HY_OK && unit < whole->unit_count; unit++) {
        uint64_t part = (uint64_t)(rows->shard.count - 1) * own_part(rows, params, whole, unit);
        w.sent[unit] = whole->unit_bytes[unit] > 0 ? part : UINT64_MAX;
    }
    if (status == HY_OK) {
        make_ring(&w, &rows->row[HY_ROW_GATHERED].layout, HY_GATHERED_DEPTH);
        walk_both(&w, out->first);
        walk_both(&w, out->other);
    }
    end_walk(&w);
    return status;
}

/* Weights that are not trained do not change: a step goes on with what the ring holds of the one before. */
static hy_status gather_frozen(const hy_rows *rows, const hy_params *params, hy_plan_traffic *out) {
    const hy_row *frozen = &rows->row[HY_ROW_FROZEN];
    hy_plan_load before[2] = {{0}};
    walker w;
    if (!frozen->is_sharded) return HY_OK;
    hy_status status = begin_walk(&w, rows, params);
    for (int32_t unit = 0; status == HY_OK && unit < params->units; unit++) {
        uint64_t part = (uint64_t)(rows->shard.count - 1) * frozen->layout.unit_bytes[unit];
        w.sent[unit] = frozen->whole.unit_bytes[unit] > 0 ? part : UINT64_MAX;
    }
    if (status == HY_OK) {
        make_ring(&w, &rows->row[HY_ROW_GATHERED_FROZEN].layout, HY_FROZEN_DEPTH);
        walk_both(&w, before);
        walk_both(&w, out->first);
        walk_both(&w, out->other);
    }
    end_walk(&w);
    return status;
}

/* ---- a step ----------------------------------------------------------------------------------------- */

hy_status hy_plan_traffic_of(const hy_rows *rows, const hy_params *params, int stage,
                             int weights_row, hy_plan_traffic *out) {
    const hy_row *read = &rows->row[weights_row];
    *out = (hy_plan_traffic){0};
    if (!hy_rows_shard(rows)) return HY_OK;
    out->summed = (hy_plan_load){2 * sizeof(double) * (uint64_t)(rows->shard.count - 1), 1};
    give(rows, params, out);
    if (stage == 0) out->told = spread(rows, params, &rows->row[HY_ROW_GRADS].layout);
    HY_TRY(gather_frozen(rows, params, out));
    if (read->is_sharded) return gather(rows, params, &read->whole, out);
    if (stage > 0) out->updated = spread(rows, params, &read->layout);
    return HY_OK;
}

void hy_plan_give_once(hy_plan_traffic *t) {
    t->told.bytes += t->given.bytes;
    t->told.exchanges += t->given.exchanges;
    t->given = t->last = (hy_plan_load){0};
}
