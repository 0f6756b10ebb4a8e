/* unit_ends.c: the lists of the embedding and of the head. See unit.h.
 *
 * The head's logits exist only while a chunk of rows is processed: matmul, loss, and in training
 * both gradients, before the next chunk replaces them. */
#include "model/unit.h"

#define NONE HY_NO_SLOT

void hy_unit_embedding(hy_unit *unit, const hy_shape *s) {
    unit->name = "embedding";
    int8_t tokens = hy_unit_given(unit, HY_GIVEN_TOKENS);
    int8_t out = hy_unit_add_slot(unit, HY_SLOT_RESIDUAL_OUT, s->width);
    int8_t dx = hy_unit_add_slot(unit, HY_SLOT_RESIDUAL_GRAD, s->width);
    int8_t dwte, wpe = NONE, dwpe = NONE, doc_starts = NONE;
    int8_t wte = hy_unit_param(unit, HY_P_TOKENS, &dwte);
    if (!s->has_rope) {
        wpe = hy_unit_param(unit, HY_P_POSITIONS, &dwpe);
        doc_starts = hy_unit_given(unit, HY_GIVEN_DOC_STARTS);
    }
    HY_ADD_OP(unit, false, HY_OP_EMBED, .slot[HY_EMBED_TOKENS] = tokens, .slot[HY_EMBED_WTE] = wte,
              .slot[HY_EMBED_WPE] = wpe, .slot[HY_EMBED_X] = out,
              .slot[HY_EMBED_DOC_STARTS] = doc_starts);
    /* Two ops, because a tied head has already started only one of the two sums. */
    HY_ADD_OP(unit, true, HY_OP_EMBED_BWD, .slot[HY_EMBED_BWD_TOKENS] = tokens,
              .slot[HY_EMBED_BWD_DX] = dx, .slot[HY_EMBED_BWD_DWTE] = dwte);
    if (dwpe != NONE) {
        HY_ADD_OP(unit, true, HY_OP_EMBED_BWD, .slot[HY_EMBED_BWD_TOKENS] = tokens,
                  .slot[HY_EMBED_BWD_DX] = dx, .slot[HY_EMBED_BWD_DWPE] = dwpe,
                  .slot[HY_EMBED_BWD_DOC_STARTS] = doc_starts);
    }
}

typedef struct head_slots {
    int8_t x, dx, normed, dnormed, logits, targets, losses, weight, weight_grad;
    hy_norm_slots norm;
} head_slots;

static void add_head_slots(hy_unit *unit, const hy_shape *s, head_slots *h) {
    h->x = hy_unit_add_slot(unit, HY_SLOT_RESIDUAL_IN, s->width);
    h->dx = hy_unit_add_slot(unit, HY_SLOT_RESIDUAL_GRAD, s->width);
    h->norm = hy_unit_norm(unit, s, HY_P_FINAL_NORM);
    h->normed = hy_unit_add_slot(unit, HY_SLOT_ACTIVATION, s->width);
    h->dnormed = hy_unit_add_slot(unit, HY_SLOT_GRADIENT, s->width);
    h->logits = hy_unit_add_slot(unit, HY_SLOT_GRADIENT, hy_shape_vocab_rows(s));
    unit->slots[h->logits].rows = HY_ROWS_CHUNK;
    h->targets = hy_unit_given(unit, HY_GIVEN_TARGETS);
    h->losses = hy_unit_given(unit, HY_GIVEN_LOSSES);
    h->weight = hy_unit_param(unit, HY_P_HEAD, &h->weight_grad);
}

static hy_unit_op chunk_matmul(int8_t a, int8_t b, int8_t d, bool trans_a, bool trans_b) {
    hy_unit_op op = hy_unit_matmul(a, b, d, trans_a, trans_b);
    op.is_chunked = true;
    return op;
}

static void add_loss(hy_unit *unit, const hy_shape *s, const head_slots *h, bool wants_grad) {
    hy_unit_norm_forward(unit, s, &h->norm, h->x, h->normed, wants_grad);
    hy_unit_add_op(unit, wants_grad, chunk_matmul(h->normed, h->weight, h->logits, false, true));
    HY_ADD_OP(unit, wants_grad, HY_OP_CROSS_ENTROPY, .is_chunked = true,
              .attr.loss = {.vocab = s->vocab, .scale = 1, .wants_grad = wants_grad},
              .slot[HY_CROSS_ENTROPY_LOGITS] = h->logits,
              .slot[HY_CROSS_ENTROPY_TARGETS] = h->targets,
              .slot[HY_CROSS_ENTROPY_LOSSES] = h->losses);
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
