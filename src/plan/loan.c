/* loan.c: a larger batch for Evaluate, in memory that only optimizer steps need. See sizer.h.
 *
 * Outside of training, the training area, gradients and the rings of streamed state are idle. With
 * their memory Evaluate takes several batches through each unit at a time, its slices: the unit's
 * weights come once for all of them. The computation of each slice is unchanged, so losses have the
 * same bits. Only the residuals grow with their number. Workspace and residuals borrow the two
 * largest of these blocks: the workspace is in the larger one, the residuals after it or in the
 * other one. Optimizer state on the device is borrowed only if the offload strategy may move it to
 * the host and there would be few slices without it. The plan needs no extra memory, except longer
 * data buffers: a loan does not change training. */
#include "plan/sizer.h"

#define MOST_SLICES 32
#define ENOUGH 4 /* with this many micro-batches at a time, optimizer state stays in place */

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

/* Do so many slices fit, and which blocks hold activations and workspace? */
static bool place(const hy_batch_bytes *slice, int32_t slices, const block blocks[2],
                  int32_t loan[2]) {
    uint64_t activations = (uint64_t)slices * slice->activations, workspace = slice->workspace;
    loan[1] = blocks[0].row;
    loan[0] = activations + workspace <= blocks[0].bytes ? blocks[0].row : blocks[1].row;
    return workspace <= blocks[0].bytes && (loan[0] == loan[1] || activations <= blocks[1].bytes);
}

/* What one slice needs: the maximum over all types. */
static hy_status slice_bytes(hy_sizer *z, const hy_plan_choice *c, const hy_plan_work *work,
                             hy_batch_bytes *most) {
    *most = (hy_batch_bytes){0};
    for (int i = 0; i < z->spec.eval_type_count; i++) {
        hy_dtype dtype = z->spec.eval_types[i];
        hy_sized_pass sized = {.batch = work->eval_batch[hy_plan_index(dtype)],
                               .chunks = c->loss_chunks,
                               .mlp_chunks = c->mlp_chunks,
                               .is_eval = true,
                               .dtype = dtype};
        HY_TRY(hy_sizer_pass(z, &sized));
        uint64_t activations = hy_align(sized.bytes.activations);
        uint64_t workspace = hy_align(sized.bytes.workspace);
        if (activations > most->activations) most->activations = activations;
        if (workspace > most->workspace) most->workspace = workspace;
    }
    return HY_OK;
}

/* With a loan, only the guard's batch works in the training area. */
static hy_status leave_guard(hy_sizer *z, const hy_plan_choice *c, hy_plan_work *work) {
    hy_sized_pass guard = {.batch = work->guard_batch,
                           .chunks = c->loss_chunks,
                           .mlp_chunks = c->mlp_chunks,
                           .is_eval = true,
                           .dtype = z->spec.eval_types[z->spec.eval_type_count - 1]};
    HY_TRY(hy_sizer_pass(z, &guard));
    work->eval = (hy_batch_bytes){.activations = hy_align(guard.bytes.activations),
                                  .workspace = hy_align(guard.bytes.workspace)};
    work->eval_area = work->eval.activations + work->eval.workspace;
    return HY_OK;
}

int32_t hy_most_slices(const hy_pass_spec *spec, const hy_plan_work *work) {
    int64_t batch = 1;
    if (!spec->lends || spec->eval_batch > 0) return 1;
    for (int i = 0; i < HY_PLAN_TYPES; i++) {
        if (work->eval_batch[i] > batch) batch = work->eval_batch[i];
    }
    int64_t most = HY_BUSY_ROWS / (batch * spec->seq);
    return most < 1 ? 1 : most > MOST_SLICES ? MOST_SLICES : (int32_t)most;
}

hy_status hy_sizer_lend(hy_sizer *z, const hy_plan_choice *c, hy_plan_work *work) {
    const hy_pass_spec *spec = &z->spec;
    hy_batch_bytes slice;
    hy_plan_state state;
    int32_t most = hy_most_slices(spec, work), batch = 0;
    work->slices = 1;
    work->loan[0] = work->loan[1] = 0;
    work->lent = (hy_batch_bytes){0};
    if (most == 1 || spec->eval_type_count == 0 || !hy_model_has_passes(spec->model)) return HY_OK;
    HY_TRY(slice_bytes(z, c, work, &slice));
    hy_rows_need(z->rows, c, &z->rings, &state);
    uint64_t area = hy_work_lent_area(work, state.work_rings);
    for (int i = 0; i < HY_PLAN_TYPES; i++) {
        if (work->eval_batch[i] > batch) batch = work->eval_batch[i];
    }
    for (int with_optim = 0; with_optim <= hy_offload_moves(z->offload); with_optim++) {
        block blocks[2];
        int32_t rows[2] = {0}, slices = most;
        if (with_optim && work->slices * batch >= ENOUGH * c->batch) break;
        find_blocks(z, c, area, with_optim, blocks);
        while (slices > work->slices && !place(&slice, slices, blocks, rows)) slices--;
        if (slices == work->slices) continue;
        work->slices = slices;
        work->loan[0] = rows[0];
        work->loan[1] = rows[1];
    }
    if (work->loan[1]) {
        work->lent.activations = (uint64_t)work->slices * slice.activations;
        work->lent.workspace = slice.workspace;
        HY_TRY(leave_guard(z, c, work));
    }
    work->rows = (uint64_t)c->batch * (uint64_t)spec->seq;
    uint64_t rows = (uint64_t)batch * (uint64_t)work->slices * (uint64_t)spec->seq;
    if (rows > work->rows) work->rows = rows;
    hy_work_total(work, spec, state.work_rings);
    return HY_OK;
}
