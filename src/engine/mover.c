/* mover.c: rows that travel: the optimizer's state in Predict, a fork's copy, the snapshot. See engine.h.
 *
 * Predict needs no optimizer state. By strategy it stays (none), goes to the host and back (cpu, pinned),
 * is kept in 8 bits where the gradients were (compress), or is forgotten and begun anew (drop). The way
 * back may begin while Predict's last forward passes run; both ways have a stream of their own, and the
 * first update waits for an event. Bits are the same for none, cpu and pinned. */
#include <string.h>

#include "base/error.h"
#include "engine/engine.h"

/* ---- the optimizer's rows ---------------------------------------------------------------------------- */

static uint64_t optim_bytes(const hy_engine *e) {
    uint64_t bytes = 0;
    for (int i = 0; i < e->rows.optim_count; i++)
        bytes += e->rows.row[HY_ROW_OPTIM + i].layout.bytes;
    return bytes;
}

hy_status hy_mover_take(hy_engine *e) {
    hy_place place = !hy_offload_moves(e->plan.offload)  ? HY_NOWHERE
                     : e->plan.offload == HY_OFFLOAD_CPU ? HY_HOST
                                                         : HY_PINNED;
    if (place != e->trip.place) hy_mover_release(e); /* the plan before had another strategy */
    if (place == HY_NOWHERE || e->trip.host) return HY_OK;
    e->trip.place = place;
    return e->backend->alloc(e->backend, place, optim_bytes(e), (void **)&e->trip.host);
}

void hy_mover_release(hy_engine *e) {
    if (e->trip.host) e->backend->release(e->backend, e->trip.place, e->trip.host, 0);
    e->trip.host = NULL;
}

uint64_t hy_mover_reserved(const hy_engine *e, hy_place place) {
    return e->trip.host && place == e->trip.place ? optim_bytes(e) : 0;
}

/* Where it is live, in the ledger. */
static void book(hy_engine *e, hy_place from, uint64_t given, hy_place to, uint64_t taken) {
    if (given) hy_ledger_give(&e->ledger, HY_OPTIM, from, given);
    if (taken) hy_ledger_take(&e->ledger, HY_OPTIM, to, taken);
}

/* ---- 8 bits ------------------------------------------------------------------------------------------ */

/* Quantises or restores a tensor; its codes and their scales lie at `at`. */
static hy_status convert_item(hy_engine *e, int array, int32_t item, char *at, bool to_codes) {
    hy_store *store = hy_store_of(e, HY_ROW_OPTIM + array);
    int64_t count = store->layout.items[item].count;
    int64_t blocks = (count + HY_QUANT_BLOCK - 1) / HY_QUANT_BLOCK;
    hy_tensor x = hy_tensor_1d(hy_store_backing(store, item), HY_F32, count);
    hy_tensor codes = hy_tensor_1d(at, HY_U8, count);
    hy_tensor scales = hy_tensor_1d(at + hy_align((uint64_t)count), HY_F32, blocks);
    hy_op_call call = {
        .kind = to_codes ? HY_OP_QUANTIZE : HY_OP_DEQUANTIZE,
        .attr.quantize = {.block = HY_QUANT_BLOCK, .is_signed = hy_optim_array_is_signed(array)}};
    if (to_codes) {
        call.t[HY_QUANTIZE_X] = x;
        call.t[HY_QUANTIZE_CODES] = codes;
        call.t[HY_QUANTIZE_SCALES] = scales;
    } else {
        call.t[HY_DEQUANTIZE_CODES] = codes;
        call.t[HY_DEQUANTIZE_SCALES] = scales;
        call.t[HY_DEQUANTIZE_X] = x;
    }
    return e->backend->enqueue(e->compute, &call);
}

/* Every array of every parameter; the codes lie in the gradients' memory, which is at least as large: a byte
 * and a little for each array against 4 (hy_offload_settle). */
static hy_status convert(hy_engine *e, bool to_codes) {
    char *at = hy_store_of(e, HY_ROW_GRADS)->data;
    for (int k = 0; k < e->rows.optim_count; k++) {
        const hy_layout *layout = &e->rows.row[HY_ROW_OPTIM + k].layout;
        for (int32_t item = 0; item < layout->item_count; item++) {
            HY_TRY(convert_item(e, k, item, at, to_codes));
            at += hy_quant_bytes(layout->items[item].count);
        }
    }
    return HY_OK;
}

/* ---- leaving ------------------------------------------------------------------------------------------- */

/* Unit by unit, so that copies of one unit can begin while others still wait. */
static hy_status move_units(hy_engine *e, bool to_host) {
    int32_t units = e->rows.row[HY_ROW_OPTIM].layout.unit_count;
    for (int32_t u = 0; u < units; u++) {
        char *host = e->trip.host;
        for (int k = 0; k < e->rows.optim_count; k++) {
            const hy_store *store = hy_store_of(e, HY_ROW_OPTIM + k);
            uint64_t offset = store->layout.unit_offset[u], bytes = store->layout.unit_bytes[u];
            char *device = store->data + offset, *away = host + offset;
            HY_TRY(e->backend->copy(e->trip.stream, to_host ? away : device,
                                    to_host ? device : away, bytes));
            e->bytes_moved += bytes;
            host += store->layout.bytes;
        }
    }
    return HY_OK;
}

/* The host's copy is live once it is on its way, the device's until it has arrived. */
static hy_status send_to_host(hy_engine *e) {
    HY_TRY(move_units(e, true));
    book(e, HY_NOWHERE, 0, e->trip.place, optim_bytes(e));
    e->trip.state = HY_TRIP_LEAVING;
    return hy_mover_is_ahead(e) ? HY_OK : hy_mover_see_off(e);
}

hy_status hy_mover_see_off(hy_engine *e) {
    if (e->trip.state != HY_TRIP_LEAVING) return HY_OK;
    double begin = hy_clock();
    HY_TRY(e->backend->stream_sync(e->trip.stream));
    e->host_waited += hy_clock() - begin;
#ifdef HY_POISON
    for (int k = 0; k < e->rows.optim_count && !e->backend->facts.is_gpu; k++) {
        hy_store *store = hy_store_of(e, HY_ROW_OPTIM + k);
        memset(store->data, 0xff, store->layout.bytes); /* whoever reads it now gets NaN */
    }
#endif
    book(e, HY_DEVICE, optim_bytes(e), HY_NOWHERE, 0);
    e->trip.state = HY_TRIP_AWAY;
    return HY_OK;
}

static hy_status compress(hy_engine *e) {
    HY_TRY(convert(e, true));
    HY_TRY(e->backend->stream_sync(e->compute));
    book(e, HY_DEVICE, optim_bytes(e), HY_DEVICE, hy_offload_compressed_bytes(&e->rows));
    return HY_OK;
}

hy_status hy_mover_leave(hy_engine *e) {
    HY_TRY(hy_update_finish(e));
    if (e->plan.offload == HY_OFFLOAD_NONE || e->trip.state != HY_TRIP_HERE) return HY_OK;
    HY_TRY(e->backend->stream_sync(e->compute)); /* it leaves on another stream */
    if (hy_offload_moves(e->plan.offload)) return send_to_host(e);
    if (e->plan.offload == HY_OFFLOAD_COMPRESS) {
        HY_TRY(compress(e));
    } else {
        book(e, HY_DEVICE, optim_bytes(e), HY_NOWHERE, 0);
    }
    e->trip.state = HY_TRIP_AWAY; /* once it is: a way that fails can be gone again */
    return HY_OK;
}

/* ---- coming back --------------------------------------------------------------------------------------- */

/* 8-bit state lies where the next gradients go, so it has to be out of there first. */
bool hy_mover_is_ahead(const hy_engine *e) {
    bool is_asked = e->settings->memory.async_restore && e->settings->memory.lookahead > 0;
    return is_asked && e->plan.offload != HY_OFFLOAD_COMPRESS;
}

/* Ahead of need, on its own stream. */
static hy_status prefetch(hy_engine *e) {
    if (e->trip.state != HY_TRIP_AWAY || !hy_offload_moves(e->plan.offload)) return HY_OK;
    HY_TRY(move_units(e, false));
    HY_TRY(e->backend->event_record(e->trip.is_back, e->trip.stream));
    e->trip.state = HY_TRIP_COMING; /* once all of it is on its way */
    book(e, e->trip.place, optim_bytes(e), HY_DEVICE, optim_bytes(e));
    return HY_OK;
}

hy_status hy_mover_return(hy_engine *e) { return hy_mover_is_ahead(e) ? prefetch(e) : HY_OK; }

hy_status hy_mover_count_down(hy_engine *e) {
    int64_t lookahead = e->settings->memory.lookahead;
    if (e->trip.batches_left <= 0) return HY_OK;
    e->trip.batches_left--;
    bool is_due = e->settings->memory.async_restore && lookahead > 0;
    return is_due && e->trip.batches_left <= lookahead ? prefetch(e) : HY_OK;
}

/* It is on the device again, by whatever way. */
static void end_trip(hy_engine *e) {
    hy_offload strategy = e->plan.offload;
    if (strategy == HY_OFFLOAD_COMPRESS) {
        book(e, HY_DEVICE, hy_offload_compressed_bytes(&e->rows), HY_DEVICE, optim_bytes(e));
    } else if (strategy == HY_OFFLOAD_DROP) {
        book(e, HY_NOWHERE, 0, HY_DEVICE, optim_bytes(e));
    } else if (e->trip.state == HY_TRIP_AWAY) {
        book(e, e->trip.place, optim_bytes(e), HY_DEVICE, optim_bytes(e));
    } else if (e->trip.state == HY_TRIP_LEAVING) {
        book(e, e->trip.place, optim_bytes(e), HY_NOWHERE, 0);
    }
    e->trip.state = HY_TRIP_HERE;
}

hy_status hy_mover_await(hy_engine *e) {
    if (e->trip.state == HY_TRIP_HERE) return HY_OK;
    if (e->plan.offload == HY_OFFLOAD_COMPRESS) {
        HY_TRY(convert(e, false));
    } else if (e->plan.offload == HY_OFFLOAD_DROP) {
        for (int k = 0; k < e->rows.optim_count; k++) HY_TRY(hy_row_zero(e, HY_ROW_OPTIM + k));
        e->progress.updates = 0; /* the optimizer's clock begins anew with it */
    } else {
        HY_TRY(hy_mover_see_off(e));
        HY_TRY(prefetch(e));
        HY_TRY(e->backend->stream_wait(e->compute, e->trip.is_back));
    }
    end_trip(e);
    return HY_OK;
}

/* ---- whole rows ------------------------------------------------------------------------------------------ */

/* What is put back is the optimizer's state too: an arm that broke off in Predict has left it away. */
hy_status hy_mover_copy_forked(hy_engine *e, char *host, bool to_host) {
    HY_TRY(hy_update_finish(e));
    HY_TRY(hy_engine_sync(e));
    if (!to_host && e->trip.state != HY_TRIP_HERE) end_trip(e);
    for (int i = 0; i < HY_ROW_COUNT; i++) {
        hy_store *store = hy_store_of(e, i);
        uint64_t bytes = e->rows.row[i].layout.bytes;
        const hy_state_kind *kind = e->rows.row[i].kind;
        if (!kind || !kind->is_restored) continue;
        if (!to_host) hy_row_changed(e, i);
        HY_TRY(to_host ? hy_store_read(store, e->compute, 0, host, bytes)
                       : hy_store_write(store, e->compute, 0, host, bytes));
        HY_TRY(hy_store_settle(store));
        host += bytes;
    }
    e->bytes_moved += hy_rows_forked_bytes(&e->rows);
    return HY_OK;
}

/* The snapshot has the weights' type, so both lie the same way: tiles back to back are parameters. */
hy_status hy_mover_copy_weights(hy_engine *e, int row, bool to_row) {
    hy_store *weights = hy_store_of(e, HY_ROW_MASTER), *kept = hy_store_of(e, row);
    HY_TRY(hy_update_finish(e));
    HY_TRY(e->backend->stream_sync(e->compute));
    hy_row_changed(e, to_row ? row : HY_ROW_MASTER);
    if (hy_engine_has_ranks(e)) return hy_engine_copy_slices(e, row, to_row);
    double begin = hy_clock();
    HY_TRY(to_row ? hy_store_copy(kept, weights, e->compute)
                  : hy_store_copy(weights, kept, e->compute));
    e->host_waited += hy_clock() - begin;
    e->bytes_moved += weights->layout.bytes;
    return HY_OK;
}
