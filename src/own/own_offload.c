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

static int64_t block_count(int64_t elements) { return (elements + BLOCK - 1) / BLOCK; }
static int64_t block_end(int64_t at, int64_t elements) {
    return elements - at < BLOCK ? elements : at + BLOCK;
}

static uint64_t state_bytes(const hy_own_run *run) {
    return 2 * (uint64_t)run->loop->elements * sizeof(float);
}

static uint64_t code_bytes(const hy_own_run *run) {
    uint64_t scales = 2 * (uint64_t)block_count(run->loop->elements) * sizeof(float);
    return 2 * (uint64_t)run->loop->elements + scales;
}

static hy_status take(size_t count, size_t size, const char *what, void *out) {
    void *memory = calloc(count, size);
    memcpy(out, &memory, sizeof memory);
    if (memory) return HY_OK;
    return hy_fail(HY_ERR_MEMORY, "no memory for %s: %zu bytes", what, count * size);
}

hy_status hy_own_offload_init(hy_own_run *run) {
    hy_own_offload *o = &run->offload;
    size_t elements = (size_t)run->loop->elements,
           blocks = (size_t)block_count(run->loop->elements);
    o->kind = run->settings.memory.offload_strategy;
    if (o->kind == HY_OFFLOAD_CPU || o->kind == HY_OFFLOAD_PINNED) {
        return take(2 * elements, sizeof *o->away, "optimizer state away from compute", &o->away);
    }
    if (o->kind != HY_OFFLOAD_COMPRESS) return HY_OK;
    HY_TRY(take(elements, 1, "8-bit codes", &o->m_codes));
    HY_TRY(take(elements, 1, "8-bit codes", &o->v_codes));
    HY_TRY(take(blocks, sizeof(float), "the scales of 8-bit codes", &o->m_scales));
    return take(blocks, sizeof(float), "the scales of 8-bit codes", &o->v_scales);
}

void hy_own_offload_fini(hy_own_offload *o) {
    free(o->away);
    free(o->m_codes);
    free(o->v_codes);
    free(o->m_scales);
    free(o->v_scales);
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

static void compress(hy_own_run *run) {
    hy_own_offload *o = &run->offload;
    const hy_loop *loop = run->loop;
    for (int64_t at = 0, block = 0; at < loop->elements; at += BLOCK, block++) {
        int64_t n = block_end(at, loop->elements) - at;
        o->m_scales[block] = encode_m(loop->m + at, n, o->m_codes + at);
        o->v_scales[block] = encode_v(loop->v + at, n, o->v_codes + at);
    }
}

static void expand(hy_own_run *run) {
    const hy_own_offload *o = &run->offload;
    hy_loop *loop = run->loop;
    for (int64_t i = 0; i < loop->elements; i++) {
        float root = (float)o->v_codes[i] * o->v_scales[i / BLOCK];
        loop->m[i] = (float)o->m_codes[i] * o->m_scales[i / BLOCK];
        loop->v[i] = root * root;
    }
}

/* ---- leaving and coming back ----------------------------------------------------------------- */

/* Bytes that are live instead of m and v while they are away, and where. */
static uint64_t stand_in(const hy_own_run *run, hy_place *place) {
    const hy_own_offload *o = &run->offload;
    *place = o->kind == HY_OFFLOAD_CPU      ? HY_HOST
             : o->kind == HY_OFFLOAD_PINNED ? HY_PINNED
                                            : HY_DEVICE;
    if (o->kind == HY_OFFLOAD_COMPRESS) return code_bytes(run);
    return o->away ? state_bytes(run) : 0;
}

static void book_leave(hy_own_run *run) {
    hy_place place;
    uint64_t bytes = stand_in(run, &place);
    hy_ledger_give(&run->ledger, HY_OPTIM, HY_DEVICE, state_bytes(run));
    hy_ledger_take(&run->ledger, HY_OPTIM, place, bytes);
}

uint64_t hy_own_offload_leave(hy_own_run *run) {
    hy_own_offload *o = &run->offload;
    hy_loop *loop = run->loop;
    size_t elements = (size_t)loop->elements;
    if (o->kind == HY_OFFLOAD_NONE || o->is_away) return 0;
    if (o->away) {
        memcpy(o->away, loop->m, elements * sizeof *loop->m);
        memcpy(o->away + elements, loop->v, elements * sizeof *loop->v);
    }
    if (o->kind == HY_OFFLOAD_COMPRESS) compress(run);
#ifdef HY_POISON
    for (int64_t i = 0; i < loop->elements; i++) loop->m[i] = loop->v[i] = NAN;
#else
    (void)loop;
#endif

    book_leave(run);
    o->is_away = true;
    return o->away ? state_bytes(run) : 0;
}

uint64_t hy_own_offload_return(hy_own_run *run) {
    hy_own_offload *o = &run->offload;
    hy_loop *loop = run->loop;
    size_t elements = (size_t)loop->elements;
    if (!o->is_away) return 0;
    if (o->away) {
        memcpy(loop->m, o->away, elements * sizeof *loop->m);
        memcpy(loop->v, o->away + elements, elements * sizeof *loop->v);
    }
    if (o->kind == HY_OFFLOAD_COMPRESS) expand(run);
    if (o->kind == HY_OFFLOAD_DROP) {
        memset(loop->m, 0, elements * sizeof *loop->m);
        memset(loop->v, 0, elements * sizeof *loop->v);
        loop->updates = 0; /* the bias correction begins anew */
    }
    hy_place place;
    uint64_t bytes = stand_in(run, &place);
    hy_ledger_give(&run->ledger, HY_OPTIM, place, bytes);
    hy_ledger_take(&run->ledger, HY_OPTIM, HY_DEVICE, state_bytes(run));
    o->is_away = false;
    return o->away ? state_bytes(run) : 0;
}
