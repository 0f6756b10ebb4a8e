/* own_offload.c: where m and v are while nothing needs them. See own_model.h.
 *
 * cpu and pinned carry them to another allocation and back, bit for bit. compress keeps the 8-bit codes that
 * the optimizers of other runs have; drop forgets them and restarts the bias correction. The ledger is told
 * what is live on the compute side. Under HY_POISON that side is filled with NaN while they are away, so
 * that a use in Predict shows. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cpu/codes.h"
#include "own/own_model.h"

#define BLOCK 256 /* elements that share a scale */

static int64_t block_count(const hy_own_run *run) {
    return (run->loop->elements + BLOCK - 1) / BLOCK;
}

/* Bytes that are live instead of m and v while they are away. */
static uint64_t away_bytes(const hy_own_run *run) {
    uint64_t elements = (uint64_t)run->loop->elements, blocks = (uint64_t)block_count(run);
    switch (run->offload.kind) {
    case HY_OFFLOAD_CPU:
    case HY_OFFLOAD_PINNED: return 2 * elements * sizeof(float);
    case HY_OFFLOAD_COMPRESS: return 2 * (blocks * sizeof(float) + elements);
    default: return 0;
    }
}

hy_status hy_own_offload_init(hy_own_run *run) {
    hy_own_offload *o = &run->offload;
    o->kind = run->settings.memory.offload_strategy;
    size_t bytes = away_bytes(run);
    if (bytes > 0) o->away = calloc(bytes, 1);
    HY_FAIL_IF(bytes > 0 && !o->away, HY_ERR_MEMORY,
               "no memory for optimizer state away from compute: %zu bytes", bytes);
    return HY_OK;
}

/* m (first) or v into 8 bits or back: scales of both come first, then codes of both. v is divided by: no
 * code but that of zero stands for zero. */
static void convert(hy_own_run *run, float *state, bool is_m, bool is_leaving) {
    int64_t elements = run->loop->elements, blocks = block_count(run);
    float *scales = run->offload.away + (is_m ? 0 : blocks);
    uint8_t *codes = (uint8_t *)(run->offload.away + 2 * blocks) + (is_m ? 0 : elements);
    for (int64_t at = 0; at < elements; at += BLOCK) {
        int64_t n = elements - at < BLOCK ? elements - at : BLOCK;
        if (is_leaving) {
            scales[at / BLOCK] = hy_encode_block(state + at, n, is_m, codes + at);
        } else {
            hy_decode_block(codes + at, n, is_m, scales[at / BLOCK], state + at);
        }
    }
}

uint64_t hy_own_offload_move(hy_own_run *run, bool is_leaving) {
    hy_own_offload *o = &run->offload;
    hy_loop *loop = run->loop;
    size_t bytes = (size_t)loop->elements * sizeof(float);
    if (o->kind == HY_OFFLOAD_NONE || o->is_away == is_leaving) return 0;
    for (int i = 0; i < 2; i++) {
        float *state = i == 0 ? loop->m : loop->v;
        if (o->kind == HY_OFFLOAD_COMPRESS) {
            convert(run, state, i == 0, is_leaving);
        } else if (o->kind == HY_OFFLOAD_DROP) {
            memset(state, 0, bytes);
            if (!is_leaving) loop->updates = 0; /* the bias correction begins anew */
        } else {
            float *copy = o->away + i * loop->elements;
            memcpy(is_leaving ? copy : state, is_leaving ? state : copy, bytes);
        }
#ifdef HY_POISON
        for (int64_t j = 0; is_leaving && j < loop->elements; j++) state[j] = NAN;
#endif
    }
    o->is_away = is_leaving;
    hy_place place = o->kind == HY_OFFLOAD_CPU      ? HY_HOST
                     : o->kind == HY_OFFLOAD_PINNED ? HY_PINNED
                                                    : HY_DEVICE;
    uint64_t here = 2 * bytes, away = away_bytes(run);
    hy_ledger_give(&run->ledger, HY_OPTIM, is_leaving ? HY_DEVICE : place,
                   is_leaving ? here : away);
    hy_ledger_take(&run->ledger, HY_OPTIM, is_leaving ? place : HY_DEVICE,
                   is_leaving ? away : here);
    return o->kind == HY_OFFLOAD_COMPRESS ? 0 : away;
}
