/* builder.h: the forward computation of a unit as a list of nodes, and the parts that families
 * build it from.
 *
 * A part (a norm, an attention, an mlp) adds nodes. hy_builder_finish writes the unit's forward ops
 * from the nodes in order, and its backward ops from the same nodes in reverse: each kind of node
 * has one rule for each direction (rules.c). Nobody writes a backward list.
 *
 * Gradients: a slot's gradient is written by the first node in reverse that reads the slot, and the
 * others add to it. What is added to a result (`residual`) has the gradient of the result, in the
 * same memory. So a node that reads the residual itself must be before the node that adds it. */
#pragma once

#include "model/unit.h"

typedef enum hy_node_kind {
    HY_NODE_EMBED,
    HY_NODE_NORM,
    HY_NODE_LINEAR, /* with its adapter and its conversions to fp8 */
    HY_NODE_HEAD_NORM,
    HY_NODE_ROPE, /* in place */
    HY_NODE_ATTENTION,
    HY_NODE_CONV,
    HY_NODE_DELTA,
    HY_NODE_GATE,
    HY_NODE_ACTIVATION,
    HY_NODE_LOSS, /* logits, cross-entropy, and the loss of pairs */
    HY_NODE_COUNT
} hy_node_kind;

/* A weight and its gradient. Here and below, slots that do not exist are HY_NO_SLOT (0). */
typedef struct hy_weight {
    hy_slot_id value, grad;
} hy_weight;

/* A low-rank adapter of a matrix (linear_adapter.c); a.value is HY_NO_SLOT if there is none. */
typedef struct hy_low_rank {
    hy_weight a, b;
    hy_slot_id low, dlow; /* (N, P r) */
    /* The pieces of B as a block-diagonal matrix: in forward, recomputed in backward, and its
     * gradient; HY_NO_SLOT if the matrix is one piece. */
    hy_slot_id spread, spread_again, spread_grad;
    hy_spread_attr pieces;
    float scale, dropout;
    int8_t number;                           /* of the matrix: part of dropout's random key */
    hy_slot_id seed, dropped, dropped_again; /* x after dropout; none without dropout */
} hy_low_rank;

/* A linear in fp8 reads quantised values of its input, its weight and the incoming gradient, each
 * plain or transposed, because an fp8 matmul sums over the last dimension of both operands. The
 * largest magnitude of the input is found by the op that computes it, or by a separate op. */
typedef struct hy_linear {
    hy_weight weight, bias;
    float alpha; /* factor of the product */
    hy_low_rank low_rank;
    bool is_fp8;      /* the matmuls that read the weight use fp8 */
    bool is_grad_fp8; /* the matmul that computes the weight's gradient uses fp8 */
    /* Of the input: fp8 statistics, largest magnitude, codes. */
    hy_slot_id seen, largest, in_codes, in_transposed;
    /* Likewise of the incoming gradient. */
    hy_slot_id dout_seen, dout_largest, dout_codes, dout_transposed;
    hy_slot_id weight_transposed;
    /* The op that computes the input, or the incoming gradient, also finds its largest
     * magnitude. */
    bool has_largest, has_dout_largest;
} hy_linear;

typedef struct hy_node {
    hy_node_kind kind;
    hy_range range;
    hy_slot_id in, out;
    hy_slot_id residual; /* is added to the result: norm and linear */
    hy_slot_id largest;  /* norm and activation: of the result, for a linear in fp8 that reads it */
    hy_op_attr attr;
    union {
        hy_linear linear;
        struct {
            hy_weight weight, bias;
            hy_slot_id mean, rstd;
        } norm;
        struct {
            hy_weight q, k;
            hy_slot_id rstd;
        } head_norm;
        struct {
            hy_slot_id table, query;
        } rope;
        struct {
            hy_slot_id doc_starts, lse;
            hy_weight sinks;
        } attention;
        struct {
            hy_weight weight;
            hy_slot_id doc_starts;
        } conv;
        struct {
            hy_slot_id gates, doc_starts;
            hy_weight a_log, dt_bias;
        } delta;
        struct {
            hy_slot_id gate, rstd;
            hy_weight weight;
        } gate;
        struct {
            bool is_gated;
            bool is_done; /* the linear that reads it has written its backward ops */
        } activation;
        struct {
            hy_weight tokens, positions;
            hy_slot_id doc_starts;
        } embed;
        struct {
            hy_weight weight;
            hy_slot_id logits, targets, losses;
            /* Of answers; `again`: losses of tokens that the second pass computes and nobody
             * reads. doc_starts: of pairs. policy: of answers with rewards. */
            hy_slot_id token_losses, doc_starts, policy, reference, weights, stats, again;
        } loss;
    };
} hy_node;

#define HY_UNIT_NODES 32

typedef struct hy_builder {
    hy_unit *unit;
    const hy_shape *shape;
    hy_node nodes[HY_UNIT_NODES];
    int32_t count;
    bool is_backward;                   /* ops are added to the backward list */
    hy_range range;                     /* of the nodes, and later of the ops, that are added */
    hy_slot_id gradient[HY_UNIT_SLOTS]; /* HY_NO_SLOT: not begun */
} hy_builder;

/* ---- slots, ops and nodes -------------------------------------------------------------------- */

hy_slot_id hy_add_slot(hy_builder *b, hy_slot_role role, int32_t cols);
hy_slot_id hy_add_activation(hy_builder *b, int32_t cols, hy_keep_group group);
/* fp32 numbers of each token that backward reads. */
hy_slot_id hy_add_statistics(hy_builder *b, int32_t cols, hy_keep_group group);
hy_slot_id hy_add_given(hy_builder *b, hy_given given);
/* A parameter of the unit: rows x cols, or a vector if cols is 0. */
hy_weight hy_add_weight(hy_builder *b, hy_param_kind kind, int64_t rows, int32_t cols);
/* The other fields of the new node are zero; the caller sets them. */
hy_node *hy_add_node(hy_builder *b, hy_node_kind kind, hy_slot_id in, hy_slot_id out);
/* The last node that computes the slot; NULL: none, the slot enters the unit. */
hy_node *hy_node_that_makes(hy_builder *b, hy_slot_id slot);
void hy_add_op(hy_builder *b, hy_unit_op op);
/* As above, from the op's kind and its other fields: HY_ADD_OP(b, HY_OP_GELU, .slot[HY_GELU_X] = x,
 * .slot[HY_GELU_Y] = y). */
#define HY_ADD_OP(b, op_kind, ...) hy_add_op(b, (hy_unit_op){.kind = op_kind, __VA_ARGS__})
/* d = a b */
hy_unit_op hy_matmul_op(hy_slot_id a, hy_slot_id b, hy_slot_id d, bool trans_a, bool trans_b);

/* The slot for the gradient of `of`; *is_begun: it has a sum that must be added to. */
hy_slot_id hy_gradient_of(hy_builder *b, hy_slot_id of, bool *is_begun);

/* ---- parts ----------------------------------------------------------------------------------- */

/* Each reads `in` and returns the slot that it computes: `out`, or a new one if `out` is HY_NO_SLOT
 * or not a parameter. residual: is added to the result; HY_NO_SLOT: nothing. */
hy_slot_id hy_part_norm(hy_builder *b, hy_param_kind kind, hy_slot_id in);
/* residual + norm(in) */
hy_slot_id hy_part_norm_onto(hy_builder *b, hy_param_kind kind, hy_slot_id in, hy_slot_id out,
                             hy_slot_id residual);
/* `out` must exist: its width is that of the result. */
void hy_part_linear(hy_builder *b, hy_param_kind kind, bool has_bias, hy_slot_id in, hy_slot_id out,
                    hy_slot_id residual);
/* A matrix that writes into the residual stream. Without `out` it makes a slot of this group, or of
 * the residual inside the block. */
hy_slot_id hy_part_output(hy_builder *b, hy_param_kind kind, bool has_bias, hy_slot_id in,
                          hy_slot_id out, hy_slot_id residual, hy_keep_group group);
/* qkv, norms of q and k, rope, attention, gates, output projection; or what linear attention has,
 * by the unit's traits */
hy_slot_id hy_part_attention(hy_builder *b, hy_slot_id in, hy_slot_id out, hy_slot_id residual);
/* parts_linear.c: qkv, convolution, delta rule, gated norm, output projection */
hy_slot_id hy_part_linear_attention(hy_builder *b, hy_slot_id in, hy_slot_id out,
                                    hy_slot_id residual);
/* parts_linear.c: x times the sigmoid of the gates in a row, from a column on, with this stride */
hy_slot_id hy_part_gates(hy_builder *b, hy_slot_id x, hy_slot_id gate, int32_t column,
                         int32_t stride);
hy_slot_id hy_part_mlp(hy_builder *b, hy_slot_id in, hy_slot_id out, hy_slot_id residual);
void hy_part_embedding(hy_builder *b, hy_slot_id out);
void hy_part_head(hy_builder *b, hy_slot_id in);
/* out = mid + mlp(norm(mid)), mid = in + attention(norm(in)): most families */
void hy_pre_norm_block(hy_builder *b, hy_slot_id in, hy_slot_id out);
/* mid = in + norm(attention(in)), or with sandwich norms in + norm(attention(norm(in))) */
void hy_post_norm_block(hy_builder *b, hy_slot_id in, hy_slot_id out);
void hy_sandwich_norm_block(hy_builder *b, hy_slot_id in, hy_slot_id out);
/* in + attention(norm1(in)) + mlp(norm2(in)) */
void hy_parallel_block(hy_builder *b, hy_slot_id in, hy_slot_id out);

/* ---- rules ----------------------------------------------------------------------------------- */

/* rules.c: writes the unit's lists from the nodes, and omits backward ops that no trained parameter
 * and no unit below needs. */
void hy_builder_finish(hy_builder *b);

/* linear.c: adds the slots that a node's matrix needs for matmuls in fp8. */
void hy_linear_add_fp8(hy_builder *b, hy_node *node);
void hy_linear_forward(hy_builder *b, const hy_node *node);
void hy_linear_backward(hy_builder *b, hy_node *node);
/* Backward of an activation; active: where its result is computed again, or HY_NO_SLOT. */
void hy_activation_backward(hy_builder *b, hy_node *node, hy_slot_id active);

/* linear_adapter.c: adds the slots of the adapter of a node's matrix, if it has one. */
void hy_linear_add_adapter(hy_builder *b, hy_node *node);
/* out = the adapter's product + c. The matrix's own product is added to it later. */
void hy_adapter_forward(hy_builder *b, const hy_low_rank *low, hy_slot_id in, hy_slot_id out,
                        hy_slot_id c);
/* Call these three in this order, the last one after the matrix has written din. */
void hy_adapter_backward_low(hy_builder *b, const hy_low_rank *low, hy_slot_id dout);
void hy_adapter_backward_params(hy_builder *b, const hy_low_rank *low, hy_slot_id dout,
                                hy_slot_id in);
void hy_adapter_backward_input(hy_builder *b, const hy_low_rank *low, hy_slot_id din);
