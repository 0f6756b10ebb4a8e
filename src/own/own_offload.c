/* own_offload.c: where m and v are while nothing needs them. See own_model.h.
 *
 * cpu and pinned carry them to another allocation and back, bit for bit. compress turns them into
 * 8-bit codes, 256 elements to a scale; drop forgets them and restarts the bias correction. The
 * ledger is told what is live on the compute side. Under HY_POISON that side is filled with NaN
 * while they are away, so that a use in Predict shows. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "own/own_model.h"

#define BLOCK 256 /* elements that share a scale */
#define M_CODES 127.0f
#define V_CODES 255.0f

static int64_t block_count(const hy_own_run *run) {
    return (run->loop->elements + BLOCK - 1) / BLOCK;
}

static uint64_t state_bytes(const hy_own_run *run) {
    return 2 * (uint64_t)run->loop->elements * sizeof(float);
}

/* Bytes that are live instead of m and v while they are away. */
static uint64_t away_bytes(const hy_own_run *run) {
    switch (run->offload.kind) {
    case HY_OFFLOAD_CPU:
    case HY_OFFLOAD_PINNED: return state_bytes(run);
    case HY_OFFLOAD_COMPRESS:
        return 2 * ((uint64_t)block_count(run) * sizeof(float) + (uint64_t)run->loop->elements);
    default: return 0;
    }
}

hy_status hy_own_offload_init(hy_own_run *run) {
    hy_own_offload *o = &run->offload;
    o->kind = run->settings.memory.offload_strategy;
    size_t bytes = away_bytes(run);
    if (bytes == 0) return HY_OK;
    o->away = calloc(bytes, 1);
    if (o->away) return HY_OK;
    return hy_fail(HY_ERR_MEMORY, "no memory for optimizer state away from compute: %zu bytes",
                   bytes);
}

/* ---- 8 bits ---------------------------------------------------------------------------------- */

static int8_t m_code(float steps) { return (int8_t)lrintf(fmaxf(-M_CODES, fminf(M_CODES, steps))); }

/* m: codes -127 .. 127 of equal steps. */
static float encode_m(const float *m, int64_t n, int8_t *codes) {
    float most = 0;
    for (int64_t i = 0; i < n; i++) most = fmaxf(most, fabsf(m[i]));
    float scale = most / M_CODES;
    for (int64_t i = 0; i < n; i++) codes[i] = scale > 0 ? m_code(m[i] / scale) : 0;
    return scale;
}

/* v: codes 0 .. 255 of equal steps of its root, rounded up. Adam divides by the root: one that
 * came out as zero would make a step of any length. Rounded up it is at least a 255th of the
 * block's largest, about the error that m has, so no step grows beyond the usual. */
static float encode_v(const float *v, int64_t n, uint8_t *codes) {
    float most = 0;
    for (int64_t i = 0; i < n; i++) most = fmaxf(most, v[i]);
    float scale = sqrtf(most) / V_CODES;
    for (int64_t i = 0; i < n; i++) {
        codes[i] = scale > 0 ? (uint8_t)fminf(ceilf(sqrtf(v[i]) / scale), V_CODES) : 0;
    }
    return scale;
}

/* Scales of m and v, then codes of m and v. */
static void convert(hy_own_run *run, bool is_leaving) {
    hy_loop *loop = run->loop;
    float *m_scales = run->offload.away, *v_scales = m_scales + block_count(run);
    int8_t *m_codes = (int8_t *)(v_scales + block_count(run));
    uint8_t *v_codes = (uint8_t *)m_codes + loop->elements;
    for (int64_t at = 0, block = 0; at < loop->elements; at += BLOCK, block++) {
        int64_t n = loop->elements - at < BLOCK ? loop->elements - at : BLOCK;
        if (is_leaving) {
            m_scales[block] = encode_m(loop->m + at, n, m_codes + at);
            v_scales[block] = encode_v(loop->v + at, n, v_codes + at);
            continue;
        }
        for (int64_t i = at; i < at + n; i++) {
            float root = (float)v_codes[i] * v_scales[block];
            loop->m[i] = (float)m_codes[i] * m_scales[block];
            loop->v[i] = root * root;
        }
    }
}

/* ---- leaving and coming back ----------------------------------------------------------------- */

/* Tells the ledger; how many bytes went from one place to another. */
static uint64_t book(hy_own_run *run, bool is_leaving) {
    hy_own_offload *o = &run->offload;
    hy_place place = o->kind == HY_OFFLOAD_CPU      ? HY_HOST
                     : o->kind == HY_OFFLOAD_PINNED ? HY_PINNED
                                                    : HY_DEVICE;
    uint64_t here = state_bytes(run), away = away_bytes(run);
    hy_ledger_give(&run->ledger, HY_OPTIM, is_leaving ? HY_DEVICE : place,
                   is_leaving ? here : away);
    hy_ledger_take(&run->ledger, HY_OPTIM, is_leaving ? place : HY_DEVICE,
                   is_leaving ? away : here);
    o->is_away = is_leaving;
    return o->kind == HY_OFFLOAD_COMPRESS ? 0 : away;
}

uint64_t hy_own_offload_leave(hy_own_run *run) {
    hy_own_offload *o = &run->offload;
    hy_loop *loop = run->loop;
    size_t bytes = state_bytes(run) / 2;
    if (o->kind == HY_OFFLOAD_NONE || o->is_away) return 0;
    if (o->kind == HY_OFFLOAD_COMPRESS) {
        convert(run, true);
    } else if (o->away) {
        memcpy(o->away, loop->m, bytes);
        memcpy(o->away + loop->elements, loop->v, bytes);
    }
#ifdef HY_POISON
    for (int64_t i = 0; i < loop->elements; i++) loop->m[i] = loop->v[i] = NAN;
#endif
    return book(run, true);
}

uint64_t hy_own_offload_return(hy_own_run *run) {
    hy_own_offload *o = &run->offload;
    hy_loop *loop = run->loop;
    size_t bytes = state_bytes(run) / 2;
    if (!o->is_away) return 0;
    if (o->kind == HY_OFFLOAD_COMPRESS) {
        convert(run, false);
    } else if (o->away) {
        memcpy(loop->m, o->away, bytes);
        memcpy(loop->v, o->away + loop->elements, bytes);
    } else {
        memset(loop->m, 0, bytes);
        memset(loop->v, 0, bytes);
        loop->updates = 0; /* dropped: the bias correction begins anew */
    }
    return book(run, false);
}
