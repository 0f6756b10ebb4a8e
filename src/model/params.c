/* params.c: the parameters of a shape, their sizes and initial values. See params.h. */
#include "model/params.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "model/param_names.h"

/* Adds a parameter of `rows` x `cols`; cols 0 makes it a vector. */
static void add(hy_params *p, const hy_shape *s, int32_t unit, hy_param_kind kind, int64_t rows,
                int64_t cols) {
    hy_param *param = &p->list[p->count];
    int64_t stored = cols ? rows * cols : rows;
    if (kind == HY_P_TOKENS || kind == HY_P_HEAD) rows = hy_shape_vocab_rows(s);
    *param = (hy_param){.kind = kind,
                        .unit = unit,
                        .ndim = cols ? 2 : 1,
                        .shape = {rows, cols},
                        .count = cols ? rows * cols : rows,
                        .stored = stored,
                        .whole = p->count,
                        .is_trainable = true,
                        .has_decay = cols > 0,
                        .own_decay = -1,
                        .lr_scale = 1,
                        .init_std = cols ? s->init_std : 0};
    param->is_hidden = hy_linear_bit(kind) != 0 || hy_is_adapter(kind);
    bool is_norm = kind == HY_P_NORM1 || kind == HY_P_NORM2 || kind == HY_P_FINAL_NORM;
    if (is_norm || kind == HY_P_Q_NORM || kind == HY_P_K_NORM) param->init_mean = 1;
    /* GPT-2's rule: weights that write into the residual start smaller, because 2 L of them add up. */
    if (kind == HY_P_OUT || kind == HY_P_DOWN) param->init_std /= sqrt(2.0 * s->layers);
    const char *name = hy_param_kind_name(kind, s->is_gated);
    bool is_block = unit >= 1 && unit <= s->layers;
    int length = is_block ? snprintf(param->name, sizeof param->name, "blocks.%d.", unit - 1) : 0;
    snprintf(param->name + length, sizeof param->name - (size_t)length, "%s", name);
    p->at[unit * HY_P_KIND_COUNT + kind] = p->count++;
}

static void add_norm(hy_params *p, const hy_shape *s, int32_t unit, hy_param_kind kind) {
    add(p, s, unit, kind, s->width, 0);
    if (!s->is_rms) add(p, s, unit, (hy_param_kind)(kind + 1), s->width, 0);
}

int32_t hy_shape_pieces(const hy_shape *s, hy_param_kind matrix, int64_t rows[HY_PARAM_PIECES]) {
    rows[0] = s->width;
    if (matrix == HY_P_QKV) {
        rows[0] = (int64_t)s->heads * s->head_size;
        rows[1] = rows[2] = (int64_t)s->kv_heads * s->head_size;
        return 3;
    }
    if (matrix == HY_P_UP) rows[0] = rows[1] = s->mlp_width;
    return matrix == HY_P_UP && s->is_gated ? 2 : 1;
}

static void add_linear(hy_params *p, const hy_shape *s, int32_t unit, hy_param_kind kind,
                       int64_t out, int64_t in, bool has_bias) {
    hy_param *matrix = &p->list[p->count];
    add(p, s, unit, kind, out, in);
    int32_t pieces = hy_shape_pieces(s, kind, matrix->piece_rows);
    matrix->pieces = pieces > 1 ? pieces : 0;
    if (has_bias) add(p, s, unit, (hy_param_kind)(kind + 1), out, 0);
}

int32_t hy_adapter_first_part(hy_param_kind matrix, bool is_gated) {
    if (matrix == HY_P_UP) return is_gated ? HY_ADAPT_GATE : HY_ADAPT_UP;
    return matrix == HY_P_QKV ? HY_ADAPT_Q : matrix == HY_P_OUT ? HY_ADAPT_O : HY_ADAPT_DOWN;
}

hy_adapter_pieces hy_shape_adapter_pieces(const hy_shape *s, hy_param_kind matrix) {
    hy_adapter_pieces out = {0};
    int32_t first = hy_adapter_first_part(matrix, s->is_gated);
    out.count = hy_shape_pieces(s, matrix, out.rows);
    if (matrix == HY_P_QKV && hy_shape_packs_adapter(s)) {
        out.count = 1;
        out.rows[0] = hy_shape_qkv(s);
    }
    for (int32_t i = 0; i < out.count && s->adapter.rank > 0; i++) {
        out.is_there[i] = (s->adapter.parts & first << i) != 0;
        out.adapted += out.is_there[i];
    }
    return out;
}

hy_adapter_rows hy_adapter_rows_before(const hy_adapter_pieces *pieces, int32_t piece,
                                       int64_t rank) {
    hy_adapter_rows rows = {0};
    for (int32_t i = 0; i < piece; i++) {
        rows.a += pieces->is_there[i] ? rank : 0;
        rows.b += pieces->is_there[i] ? pieces->rows[i] : 0;
    }
    return rows;
}

/* A starts like PyTorch's linear layers, B as zero: the model's output is unchanged at first. */
static void add_adapter(hy_params *p, const hy_shape *s, int32_t unit, hy_param_kind matrix) {
    hy_adapter_pieces pieces = hy_shape_adapter_pieces(s, matrix);
    const hy_param *whole = &p->list[hy_params_find(p, unit, matrix)];
    int64_t in = whole->shape[1], rank = s->adapter.rank;
    if (pieces.adapted == 0) return;
    hy_adapter_rows all = hy_adapter_rows_before(&pieces, pieces.count, rank);
    hy_param *a = &p->list[p->count], *b = a + 1;
    add(p, s, unit, hy_adapter_kind(matrix), all.a, in);
    add(p, s, unit, (hy_param_kind)(hy_adapter_kind(matrix) + 1), all.b, rank);
    a->init_std = b->init_std = 0;
    a->init_bound = 1 / sqrt((double)in);
    if (pieces.adapted == 1) return;
    for (int32_t i = 0; i < pieces.count; i++) {
        if (!pieces.is_there[i]) continue;
        a->piece_rows[a->pieces++] = rank;
        b->piece_rows[b->pieces++] = pieces.rows[i];
    }
}

/* Adapters are numbered after all others, so the others' random numbers do not depend on them. */
static void number(hy_params *p) {
    p->elements = 0;
    for (int is_adapter = 0; is_adapter < 2; is_adapter++) {
        for (int32_t i = 0; i < p->count; i++) {
            if (hy_is_adapter(p->list[i].kind) != is_adapter) continue;
            p->list[i].first = p->elements;
            p->elements += p->list[i].stored;
        }
    }
}

static void add_block(hy_params *p, const hy_shape *s, int32_t unit) {
    int32_t attention = s->heads * s->head_size;
    add_norm(p, s, unit, HY_P_NORM1);
    add_linear(p, s, unit, HY_P_QKV, hy_shape_qkv(s), s->width, s->has_qkv_bias);
    if (s->has_qk_norm) {
        add(p, s, unit, HY_P_Q_NORM, s->head_size, 0);
        add(p, s, unit, HY_P_K_NORM, s->head_size, 0);
    }
    add_linear(p, s, unit, HY_P_OUT, s->width, attention, hy_shape_out_bias(s));
    add_norm(p, s, unit, HY_P_NORM2);
    int64_t up = (int64_t)s->mlp_width * (s->is_gated ? 2 : 1);
    add_linear(p, s, unit, HY_P_UP, up, s->width, hy_shape_mlp_bias(s));
    add_linear(p, s, unit, HY_P_DOWN, s->width, s->mlp_width, hy_shape_mlp_bias(s));
    static const hy_param_kind matrices[HY_LINEARS] = {HY_P_QKV, HY_P_OUT, HY_P_UP, HY_P_DOWN};
    for (int i = 0; i < HY_LINEARS; i++) add_adapter(p, s, unit, matrices[i]);
}

hy_status hy_params_init(hy_params *p, const hy_shape *s) {
    *p = (hy_params){.units = s->layers + 2};
    size_t slots = (size_t)p->units * HY_P_KIND_COUNT;
    p->list = calloc(slots, sizeof *p->list);
    p->at = malloc(slots * sizeof *p->at);
    if (!p->list || !p->at) {
        hy_params_fini(p);
        return hy_fail(HY_ERR_MEMORY, "no memory for the list of parameters of %d blocks",
                       s->layers);
    }
    for (size_t i = 0; i < slots; i++) p->at[i] = -1;
    add(p, s, 0, HY_P_TOKENS, s->vocab, s->width);
    if (!s->has_rope) add(p, s, 0, HY_P_POSITIONS, s->context, s->width);
    for (int32_t layer = 0; layer < s->layers; layer++) add_block(p, s, layer + 1);
    int32_t last = s->layers + 1;
    add_norm(p, s, last, HY_P_FINAL_NORM);
    if (s->has_tied_head) {
        p->at[last * HY_P_KIND_COUNT + HY_P_HEAD] = hy_params_find(p, 0, HY_P_TOKENS);
    } else {
        add(p, s, last, HY_P_HEAD, s->vocab, s->width);
    }
    number(p);
    return HY_OK;
}

void hy_params_fini(hy_params *p) {
    free(p->list);
    free(p->at);
    *p = (hy_params){0};
}

void hy_param_initial(const hy_param *param, uint64_t seed, int64_t first, int64_t count,
                      float *out) {
    for (int64_t i = 0; i < count; i++) {
        double value = param->init_mean;
        if (param->init_bound > 0) {
            uint64_t index = (uint64_t)(param->first + first + i);
            value = param->init_bound * (2 * hy_rng_uniform(seed, HY_RNG_INIT, index) - 1);
        } else if (param->init_std > 0 && first + i < param->stored) {
            uint64_t index = (uint64_t)(param->first + first + i);
            value += param->init_std * hy_rng_normal(seed, HY_RNG_INIT, index);
        }
        out[i] = (float)value;
    }
}
