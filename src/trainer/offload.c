/* offload.c: the optimizer's state in Predict. See trainer.h.
 *
 * Predict needs none of it. By strategy it stays (none), moves to the host and back (cpu, pinned), is
 * kept in 8 bits where the gradients were (compress), or is forgotten and begun anew (drop). The way
 * back may begin while Predict's last forward passes run, on the copy stream; the first update waits for
 * an event. Bits are the same for none, cpu and pinned. */
#include <string.h>

#include "base/error.h"
#include "trainer/memory_plan.h"

#define QUANT_BLOCK 256

/* ---- 8 bits ------------------------------------------------------------------------------------ */

static uint64_t code_bytes(int64_t count) {
    uint64_t blocks = ((uint64_t)count + QUANT_BLOCK - 1) / QUANT_BLOCK;
    return hy_align((uint64_t)count) + hy_align(blocks * sizeof(float));
}

static uint64_t compressed_bytes(const hy_trainer *t) {
    uint64_t bytes = 0;
    for (int k = 0; k < hy_optim_arrays(&t->engine); k++) {
        const hy_layout *layout = &t->engine.state.layouts.optim[k];
        for (int32_t i = 0; i < layout->item_count; i++)
            bytes += code_bytes(layout->items[i].count);
    }
    return bytes;
}

uint64_t hy_offload_host_bytes(const hy_trainer *t, uint64_t state_bytes) {
    return t->engine.optim.strategy == HY_OFFLOAD_COMPRESS ? compressed_bytes(t) : state_bytes;
}

/* The state is backed by the host, or there is none: nothing to send, and nothing to give up. */
static hy_status check_without_state(hy_trainer *t) {
    if (t->engine.optim.strategy != HY_OFFLOAD_DROP) {
        t->engine.optim.strategy = HY_OFFLOAD_NONE;
        return HY_OK;
    }
    return hy_fail(HY_ERR_INPUT,
                   "offload_strategy drop gives up optimizer state to free the device; with "
                   "optim_place pinned it is not there: choose none, or optim_place device");
}

/* compress halves and quarters what is wider, and puts it where the gradients were. State that has 8
 * bits anyway stays where it is. */
hy_status hy_offload_check(hy_trainer *t) {
    const hy_settings *s = &t->settings;
    hy_dtype dtype = HY_F32;
    if (hy_place_setting(s->memory.optim_place) != HY_DEVICE) return check_without_state(t);
    bool is_compressed = t->engine.optim.strategy == HY_OFFLOAD_COMPRESS;
    for (int k = 0; k < hy_optim_arrays(&t->engine); k++) { /* small tensors stay fp32 */
        const hy_layout *layout = &t->engine.state.layouts.optim[k];
        for (int32_t i = 0; i < layout->item_count; i++) {
            if (layout->items[i].dtype != HY_F32) dtype = layout->items[i].dtype;
        }
    }
    if (hy_optim_arrays(&t->engine) == 0 || (is_compressed && dtype == HY_U8)) {
        t->engine.optim.strategy = HY_OFFLOAD_NONE;
        return HY_OK;
    }
    if (!is_compressed) return HY_OK;
    bool has_room = compressed_bytes(t) <= t->engine.state.layouts.grads.bytes;
    bool is_room_here = hy_place_setting(s->memory.grads_place) == HY_DEVICE;
    if (dtype == HY_F32 && has_room && is_room_here) return HY_OK;
    return hy_fail(
        HY_ERR_INPUT,
        "offload_strategy compress keeps optimizer state in 8 bits where the gradients were: it "
        "needs optim_dtype fp32, grad_dtype fp32 and grads_place device; optim_dtype 8bit "
        "needs no compressing, and none, cpu, pinned and drop go with any");
}

/* Quantises or restores every tensor of the state; the codes lie in the gradients' memory, which is large
 * enough: for two arrays 2 bytes and a little against 4. */
static hy_status convert(hy_trainer *t, hy_op_kind kind) {
    char *at = hy_store_of(&t->engine, HY_ROW_GRADS)->data;
    for (int k = 0; k < hy_optim_arrays(&t->engine); k++) {
        const hy_store *store = hy_store_of(&t->engine, HY_ROW_OPTIM + k);
        bool is_signed = t->engine.update.optimizer.kind->arrays[k].is_signed;
        for (int32_t i = 0; i < store->layout.item_count; i++) {
            int64_t count = store->layout.items[i].count;
            int64_t blocks = (count + QUANT_BLOCK - 1) / QUANT_BLOCK;
            hy_tensor x = hy_tensor_1d(hy_store_backing(store, i), HY_F32, count);
            hy_tensor codes = hy_tensor_1d(at, HY_U8, count);
            hy_tensor scales = hy_tensor_1d(at + hy_align((uint64_t)count), HY_F32, blocks);
            hy_op_call call = {.kind = kind,
                               .attr.quantize = {.block = QUANT_BLOCK, .is_signed = is_signed}};
            bool is_forward = kind == HY_OP_QUANTIZE;
            call.t[is_forward ? HY_QUANTIZE_X : HY_DEQUANTIZE_X] = x;
            call.t[is_forward ? HY_QUANTIZE_CODES : HY_DEQUANTIZE_CODES] = codes;
            call.t[is_forward ? HY_QUANTIZE_SCALES : HY_DEQUANTIZE_SCALES] = scales;
            HY_TRY(t->engine.backend->enqueue(t->engine.compute, &call));
            at += code_bytes(count);
        }
    }
    return HY_OK;
}

static bool fits_in_gradients(const hy_trainer *t) {
    return compressed_bytes(t) <= hy_store_of(&t->engine, HY_ROW_GRADS)->layout.bytes;
}

/* ---- moving ------------------------------------------------------------------------------------ */

static hy_place host_place(const hy_trainer *t) {
    return t->engine.optim.strategy == HY_OFFLOAD_CPU ? HY_HOST : HY_PINNED;
}

/* Unit by unit, so that copies of one unit can begin while others still wait. */
static hy_status move_units(hy_trainer *t, bool to_host) {
    int arrays = hy_optim_arrays(&t->engine);
    for (int32_t u = 0; u < t->engine.model->params.units; u++) {
        char *begin = t->engine.optim.host;
        for (int k = 0; k < arrays; k++) {
            const hy_store *store = hy_store_of(&t->engine, HY_ROW_OPTIM + k);
            uint64_t offset = store->layout.unit_offset[u], bytes = store->layout.unit_bytes[u];
            char *device = store->data + offset, *host = begin + offset;
            HY_TRY(t->engine.backend->copy(t->engine.copies, to_host ? host : device,
                                           to_host ? device : host, bytes));
            t->engine.bytes_moved += bytes;
            begin += store->layout.bytes;
        }
    }
    return HY_OK;
}

static hy_status send_to_host(hy_trainer *t) {
    uint64_t bytes = t->engine.optim.bytes;
    double begin = hy_clock();
    HY_TRY(move_units(t, true));
    HY_TRY(t->engine.backend->stream_sync(t->engine.copies));
    t->engine.host_waited += hy_clock() - begin;
#ifdef HY_POISON
    if (!t->engine.backend->facts.is_gpu) {
        for (int k = 0; k < hy_optim_arrays(&t->engine); k++) { /* who reads it now gets NaN */
            const hy_store *store = hy_store_of(&t->engine, HY_ROW_OPTIM + k);
            memset(store->data, 0xff, store->layout.bytes);
        }
    }
#endif
    hy_ledger_give(&t->engine.ledger, HY_OPTIM, HY_DEVICE, bytes);
    hy_ledger_take(&t->engine.ledger, HY_OPTIM, host_place(t), bytes);
    return HY_OK;
}

static hy_status compress(hy_trainer *t) {
    uint64_t bytes = t->engine.optim.bytes;
    if (!fits_in_gradients(t)) {
        return hy_fail(HY_ERR_INTERNAL,
                       "8-bit state of %llu bytes does not fit the gradients' %llu",
                       (unsigned long long)compressed_bytes(t),
                       (unsigned long long)hy_store_of(&t->engine, HY_ROW_GRADS)->layout.bytes);
    }
    HY_TRY(convert(t, HY_OP_QUANTIZE));
    HY_TRY(t->engine.backend->stream_sync(t->engine.compute));
    hy_ledger_give(&t->engine.ledger, HY_OPTIM, HY_DEVICE, bytes);
    hy_ledger_take(&t->engine.ledger, HY_OPTIM, HY_DEVICE, compressed_bytes(t));
    return HY_OK;
}

hy_status hy_trainer_send_optimizer(hy_trainer *t) {
    HY_TRY(hy_trainer_finish_update(t));
    if (t->engine.optim.strategy == HY_OFFLOAD_NONE || t->engine.optim.is_away) return HY_OK;
    HY_TRY(t->engine.backend->stream_sync(t->engine.compute)); /* it leaves on another stream */
    if (t->engine.optim.strategy == HY_OFFLOAD_COMPRESS) {
        HY_TRY(compress(t));
    } else if (t->engine.optim.strategy == HY_OFFLOAD_DROP) {
        hy_ledger_give(&t->engine.ledger, HY_OPTIM, HY_DEVICE, t->engine.optim.bytes);
    } else {
        HY_TRY(send_to_host(t));
    }
    t->engine.optim.is_away = true; /* once it is: a way that fails can be gone again */
    t->engine.optim.is_restore_begun = false;
    return HY_OK;
}

/* ---- coming back ------------------------------------------------------------------------------- */

static hy_status zero_state(hy_trainer *t) {
    for (int k = 0; k < hy_optim_arrays(&t->engine); k++) {
        HY_TRY(hy_trainer_zero(t, hy_store_of(&t->engine, HY_ROW_OPTIM + k)));
    }
    t->progress.updates = 0; /* Adam's bias correction begins anew with it */
    return HY_OK;
}

/* 8-bit state lies where the next gradients go, so it has to be out of there first. */
bool hy_trainer_restores_ahead(const hy_trainer *t) {
    bool is_asked = t->settings.memory.async_restore && t->settings.memory.lookahead > 0;
    return is_asked && t->engine.optim.strategy != HY_OFFLOAD_COMPRESS;
}

hy_status hy_trainer_begin_restore(hy_trainer *t) {
    bool moves =
        t->engine.optim.strategy == HY_OFFLOAD_CPU || t->engine.optim.strategy == HY_OFFLOAD_PINNED;
    if (!t->engine.optim.is_away || t->engine.optim.is_restore_begun || !moves) return HY_OK;
    uint64_t bytes = t->engine.optim.bytes;
    HY_TRY(move_units(t, false));
    HY_TRY(t->engine.backend->event_record(t->engine.optim.is_back, t->engine.copies));
    t->engine.optim.is_restore_begun = true; /* once all of it is on its way */
    hy_ledger_give(&t->engine.ledger, HY_OPTIM, host_place(t), bytes);
    hy_ledger_take(&t->engine.ledger, HY_OPTIM, HY_DEVICE, bytes);
    return HY_OK;
}

static hy_status bring_back(hy_trainer *t) {
    uint64_t bytes = t->engine.optim.bytes;
    if (t->engine.optim.strategy == HY_OFFLOAD_COMPRESS) {
        HY_TRY(convert(t, HY_OP_DEQUANTIZE));
        hy_ledger_give(&t->engine.ledger, HY_OPTIM, HY_DEVICE, compressed_bytes(t));
        hy_ledger_take(&t->engine.ledger, HY_OPTIM, HY_DEVICE, bytes);
        return HY_OK;
    }
    if (t->engine.optim.strategy == HY_OFFLOAD_DROP) {
        HY_TRY(zero_state(t));
        hy_ledger_take(&t->engine.ledger, HY_OPTIM, HY_DEVICE, bytes);
        return HY_OK;
    }
    HY_TRY(hy_trainer_begin_restore(t));
    return t->engine.backend->stream_wait(t->engine.compute, t->engine.optim.is_back);
}

hy_status hy_trainer_await_optimizer(hy_trainer *t) {
    if (!t->engine.optim.is_away) return HY_OK;
    HY_TRY(bring_back(t));
    t->engine.optim.is_away = false;
    return HY_OK;
}
