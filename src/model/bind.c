/* bind.c: from slots to tensors. See bind.h. */
#include "model/bind.h"

#include <assert.h>

#include "kernels/ops.h"
#include "model/batch_memory.h"

/* Stands for "somewhere" while planning; never read. */
#define SOMEWHERE ((void *)(uintptr_t)HY_ALIGNMENT)

hy_frame hy_frame_for_planning(const hy_batch_plan *plan, int32_t unit, hy_pass pass) {
    return (hy_frame){.plan = plan,
                      .unit = hy_batch_unit(plan, unit),
                      .pass = pass,
                      .unit_index = unit,
                      .residual_in = SOMEWHERE,
                      .residual_out = SOMEWHERE,
                      .residual_grad = SOMEWHERE,
                      .kept = SOMEWHERE,
                      .scratch = SOMEWHERE};
}

/* A parameter as it is stored, or its gradient. */
static hy_tensor bind_param(const hy_frame *f, const hy_slot *slot) {
    bool is_grad = slot->role == HY_SLOT_PARAM_GRAD;
    const hy_params *params = &f->plan->model->params;
    int32_t index = hy_params_find(params, f->unit_index, slot->param);
    assert(index >= 0);
    const hy_param *param = &params->list[index];
    const hy_batch_options *o = &f->plan->options;
    hy_dtype dtype = is_grad ? o->grad_dtype : param->is_trainable ? o->dtype : o->frozen_dtype;
    hy_tensor t = {.dtype = dtype};
    bool is_there = !is_grad || param->is_trainable;
    if (is_there && f->input) {
        hy_store *store = is_grad ? f->input->grads : hy_batch_weights_of(f->input, index);
        int32_t item = hy_store_item_of(store, index);
        t = hy_store_tensor(store, item, hy_store_device(store, item));
    } else if (is_there) {
        hy_dtype fp8 = HY_DTYPE_COUNT;
        if (hy_uses_fp8(&o->fp8)) fp8 = hy_params_fp8_stored(params, index, &o->fp8);
        bool is_fp8 = fp8 != HY_DTYPE_COUNT;
        t.data = SOMEWHERE;
        if (!is_grad) t.dtype = is_fp8 ? fp8 : hy_params_stored(params, index, dtype);
        hy_layout_item item = hy_params_item(params, index, t.dtype);
        t.quant.block = item.block;
        t.quant.group = item.group;
        if (t.quant.block || hy_is_fp8(t.dtype)) t.quant.scale = SOMEWHERE;
    }
    t.ndim = param->ndim;
    for (int32_t i = 0; i < param->ndim; i++) t.shape[i] = param->shape[i];
    return t;
}

/* The rows of a rope table. */
static hy_tensor bind_rope(const hy_frame *f, const hy_batch_input *in, int table) {
    const hy_shape *shape = &f->plan->model->shape;
    int64_t seq = f->plan->size.seq, rotary = hy_shape_rotary(shape);
    int64_t rows = in->rope_rows > 0 ? in->rope_rows : seq;
    return (hy_tensor){.data = (float *)in->rope + table * rows * rotary,
                       .shape = {seq, rotary / 2, 2},
                       .ndim = 3,
                       .dtype = HY_F32};
}

static hy_tensor bind_given(const hy_frame *f, const hy_slot *slot) {
    const hy_batch_size *size = &f->plan->size;
    bool has_doc_starts = f->plan->options.has_doc_starts;
    hy_batch_input planned = {.tokens = SOMEWHERE,
                              .targets = SOMEWHERE,
                              .losses = SOMEWHERE,
                              .token_losses = SOMEWHERE,
                              .reference = SOMEWHERE,
                              .policy = SOMEWHERE,
                              .loss_stats = SOMEWHERE,
                              .doc_starts = has_doc_starts ? SOMEWHERE : NULL,
                              .rope = SOMEWHERE,
                              .largest = SOMEWHERE,
                              .seen = SOMEWHERE,
                              .dropout_seed = SOMEWHERE};
    const hy_batch_input *in = f->input ? f->input : &planned;
    int64_t rows = (int64_t)size->batch * size->seq;
    switch (slot->given) {
    case HY_GIVEN_TOKENS: return hy_tensor_1d((void *)in->tokens, HY_I32, rows);
    case HY_GIVEN_TARGETS: return hy_tensor_1d((void *)in->targets, HY_I32, rows);
    case HY_GIVEN_LOSSES: return hy_tensor_1d(in->losses, HY_F32, rows);
    case HY_GIVEN_TOKEN_LOSSES: return hy_tensor_1d(in->token_losses, HY_F32, rows);
    case HY_GIVEN_REFERENCE: return hy_tensor_1d((void *)in->reference, HY_F32, rows);
    case HY_GIVEN_POLICY: return hy_tensor_2d((void *)in->policy, HY_F32, rows, HY_POLICY_NUMBERS);
    case HY_GIVEN_LOSS_STATS:
        return hy_tensor_1d(in->loss_stats, HY_F64, hy_loss_stats(f->unit->unit->traits.loss.kind));
    case HY_GIVEN_LARGEST:
        return hy_tensor_1d(in->largest + HY_LINEARS * f->unit_index + slot->at, HY_F32, 1);
    case HY_GIVEN_SEEN:
        return hy_tensor_1d(in->seen ? in->seen + HY_SEEN * f->unit_index + slot->at : NULL, HY_F64,
                            3);
    case HY_GIVEN_DROPOUT: return hy_tensor_1d((void *)in->dropout_seed, HY_I32, 2);
    case HY_GIVEN_DOC_STARTS: return hy_tensor_1d((void *)in->doc_starts, HY_I32, rows);
    case HY_GIVEN_ROPE: return bind_rope(f, in, slot->at);
    case HY_GIVEN_QUERY:
    default: {
        hy_tensor tables = bind_rope(f, in, hy_shape_rope_count(&f->plan->model->shape));
        return hy_tensor_1d(tables.data, HY_F32, size->seq);
    }
    }
}

static hy_tensor bind_slot(const hy_frame *f, int index) {
    if (index == HY_NO_SLOT) return (hy_tensor){0};
    const hy_slot *slot = &f->unit->unit->slots[index];
    bool is_kept = f->unit->is_kept[index] && f->pass != HY_PASS_EVAL;
    hy_tensor t = hy_unit_slot_tensor(f->unit, index);
    switch (slot->role) {
    case HY_SLOT_PARAM:
    case HY_SLOT_PARAM_GRAD: return bind_param(f, slot);
    case HY_SLOT_GIVEN: return bind_given(f, slot);
    case HY_SLOT_RESIDUAL_IN: t.data = f->residual_in; break;
    case HY_SLOT_RESIDUAL_OUT: t.data = f->residual_out; break;
    case HY_SLOT_RESIDUAL_GRAD: t.data = f->residual_grad; break;
    case HY_SLOT_ACTIVATION:
    case HY_SLOT_GRADIENT:
        t.data = is_kept ? (char *)f->kept + f->unit->kept_offset[index]
                         : (char *)f->scratch + f->unit->pass[f->pass].offset[index];
        if (slot->fp8) t.quant.scale = (float *)((char *)t.data + hy_align(hy_tensor_bytes(&t)));
    }
    return t;
}

/* The scalars that depend on the batch, the pass and the tile. */
static void bind_attr(const hy_frame *f, const hy_unit_op *op, int32_t tile, hy_op_call *call) {
    hy_op_attr *attr = &call->attr;
    *attr = op->attr;
    bool accumulate = (f->input && f->input->accumulate) || tile > 0;
    int64_t rows = f->unit->size.tile_rows[op->range]; /* of all tiles but the last */
    switch (op->kind) {
    case HY_OP_HEAD_NORM_BWD:
        attr->accumulate = accumulate;
        /* fall through */
    case HY_OP_HEAD_NORM:
    case HY_OP_ROPE:
    case HY_OP_ATTENTION:
    case HY_OP_ATTENTION_BWD:
        attr->heads.batch = f->plan->size.batch;
        attr->heads.seq = f->plan->size.seq;
        break;
    case HY_OP_CONV:
    case HY_OP_CONV_BWD:
        attr->accumulate = accumulate;
        attr->conv.seq = f->plan->size.seq;
        break;
    case HY_OP_DELTA:
    case HY_OP_DELTA_BWD:
        attr->accumulate = accumulate;
        attr->delta.batch = f->plan->size.batch;
        attr->delta.seq = f->plan->size.seq;
        break;
    case HY_OP_EMBED: attr->embed.seq = f->plan->size.seq; break;
    case HY_OP_EMBED_BWD:
        /* A tied head has already written its part of the token table's gradient. */
        attr->embed.seq = f->plan->size.seq;
        attr->accumulate = accumulate || (f->plan->model->shape.has_tied_head &&
                                          op->slot[HY_EMBED_BWD_DWTE] != HY_NO_SLOT);
        break;
    case HY_OP_DROPOUT:
        /* Each matrix of each unit has its own random numbers; the lower bits select the element.
         * The first four matrices of a unit have the keys that they had when there were only four. */
        attr->dropout.first = ((uint64_t)f->unit_index * 4 + attr->dropout.first % 4) << 40 |
                              attr->dropout.first / 4 << 60;
        attr->dropout.first +=
            (uint64_t)(tile * ((rows * hy_tensor_width(&call->t[HY_DROPOUT_X]) + 3) / 4));
        if (f->pass == HY_PASS_EVAL) attr->dropout.rate = 0;
        break;
    case HY_OP_SPREAD: break;
    case HY_OP_PREFERENCE: attr->preference.seq = f->plan->size.seq; break;
    case HY_OP_CROSS_ENTROPY:
        if (f->input) attr->loss.scale = f->input->loss_scale;
        break;
    case HY_OP_MATMUL: {
        bool makes_grad =
            f->unit->unit->slots[(int)op->slot[HY_MATMUL_D]].role == HY_SLOT_PARAM_GRAD;
        attr->accumulate = makes_grad && accumulate;
        if (op->is_adapter && f->input && f->input->skips_adapters) attr->matmul.alpha = 0;
        break;
    }
    default: attr->accumulate = accumulate;
    }
}

void hy_frame_bind(const hy_frame *f, int32_t index, int32_t tile, hy_op_call *call) {
    const hy_pass_plan *pass = &f->unit->pass[f->pass];
    const hy_unit_op *op = pass->ops[index];
    int64_t rows = f->unit->size.tile_rows[op->range], first = tile * rows;
    int64_t left = (int64_t)f->unit->size.batch * f->unit->size.seq - first;
    *call = (hy_op_call){.kind = op->kind,
                         .plan = (left < rows ? pass->prepared_short : pass->prepared)[index]};
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        hy_tensor t = bind_slot(f, op->slot[i]);
        bool is_cut =
            rows > 0 && t.data && f->unit->unit->slots[op->slot[i]].rows == HY_ROWS_TOKENS;
        bool is_tile = f->unit->tile_of[op->slot[i]];
        call->t[i] =
            is_cut ? hy_tensor_rows(&t, is_tile ? 0 : first, rows < left ? rows : left) : t;
    }
    bind_attr(f, op, tile, call);
    if (f->input) call->workspace = hy_batch_op_workspace(f->plan, pass, f->pass);
}
