/* loan.c: a larger batch for Evaluate, in memory that only optimizer steps need. See sizer.h.
 *
 * Outside of training, the training area, gradients and the rings of streamed state are idle.
 * The forward-only batch borrows the two largest of these blocks: its workspace is in the larger
 * one, its activations after it or in the other one. It borrows optimizer state on the device
 * only if the offload strategy may move it to the host and the batch would be small without it.
 * The plan needs no extra memory: a loan changes neither training nor the peak. */
#include "plan/sizer.h"

#define LARGEST_FACTOR (1 << HY_LARGEST_LOAN) /* maximum number of micro-batches in one batch */
#define ENOUGH_FACTOR 4                       /* with this many, optimizer state stays in place */

typedef struct block {
    int32_t row; /* or HY_LOAN_AREA; 0: none (row 0 is never lent) */
    uint64_t bytes;
} block;

static void find_blocks(const hy_sizer *z, const hy_plan_choice *choice, uint64_t area,
                        bool with_optim, block out[2]) {
    out[0] = (block){HY_LOAN_AREA, area};
    out[1] = (block){0};
    for (int i = 1; i < HY_ROW_COUNT; i++) {
        const hy_row *row = &z->rows->row[i];
        /* Predict keeps compressed optimizer state there. */
        bool is_codes = i == HY_ROW_GRADS && z->offload == HY_OFFLOAD_COMPRESS;
        block b = {i, row->kind && !is_codes ? hy_row_lent_bytes(row, choice, with_optim) : 0};
        if (b.bytes > out[0].bytes) {
            out[1] = out[0];
            out[0] = b;
        } else if (b.bytes > out[1].bytes) {
            out[1] = b;
        }
    }
}

/* Does a batch fit, and which blocks hold activations and workspace? */
static bool place(const hy_batch_bytes *bytes, const block blocks[2], int32_t loan[2]) {
    uint64_t activations = hy_align(bytes->activations), workspace = hy_align(bytes->workspace);
    loan[1] = blocks[0].row;
    loan[0] = activations + workspace <= blocks[0].bytes ? blocks[0].row : blocks[1].row;
    return workspace <= blocks[0].bytes && (loan[0] == loan[1] || activations <= blocks[1].bytes);
}

typedef struct loan {
    int32_t rows[2], batch[HY_PLAN_TYPES];
    hy_batch_bytes bytes;
    int32_t factor; /* in micro-batches, for the first type */
} loan;

/* The largest batch of one type above `least` micro-batches; all types use the same rows. */
static hy_status lend_to_type(hy_sizer *z, const hy_plan_choice *c, hy_dtype dtype,
                              const block blocks[2], int32_t least, loan *out) {
    for (int32_t factor = LARGEST_FACTOR; factor > least; factor /= 2) {
        hy_sized_pass sized = {.batch = factor * c->batch,
                               .chunks = factor * c->loss_chunks,
                               .is_eval = true,
                               .dtype = dtype};
        int32_t rows[2];
        if ((int64_t)sized.batch * z->spec.seq > HY_BUSY_ROWS) continue;
        HY_TRY(hy_sizer_pass(z, &sized));
        bool is_first = out->factor == 0;
        if (!place(&sized.bytes, blocks, rows)) continue;
        if (!is_first && (rows[0] != out->rows[0] || rows[1] != out->rows[1])) continue;
        out->rows[0] = rows[0];
        out->rows[1] = rows[1];
        out->batch[hy_plan_index(dtype)] = sized.batch;
        if (is_first) out->factor = factor;
        if (sized.bytes.activations > out->bytes.activations) {
            out->bytes.activations = hy_align(sized.bytes.activations);
        }
        if (sized.bytes.workspace > out->bytes.workspace) {
            out->bytes.workspace = hy_align(sized.bytes.workspace);
        }
        return HY_OK;
    }
    return HY_OK;
}

static hy_status lend(hy_sizer *z, const hy_plan_choice *c, uint64_t area, bool with_optim,
                      int32_t least, loan *out) {
    block blocks[2];
    *out = (loan){0};
    find_blocks(z, c, area, with_optim, blocks);
    for (int i = 0; i < z->spec.eval_type_count && blocks[0].bytes > 0; i++) {
        HY_TRY(lend_to_type(z, c, z->spec.eval_types[i], blocks, i == 0 ? least : 0, out));
        if (out->factor == 0) return HY_OK;
    }
    return HY_OK;
}

/* The best loan; factor 0: none gives a larger batch than the training area. */
static hy_status choose(hy_sizer *z, const hy_plan_choice *c, uint64_t area, int32_t near,
                        loan *best) {
    HY_TRY(lend(z, c, area, false, near, best));
    bool is_small = best->factor < ENOUGH_FACTOR && near < ENOUGH_FACTOR;
    if (!is_small || !hy_offload_moves(z->offload)) return HY_OK;
    loan with_optim;
    HY_TRY(lend(z, c, area, true, best->factor > near ? best->factor : near, &with_optim));
    if (with_optim.factor > 0) *best = with_optim;
    return HY_OK;
}

hy_status hy_sizer_lend(hy_sizer *z, const hy_plan_choice *c, hy_plan_work *work) {
    const hy_pass_spec *spec = &z->spec;
    bool is_open = spec->lends && spec->eval_batch == 0 && spec->eval_type_count > 0;
    if (!is_open || !hy_model_has_passes(spec->model)) return HY_OK;
    loan best;
    hy_plan_state state;
    hy_rows_need(z->rows, c, &z->rings, &state);
    int32_t near = work->eval_batch[hy_plan_index(spec->eval_types[0])] / c->batch;
    HY_TRY(choose(z, c, hy_work_lent_area(work, state.work_rings), near, &best));
    work->rows = (uint64_t)c->batch * (uint64_t)spec->seq;
    for (int i = 0; i < HY_PLAN_TYPES; i++) {
        if (best.factor > 0 && best.batch[i] > 0) work->eval_batch[i] = best.batch[i];
        uint64_t rows = (uint64_t)work->eval_batch[i] * (uint64_t)spec->seq;
        if (rows > work->rows) work->rows = rows;
    }
    if (best.factor > 0) {
        work->loan[0] = best.rows[0];
        work->loan[1] = best.rows[1];
        work->lent = best.bytes;
    }
    hy_work_close(work, spec, state.work_rings);
    return HY_OK;
}
