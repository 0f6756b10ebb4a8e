/* offload.c: moves the optimizer's state off the device in phases without updates, and back. See
 * state.h.
 *
 * Predict and Evaluate need no optimizer state. Depending on the strategy it stays (none), moves to
 * the host and back (cpu, pinned), is kept in 8 bits in the memory of the gradients (compress), or
 * is dropped and starts at zero again (drop). The return may start during Predict's last forward
 * passes. Each direction has its own stream, and the first update waits for an event. none, cpu and
 * pinned give the same bits. */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "state/state.h"

static hy_store *optim_store(hy_state *s, int array) {
    return &s->rows->row[HY_ROW_OPTIM + array].store;
}

hy_status hy_offload_take(hy_state *s, hy_offload strategy) {
    hy_arena *host = &s->offload.host;
    hy_place place = strategy == HY_OFFLOAD_CPU ? HY_HOST : HY_PINNED;
    bool moves = hy_offload_moves(strategy);
    if (host->data && (!moves || host->place != place)) {
        HY_TRY(hy_offload_await(s)); /* the state may be in this memory now */
        HY_TRY(s->device->backend->stream_sync(s->device->moves));
        hy_arena_fini(host);
    }
    if (!moves || host->data) return HY_OK;
    return hy_arena_init(host, s->device->backend, &s->ledger, place, hy_rows_optim_bytes(s->rows),
                         "optimizer state in Predict");
}

static void book(hy_state *s, hy_place place, uint64_t bytes, bool is_live) {
    (is_live ? hy_ledger_take : hy_ledger_give)(&s->ledger, HY_OPTIM, place, bytes);
}

/* Marks the device bytes of the optimizer's state as live, or as free. */
static void book_here(hy_state *s, bool is_live) {
    book(s, HY_DEVICE, hy_rows_optim_bytes(s->rows), is_live);
#ifdef HY_POISON
    for (int k = 0; k < s->rows->optim_count && !is_live && !s->device->backend->facts.is_gpu;
         k++) {
        /* A wrong read gives NaN. */
        memset(optim_store(s, k)->data, 0xff, optim_store(s, k)->layout.bytes);
    }
#endif
}

static void book_host(hy_state *s, bool is_live) {
    book(s, s->offload.host.place, hy_rows_optim_bytes(s->rows), is_live);
}

static void book_compressed(hy_state *s, bool is_live) {
    book(s, HY_DEVICE, hy_offload_compressed_bytes(s->rows), is_live);
}

/* ---- 8 bits ---------------------------------------------------------------------------------- */

/* Quantises or restores a tensor; its 8-bit values and their scales are at `at`. */
static hy_status convert_item(hy_state *s, int array, int32_t item, char *at, bool to_codes) {
    const hy_store *store = optim_store(s, array);
    int64_t count = store->layout.items[item].count;
    int64_t blocks = (count + HY_QUANT_BLOCK - 1) / HY_QUANT_BLOCK;
    hy_tensor x = hy_tensor_1d(hy_store_backing(store, item), HY_F32, count);
    hy_tensor codes = hy_tensor_1d(at, HY_U8, count);
    hy_tensor scales = hy_tensor_1d(at + hy_align((uint64_t)count), HY_F32, blocks);
    hy_op_call call = {
        .kind = to_codes ? HY_OP_QUANTIZE : HY_OP_DEQUANTIZE,
        .attr.quantize = {.block = HY_QUANT_BLOCK, .is_signed = hy_optim_array_is_signed(array)}};
    call.t[to_codes ? HY_QUANTIZE_X : HY_DEQUANTIZE_X] = x;
    call.t[to_codes ? HY_QUANTIZE_CODES : HY_DEQUANTIZE_CODES] = codes;
    call.t[to_codes ? HY_QUANTIZE_SCALES : HY_DEQUANTIZE_SCALES] = scales;
    return s->device->backend->enqueue(s->device->compute, &call);
}

/* Converts every array of every parameter. The gradients' memory is large enough: it has 4 bytes
 * per element, and each array needs slightly more than one (hy_offload_decide in plan/problem.c
 * checks it). */
static hy_status convert(hy_state *s, bool to_codes) {
    char *at = s->rows->row[HY_ROW_GRADS].store.data;
    for (int k = 0; k < s->rows->optim_count; k++) {
        const hy_layout *layout = &s->rows->row[HY_ROW_OPTIM + k].layout;
        for (int32_t item = 0; item < layout->item_count; item++) {
            HY_TRY(convert_item(s, k, item, at, to_codes));
            at += hy_quant_bytes(layout->items[item].count);
        }
    }
    return HY_OK;
}

/* ---- leaving --------------------------------------------------------------------------------- */

/* Copies unit by unit, so that the first copies start early. */
static hy_status copy_units(hy_state *s, bool to_host) {
    int32_t units = s->rows->row[HY_ROW_OPTIM].layout.unit_count;
    for (int32_t u = 0; u < units; u++) {
        char *host = s->offload.host.data;
        for (int k = 0; k < s->rows->optim_count; k++) {
            hy_store *store = optim_store(s, k);
            HY_TRY(hy_store_copy_unit(store, s->device->moves, u,
                                      host + store->layout.unit_offset[u], to_host));
            host += store->layout.bytes;
        }
    }
    return HY_OK;
}

hy_status hy_offload_wait_away(hy_state *s) {
    if (s->offload.where != HY_OPTIM_LEAVING) return HY_OK;
    double begin = hy_clock();
    HY_TRY(s->device->backend->stream_sync(s->device->moves));
    s->host_waited += hy_clock() - begin;
    book_here(s, false);
    s->offload.where = HY_OPTIM_AWAY;
    return HY_OK;
}

hy_status hy_offload_begin(hy_state *s, hy_offload strategy) {
    hy_optim_where *where = &s->offload.where;
    if (strategy == HY_OFFLOAD_NONE || *where != HY_OPTIM_HERE) return HY_OK;
    /* Another stream copies the state, so compute must be idle. */
    HY_TRY(s->device->backend->stream_sync(s->device->compute));
    if (hy_offload_moves(strategy)) {
        /* The host's copy is live when the transfer starts; the device's until it has ended. */
        HY_TRY(copy_units(s, true));
        book_host(s, true);
        *where = HY_OPTIM_LEAVING;
        return s->offload.lookahead > 0 ? HY_OK : hy_offload_wait_away(s);
    }
    bool is_compressed = strategy == HY_OFFLOAD_COMPRESS;
    if (is_compressed) {
        HY_TRY(convert(s, true));
        HY_TRY(s->device->backend->stream_sync(s->device->compute));
    }
    book_here(s, false);
    if (is_compressed) book_compressed(s, true);
    *where = is_compressed ? HY_OPTIM_COMPRESSED : HY_OPTIM_DROPPED;
    return HY_OK;
}

/* ---- coming back ----------------------------------------------------------------------------- */

/* Starts the return before the state is needed, on its own stream. */
static hy_status prefetch(hy_state *s) {
    if (s->offload.where != HY_OPTIM_AWAY) return HY_OK;
    HY_TRY(copy_units(s, false));
    HY_TRY(s->device->backend->event_record(s->offload.is_back, s->device->moves));
    s->offload.where = HY_OPTIM_COMING; /* set when all copies have started */
    book_host(s, false);
    book_here(s, true);
    return HY_OK;
}

hy_status hy_offload_return(hy_state *s) { return s->offload.lookahead > 0 ? prefetch(s) : HY_OK; }

hy_status hy_offload_count_down(hy_state *s) {
    hy_offload_state *o = &s->offload;
    if (o->batches_left <= 0) return HY_OK;
    o->batches_left--;
    return o->lookahead > 0 && o->batches_left <= o->lookahead ? prefetch(s) : HY_OK;
}

void hy_offload_forget(hy_state *s) {
    hy_optim_where where = s->offload.where;
    if (where == HY_OPTIM_COMPRESSED) book_compressed(s, false);
    if (where == HY_OPTIM_LEAVING || where == HY_OPTIM_AWAY) book_host(s, false);
    bool was_here = where == HY_OPTIM_HERE || where == HY_OPTIM_LEAVING || where == HY_OPTIM_COMING;
    if (!was_here) book_here(s, true);
    s->offload.where = HY_OPTIM_HERE;
}

hy_status hy_offload_await(hy_state *s) {
    switch (s->offload.where) {
    case HY_OPTIM_HERE: return HY_OK;
    case HY_OPTIM_COMPRESSED: HY_TRY(convert(s, false)); break;
    case HY_OPTIM_DROPPED:
        for (int k = 0; k < s->rows->optim_count; k++) HY_TRY(hy_row_zero(s, HY_ROW_OPTIM + k));
        break;
    case HY_OPTIM_LEAVING:
    case HY_OPTIM_AWAY:
    case HY_OPTIM_COMING:
        HY_TRY(hy_offload_wait_away(s));
        HY_TRY(prefetch(s));
        HY_TRY(s->device->backend->stream_wait(s->device->compute, s->offload.is_back));
    }
    hy_offload_forget(s);
    return HY_OK;
}
