/* unit_ends.c: the lists of the embedding and of the head. See unit.h.
 *
 * The head's logits live only as long as a chunk of rows is worked on: matmul, loss, and in training
 * both gradients, before the next chunk takes their place. */
#include "model/unit.h"

#define NONE HY_NO_SLOT

static int8_t given(hy_unit *unit, const char *name, hy_given which) {
    return hy_unit_add_slot(unit, (hy_slot){.name = name, .role = HY_SLOT_GIVEN, .given = which});
}

void hy_unit_embedding(hy_unit *unit, const hy_shape *s) {
    unit->name = "embedding";
    int8_t tokens = given(unit, "tokens", HY_GIVEN_TOKENS);
    int8_t out = hy_unit_add_slot(
        unit, (hy_slot){.name = "out", .role = HY_SLOT_RESIDUAL_OUT, .cols = s->width});
    int8_t dx = hy_unit_add_slot(
        unit, (hy_slot){.name = "dx", .role = HY_SLOT_RESIDUAL_GRAD, .cols = s->width});
    hy_slot table = {.name = "tokens", .role = HY_SLOT_PARAM, .param = HY_P_TOKENS};
    int8_t wte = hy_unit_add_slot(unit, table), wpe = NONE, dwpe = NONE, doc_starts = NONE;
    table.role = HY_SLOT_PARAM_GRAD;
    int8_t dwte = hy_unit_add_slot(unit, table);
    if (!s->has_rope) {
        hy_slot positions = {.name = "positions", .role = HY_SLOT_PARAM, .param = HY_P_POSITIONS};
        wpe = hy_unit_add_slot(unit, positions);
        positions.role = HY_SLOT_PARAM_GRAD;
        dwpe = hy_unit_add_slot(unit, positions);
        doc_starts = given(unit, "doc_starts", HY_GIVEN_DOC_STARTS);
    }
    hy_unit_add_op(unit, false,
                   (hy_unit_op){.kind = HY_OP_EMBED,
                                .slot = {[HY_EMBED_TOKENS] = tokens,
                                         [HY_EMBED_WTE] = wte,
                                         [HY_EMBED_WPE] = wpe,
                                         [HY_EMBED_X] = out,
                                         [HY_EMBED_DOC_STARTS] = doc_starts}});
    /* Two ops, because a tied head has begun the sum of one and not of the other. */
    hy_unit_add_op(unit, true,
                   (hy_unit_op){.kind = HY_OP_EMBED_BWD,
                                .slot = {[HY_EMBED_BWD_TOKENS] = tokens,
                                         [HY_EMBED_BWD_DX] = dx,
                                         [HY_EMBED_BWD_DWTE] = dwte}});
    if (dwpe != NONE) {
        hy_unit_add_op(unit, true,
                       (hy_unit_op){.kind = HY_OP_EMBED_BWD,
                                    .slot = {[HY_EMBED_BWD_TOKENS] = tokens,
                                             [HY_EMBED_BWD_DX] = dx,
                                             [HY_EMBED_BWD_DWPE] = dwpe,
                                             [HY_EMBED_BWD_DOC_STARTS] = doc_starts}});
    }
}

typedef struct head_slots {
    int8_t x, dx, normed, dnormed, logits, targets, losses, weight, weight_grad;
    hy_norm_slots norm;
} head_slots;

static void add_head_slots(hy_unit *unit, const hy_shape *s, head_slots *h) {
    h->x = hy_unit_add_slot(unit,
                            (hy_slot){.name = "x", .role = HY_SLOT_RESIDUAL_IN, .cols = s->width});
    h->dx = hy_unit_add_slot(
        unit, (hy_slot){.name = "dx", .role = HY_SLOT_RESIDUAL_GRAD, .cols = s->width});
    h->norm = hy_unit_norm(unit, s, HY_P_FINAL_NORM);
    h->normed = hy_unit_add_slot(
        unit, (hy_slot){.name = "normed", .role = HY_SLOT_ACTIVATION, .cols = s->width});
    h->dnormed = hy_unit_add_slot(
        unit, (hy_slot){.name = "dnormed", .role = HY_SLOT_GRADIENT, .cols = s->width});
    h->logits = hy_unit_add_slot(unit, (hy_slot){.name = "logits",
                                                 .role = HY_SLOT_GRADIENT,
                                                 .rows = HY_ROWS_CHUNK,
                                                 .cols = hy_shape_vocab_rows(s)});
    h->targets = given(unit, "targets", HY_GIVEN_TARGETS);
    h->losses = given(unit, "losses", HY_GIVEN_LOSSES);
    hy_slot table = {.name = "head", .role = HY_SLOT_PARAM, .param = HY_P_HEAD};
    h->weight = hy_unit_add_slot(unit, table);
    table.role = HY_SLOT_PARAM_GRAD;
    h->weight_grad = hy_unit_add_slot(unit, table);
}

static hy_unit_op chunk_matmul(int8_t a, int8_t b, int8_t d, bool trans_a, bool trans_b) {
    return (hy_unit_op){.kind = HY_OP_MATMUL,
                        .is_chunked = true,
                        .attr.matmul = {.trans_a = trans_a, .trans_b = trans_b, .alpha = 1},
                        .slot = {[HY_MATMUL_A] = a, [HY_MATMUL_B] = b, [HY_MATMUL_D] = d}};
}

static void add_loss(hy_unit *unit, const hy_shape *s, const head_slots *h, bool wants_grad) {
    hy_unit_norm_forward(unit, s, &h->norm, h->x, h->normed, wants_grad);
    hy_unit_add_op(unit, wants_grad, chunk_matmul(h->normed, h->weight, h->logits, false, true));
    hy_unit_add_op(
        unit, wants_grad,
        (hy_unit_op){.kind = HY_OP_CROSS_ENTROPY,
                     .is_chunked = true,
                     .attr.loss = {.vocab = s->vocab, .scale = 1, .wants_grad = wants_grad},
                     .slot = {[HY_CROSS_ENTROPY_LOGITS] = h->logits,
                              [HY_CROSS_ENTROPY_TARGETS] = h->targets,
                              [HY_CROSS_ENTROPY_LOSSES] = h->losses}});
}

void hy_unit_head(hy_unit *unit, const hy_shape *s) {
    head_slots h;
    unit->name = "head";
    add_head_slots(unit, s, &h);
    add_loss(unit, s, &h, false);
    add_loss(unit, s, &h, true);
    hy_unit_add_op(unit, true, chunk_matmul(h.logits, h.normed, h.weight_grad, true, false));
    hy_unit_add_op(unit, true, chunk_matmul(h.logits, h.weight, h.dnormed, false, false));
    hy_unit_norm_backward(unit, s, &h.norm, h.dnormed, h.x, h.dx, true);
}
