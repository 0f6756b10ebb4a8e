/* rules.c: the ops of each kind of node, forward and backward, and the lists of a unit that follow.
 * See builder.h. */
#include "model/builder.h"

#include <assert.h>
#include <string.h>

#include "kernels/ops.h"

#define NONE HY_NO_SLOT

/* ---- embedding ------------------------------------------------------------------------------- */

static void embed_forward(hy_builder *b, const hy_node *n) {
    HY_ADD_OP(b, HY_OP_EMBED, .attr = n->attr, .slot[HY_EMBED_TOKENS] = n->in,
              .slot[HY_EMBED_WTE] = n->embed.tokens.value,
              .slot[HY_EMBED_WPE] = n->embed.positions.value, .slot[HY_EMBED_X] = n->out,
              .slot[HY_EMBED_DOC_STARTS] = n->embed.doc_starts);
}

/* Two ops, because a tied head has already started only one of the two sums. */
static void embed_backward(hy_builder *b, hy_node *n) {
    bool is_begun;
    hy_slot_id dx = hy_gradient_of(b, n->out, &is_begun);
    HY_ADD_OP(b, HY_OP_EMBED_BWD, .attr = n->attr, .slot[HY_EMBED_BWD_TOKENS] = n->in,
              .slot[HY_EMBED_BWD_DX] = dx, .slot[HY_EMBED_BWD_DWTE] = n->embed.tokens.grad);
    if (n->embed.positions.grad == NONE) return;
    HY_ADD_OP(b, HY_OP_EMBED_BWD, .attr = n->attr, .slot[HY_EMBED_BWD_TOKENS] = n->in,
              .slot[HY_EMBED_BWD_DX] = dx, .slot[HY_EMBED_BWD_DWPE] = n->embed.positions.grad,
              .slot[HY_EMBED_BWD_DOC_STARTS] = n->embed.doc_starts);
}

/* ---- norm ------------------------------------------------------------------------------------ */

static void norm_forward(hy_builder *b, const hy_node *n) {
    HY_ADD_OP(b, HY_OP_NORM, .attr = n->attr, .slot[HY_NORM_X] = n->in,
              .slot[HY_NORM_WEIGHT] = n->norm.weight.value,
              .slot[HY_NORM_BIAS] = n->norm.bias.value, .slot[HY_NORM_Y] = n->out,
              .slot[HY_NORM_MEAN] = n->norm.mean, .slot[HY_NORM_RSTD] = n->norm.rstd,
              .slot[HY_NORM_LARGEST] = n->largest, .slot[HY_NORM_RESIDUAL] = n->residual);
}

static void norm_backward(hy_builder *b, hy_node *n) {
    bool is_begun;
    hy_slot_id dout = hy_gradient_of(b, n->out, &is_begun);
    hy_slot_id din = hy_gradient_of(b, n->in, &is_begun);
    HY_ADD_OP(b, HY_OP_NORM_BWD, .attr = n->attr, .slot[HY_NORM_BWD_DY] = dout,
              .slot[HY_NORM_BWD_X] = n->in, .slot[HY_NORM_BWD_WEIGHT] = n->norm.weight.value,
              .slot[HY_NORM_BWD_MEAN] = n->norm.mean, .slot[HY_NORM_BWD_RSTD] = n->norm.rstd,
              .slot[HY_NORM_BWD_RESIDUAL] = is_begun ? din : NONE, .slot[HY_NORM_BWD_DX] = din,
              .slot[HY_NORM_BWD_DWEIGHT] = n->norm.weight.grad,
              .slot[HY_NORM_BWD_DBIAS] = n->norm.bias.grad);
}

/* ---- attention ------------------------------------------------------------------------------- */

static void head_norm_forward(hy_builder *b, const hy_node *n) {
    HY_ADD_OP(b, HY_OP_HEAD_NORM, .attr = n->attr, .slot[HY_HEAD_NORM_QKV] = n->in,
              .slot[HY_HEAD_NORM_WQ] = n->head_norm.q.value,
              .slot[HY_HEAD_NORM_WK] = n->head_norm.k.value, .slot[HY_HEAD_NORM_OUT] = n->out,
              .slot[HY_HEAD_NORM_RSTD] = n->head_norm.rstd);
}

/* In place: only this node reads its input. With gates, they have written their columns of its
 * gradient. */
static void head_norm_backward(hy_builder *b, hy_node *n) {
    bool is_begun;
    hy_slot_id dout = hy_gradient_of(b, n->out, &is_begun);
    if (!n->attr.heads.has_gates) b->gradient[n->in] = dout;
    hy_slot_id dqkv = hy_gradient_of(b, n->in, &is_begun);
    assert(is_begun);
    HY_ADD_OP(b, HY_OP_HEAD_NORM_BWD, .attr = n->attr, .slot[HY_HEAD_NORM_BWD_DOUT] = dout,
              .slot[HY_HEAD_NORM_BWD_QKV] = n->in,
              .slot[HY_HEAD_NORM_BWD_WQ] = n->head_norm.q.value,
              .slot[HY_HEAD_NORM_BWD_WK] = n->head_norm.k.value,
              .slot[HY_HEAD_NORM_BWD_RSTD] = n->head_norm.rstd, .slot[HY_HEAD_NORM_BWD_DQKV] = dqkv,
              .slot[HY_HEAD_NORM_BWD_DWQ] = n->head_norm.q.grad,
              .slot[HY_HEAD_NORM_BWD_DWK] = n->head_norm.k.grad);
}

static void rope_forward(hy_builder *b, const hy_node *n) {
    HY_ADD_OP(b, HY_OP_ROPE, .attr = n->attr, .slot[HY_ROPE_QKV] = n->in,
              .slot[HY_ROPE_TABLE] = n->rope.table, .slot[HY_ROPE_QUERY] = n->rope.query);
}

static void rope_backward(hy_builder *b, hy_node *n) {
    bool is_begun;
    hy_op_attr attr = n->attr;
    attr.heads.inverse = true;
    HY_ADD_OP(b, HY_OP_ROPE, .attr = attr, .slot[HY_ROPE_QKV] = hy_gradient_of(b, n->in, &is_begun),
              .slot[HY_ROPE_TABLE] = n->rope.table, .slot[HY_ROPE_QUERY] = n->rope.query);
}

static void attention_forward(hy_builder *b, const hy_node *n) {
    HY_ADD_OP(b, HY_OP_ATTENTION, .attr = n->attr, .slot[HY_ATTENTION_QKV] = n->in,
              .slot[HY_ATTENTION_DOC_STARTS] = n->attention.doc_starts,
              .slot[HY_ATTENTION_OUT] = n->out, .slot[HY_ATTENTION_LSE] = n->attention.lse,
              .slot[HY_ATTENTION_SINKS] = n->attention.sinks.value);
}

static void attention_backward(hy_builder *b, hy_node *n) {
    bool is_begun;
    hy_slot_id dout = hy_gradient_of(b, n->out, &is_begun);
    hy_slot_id dqkv = hy_gradient_of(b, n->in, &is_begun);
    assert(!is_begun);
    HY_ADD_OP(b, HY_OP_ATTENTION_BWD, .attr = n->attr, .slot[HY_ATTENTION_BWD_DOUT] = dout,
              .slot[HY_ATTENTION_BWD_QKV] = n->in,
              .slot[HY_ATTENTION_BWD_DOC_STARTS] = n->attention.doc_starts,
              .slot[HY_ATTENTION_BWD_OUT] = n->out, .slot[HY_ATTENTION_BWD_LSE] = n->attention.lse,
              .slot[HY_ATTENTION_BWD_DQKV] = dqkv,
              .slot[HY_ATTENTION_BWD_SINKS] = n->attention.sinks.value,
              .slot[HY_ATTENTION_BWD_DSINKS] = n->attention.sinks.grad);
}

/* ---- linear attention ------------------------------------------------------------------------ */

static void conv_forward(hy_builder *b, const hy_node *n) {
    HY_ADD_OP(b, HY_OP_CONV, .slot[HY_CONV_X] = n->in, .slot[HY_CONV_Y] = n->out,
              .slot[HY_CONV_WEIGHT] = n->conv.weight.value,
              .slot[HY_CONV_DOC_STARTS] = n->conv.doc_starts);
}

static void conv_backward(hy_builder *b, hy_node *n) {
    bool is_begun;
    hy_slot_id dy = hy_gradient_of(b, n->out, &is_begun);
    hy_slot_id dx = hy_gradient_of(b, n->in, &is_begun);
    assert(!is_begun);
    HY_ADD_OP(b, HY_OP_CONV_BWD, .slot[HY_CONV_BWD_DY] = dy, .slot[HY_CONV_BWD_X] = n->in,
              .slot[HY_CONV_BWD_WEIGHT] = n->conv.weight.value,
              .slot[HY_CONV_BWD_DOC_STARTS] = n->conv.doc_starts, .slot[HY_CONV_BWD_DX] = dx,
              .slot[HY_CONV_BWD_DWEIGHT] = n->conv.weight.grad);
}

static void delta_forward(hy_builder *b, const hy_node *n) {
    HY_ADD_OP(b, HY_OP_DELTA, .attr = n->attr, .slot[HY_DELTA_QKV] = n->in,
              .slot[HY_DELTA_GATES] = n->delta.gates, .slot[HY_DELTA_A_LOG] = n->delta.a_log.value,
              .slot[HY_DELTA_DT_BIAS] = n->delta.dt_bias.value,
              .slot[HY_DELTA_DOC_STARTS] = n->delta.doc_starts, .slot[HY_DELTA_OUT] = n->out);
}

static void delta_backward(hy_builder *b, hy_node *n) {
    bool is_begun;
    hy_slot_id dout = hy_gradient_of(b, n->out, &is_begun);
    hy_slot_id dqkv = hy_gradient_of(b, n->in, &is_begun);
    hy_slot_id dgates = hy_gradient_of(b, n->delta.gates, &is_begun);
    assert(!is_begun);
    HY_ADD_OP(b, HY_OP_DELTA_BWD, .attr = n->attr, .slot[HY_DELTA_BWD_DOUT] = dout,
              .slot[HY_DELTA_BWD_QKV] = n->in, .slot[HY_DELTA_BWD_GATES] = n->delta.gates,
              .slot[HY_DELTA_BWD_A_LOG] = n->delta.a_log.value,
              .slot[HY_DELTA_BWD_DT_BIAS] = n->delta.dt_bias.value,
              .slot[HY_DELTA_BWD_DOC_STARTS] = n->delta.doc_starts, .slot[HY_DELTA_BWD_DQKV] = dqkv,
              .slot[HY_DELTA_BWD_DGATES] = dgates, .slot[HY_DELTA_BWD_DA_LOG] = n->delta.a_log.grad,
              .slot[HY_DELTA_BWD_DDT_BIAS] = n->delta.dt_bias.grad);
}

static void gate_forward(hy_builder *b, const hy_node *n) {
    HY_ADD_OP(b, HY_OP_GATE, .attr = n->attr, .slot[HY_GATE_X] = n->in,
              .slot[HY_GATE_GATE] = n->gate.gate, .slot[HY_GATE_WEIGHT] = n->gate.weight.value,
              .slot[HY_GATE_Y] = n->out, .slot[HY_GATE_RSTD] = n->gate.rstd);
}

/* The gradient of x is written over that of y, because only this node reads x. */
static void gate_backward(hy_builder *b, hy_node *n) {
    bool is_begun;
    hy_slot_id dy = b->gradient[n->in] = hy_gradient_of(b, n->out, &is_begun);
    hy_slot_id dgate = hy_gradient_of(b, n->gate.gate, &is_begun);
    assert(!is_begun);
    HY_ADD_OP(b, HY_OP_GATE_BWD, .attr = n->attr, .slot[HY_GATE_BWD_DY] = dy,
              .slot[HY_GATE_BWD_X] = n->in, .slot[HY_GATE_BWD_GATE] = n->gate.gate,
              .slot[HY_GATE_BWD_WEIGHT] = n->gate.weight.value,
              .slot[HY_GATE_BWD_RSTD] = n->gate.rstd, .slot[HY_GATE_BWD_DX] = dy,
              .slot[HY_GATE_BWD_DGATE] = dgate, .slot[HY_GATE_BWD_DWEIGHT] = n->gate.weight.grad);
}

/* ---- activation functions -------------------------------------------------------------------- */

static void activation_forward(hy_builder *b, const hy_node *n) {
    if (n->activation.is_gated) {
        HY_ADD_OP(b, HY_OP_SWIGLU, .attr = n->attr, .slot[HY_SWIGLU_GATE_UP] = n->in,
                  .slot[HY_SWIGLU_Y] = n->out, .slot[HY_SWIGLU_LARGEST] = n->largest);
    } else {
        HY_ADD_OP(b, HY_OP_GELU, .attr = n->attr, .slot[HY_GELU_X] = n->in,
                  .slot[HY_GELU_Y] = n->out, .slot[HY_GELU_LARGEST] = n->largest);
    }
}

/* The gradient of the input is written over memory that is no longer needed: over the input itself
 * if it is as wide as two results, else over the gradient of the result. */
void hy_activation_backward(hy_builder *b, hy_node *n, hy_slot_id active) {
    bool is_begun;
    hy_slot_id dout = hy_gradient_of(b, n->out, &is_begun);
    hy_node *made = hy_node_that_makes(b, n->in);
    hy_linear *before = made && made->kind == HY_NODE_LINEAR ? &made->linear : NULL;
    hy_slot_id largest = before ? before->dout_largest : NONE;
    if (before) before->has_dout_largest = true;
    n->activation.is_done = true;
    if (n->activation.is_gated) {
        b->gradient[n->in] = n->in;
        HY_ADD_OP(b, HY_OP_SWIGLU_BWD, .attr = n->attr, .slot[HY_SWIGLU_BWD_DY] = dout,
                  .slot[HY_SWIGLU_BWD_GATE_UP] = n->in, .slot[HY_SWIGLU_BWD_DGATE_UP] = n->in,
                  .slot[HY_SWIGLU_BWD_ACTIVE] = active, .slot[HY_SWIGLU_BWD_LARGEST] = largest);
    } else {
        b->gradient[n->in] = dout;
        HY_ADD_OP(b, HY_OP_GELU_BWD, .attr = n->attr, .slot[HY_GELU_BWD_DY] = dout,
                  .slot[HY_GELU_BWD_X] = n->in, .slot[HY_GELU_BWD_DX] = dout,
                  .slot[HY_GELU_BWD_LARGEST] = largest);
    }
}

static void activation_backward(hy_builder *b, hy_node *n) {
    if (!n->activation.is_done) hy_activation_backward(b, n, NONE);
}

/* ---- loss ------------------------------------------------------------------------------------ */

/* With gradients, the logits become their gradient. */
static void add_losses(hy_builder *b, const hy_node *n, bool wants_grad, hy_slot_id losses,
                       hy_slot_id weights) {
    hy_op_attr attr = n->attr;
    attr.loss.wants_grad = wants_grad;
    hy_add_op(b, hy_matmul_op(n->in, n->loss.weight.value, n->loss.logits, false, true));
    HY_ADD_OP(b, HY_OP_CROSS_ENTROPY, .attr = attr, .slot[HY_CROSS_ENTROPY_LOGITS] = n->loss.logits,
              .slot[HY_CROSS_ENTROPY_TARGETS] = n->loss.targets,
              .slot[HY_CROSS_ENTROPY_LOSSES] = losses, .slot[HY_CROSS_ENTROPY_WEIGHTS] = weights);
}

static void add_policy_losses(hy_builder *b, const hy_node *n) {
    HY_ADD_OP(b, HY_OP_POLICY, .attr.policy = b->unit->traits.loss.policy,
              .slot[HY_POLICY_TOKEN_LOSSES] = n->loss.token_losses,
              .slot[HY_POLICY_TARGETS] = n->loss.targets, .slot[HY_POLICY_POLICY] = n->loss.policy,
              .slot[HY_POLICY_REFERENCE] = n->loss.reference,
              .slot[HY_POLICY_LOSSES] = n->loss.losses,
              .slot[HY_POLICY_WEIGHTS] = b->is_backward ? n->loss.weights : NONE,
              .slot[HY_POLICY_STATISTICS] = n->loss.stats);
}

static void add_pair_losses(hy_builder *b, const hy_node *n) {
    HY_ADD_OP(b, HY_OP_PREFERENCE, .attr.preference.of = b->unit->traits.loss,
              .slot[HY_PREFERENCE_TOKEN_LOSSES] = n->loss.token_losses,
              .slot[HY_PREFERENCE_TARGETS] = n->loss.targets,
              .slot[HY_PREFERENCE_DOC_STARTS] = n->loss.doc_starts,
              .slot[HY_PREFERENCE_REFERENCE] = n->loss.reference,
              .slot[HY_PREFERENCE_LOSSES] = n->loss.losses,
              .slot[HY_PREFERENCE_WEIGHTS] = b->is_backward ? n->loss.weights : NONE,
              .slot[HY_PREFERENCE_STATS] = n->loss.stats);
}

static void loss_forward(hy_builder *b, const hy_node *n) {
    if (n->loss.token_losses == NONE) {
        add_losses(b, n, b->is_backward, n->loss.losses, NONE);
        return;
    }
    add_losses(b, n, false, n->loss.token_losses, NONE);
    hy_range range = b->range;
    b->range = HY_RANGE_NONE; /* the loss of answers is not in tiles */
    (n->loss.policy == NONE ? add_pair_losses : add_policy_losses)(b, n);
    b->range = range;
    if (b->is_backward) add_losses(b, n, true, n->loss.again, n->loss.weights);
}

static void loss_backward(hy_builder *b, hy_node *n) {
    bool is_begun;
    hy_slot_id din = hy_gradient_of(b, n->in, &is_begun);
    assert(!is_begun);
    hy_add_op(b, hy_matmul_op(n->loss.logits, n->in, n->loss.weight.grad, true, false));
    hy_add_op(b, hy_matmul_op(n->loss.logits, n->loss.weight.value, din, false, false));
}

/* ---- the lists ------------------------------------------------------------------------------- */

static const struct {
    void (*forward)(hy_builder *b, const hy_node *node);
    void (*backward)(hy_builder *b, hy_node *node);
} rules[HY_NODE_COUNT] = {
    [HY_NODE_EMBED] = {embed_forward, embed_backward},
    [HY_NODE_NORM] = {norm_forward, norm_backward},
    [HY_NODE_LINEAR] = {hy_linear_forward, hy_linear_backward},
    [HY_NODE_HEAD_NORM] = {head_norm_forward, head_norm_backward},
    [HY_NODE_ROPE] = {rope_forward, rope_backward},
    [HY_NODE_ATTENTION] = {attention_forward, attention_backward},
    [HY_NODE_CONV] = {conv_forward, conv_backward},
    [HY_NODE_DELTA] = {delta_forward, delta_backward},
    [HY_NODE_GATE] = {gate_forward, gate_backward},
    [HY_NODE_ACTIVATION] = {activation_forward, activation_backward},
    [HY_NODE_LOSS] = {loss_forward, loss_backward},
};

static void write_forward(hy_builder *b) {
    for (int32_t i = 0; i < b->count; i++) {
        b->range = b->nodes[i].range;
        rules[b->nodes[i].kind].forward(b, &b->nodes[i]);
    }
}

/* What a node added to its result gets the gradient of the result. */
static void pass_to_residual(hy_builder *b, const hy_node *node) {
    bool is_begun;
    if (node->residual == NONE) return;
    assert(b->gradient[node->residual] == NONE);
    b->gradient[node->residual] = hy_gradient_of(b, node->out, &is_begun);
}

/* Walks the backward list from its end and tracks which slots are needed after each op: an op
 * that writes none of them is removed, and the inputs of a kept op are needed before it. */
static void leave_out_unwanted(hy_unit *unit) {
    bool is_wanted[HY_UNIT_SLOTS] = {0};
    int first = HY_UNIT_OPS; /* kept ops gather at the end */
    for (int s = 1; s < unit->slot_count; s++) {
        const hy_slot *slot = &unit->slots[s];
        is_wanted[s] = slot->role == HY_SLOT_PARAM_GRAD ? unit->traits.trained >> slot->param & 1
                       : slot->role == HY_SLOT_RESIDUAL_GRAD
                           ? unit->traits.passes_back
                           : slot->role == HY_SLOT_GIVEN && slot->given == HY_GIVEN_LOSSES;
    }
    for (int i = unit->backward_count - 1; i >= 0; i--) {
        hy_unit_op op = unit->backward[i];
        bool is_kept = false;
        for (int s = 1; s < unit->slot_count; s++) {
            is_kept |= is_wanted[s] && hy_unit_op_uses(&op, s, HY_ACCESS_WRITE);
        }
        if (!is_kept) continue;
        for (int s = 1; s < unit->slot_count; s++) {
            if (hy_unit_op_uses(&op, s, HY_ACCESS_WRITE)) is_wanted[s] = false;
            if (hy_unit_op_uses(&op, s, HY_ACCESS_READ)) is_wanted[s] = true;
        }
        unit->backward[--first] = op;
    }
    unit->backward_count = HY_UNIT_OPS - first;
    memmove(unit->backward, unit->backward + first,
            (size_t)unit->backward_count * sizeof *unit->backward);
}

static void add_to_linears(hy_builder *b, void (*add)(hy_builder *b, hy_node *node)) {
    for (int32_t i = 0; i < b->count; i++) {
        if (b->nodes[i].kind == HY_NODE_LINEAR) add(b, &b->nodes[i]);
    }
}

void hy_builder_finish(hy_builder *b) {
    add_to_linears(b, hy_linear_add_fp8);
    add_to_linears(b, hy_linear_add_adapter);
    write_forward(b);
    b->is_backward = true;
    if (b->unit->traits.part == HY_PART_HEAD) write_forward(b);
    for (int32_t i = b->count - 1; i >= 0; i--) {
        b->range = b->nodes[i].range;
        rules[b->nodes[i].kind].backward(b, &b->nodes[i]);
        pass_to_residual(b, &b->nodes[i]);
    }
    leave_out_unwanted(b->unit);
}
