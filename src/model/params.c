/* params.c: the parameters of a shape, their sizes and initial values. See params.h. */
#include "model/params.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "model/arch/arch.h"
#include "model/param_names.h"
#include "model/unit.h"

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
    bool is_norm = kind == HY_P_NORM1 || kind == HY_P_NORM2 || kind == HY_P_FINAL_NORM ||
                   kind == HY_P_NORM1_AFTER || kind == HY_P_NORM2_AFTER;
    if (is_norm || kind == HY_P_Q_NORM || kind == HY_P_K_NORM)
        param->init_mean = 1 - s->more.norm_offset;
    if (kind == HY_P_LINEAR_NORM || kind == HY_P_DT_BIAS) param->init_mean = 1;
    if (kind == HY_P_A_LOG) param->init_decay = 16;
    /* GPT-2's rule: weights that write into the residual start smaller, because 2 L of them add
     * up. */
    if (kind == HY_P_OUT || kind == HY_P_LINEAR_OUT || kind == HY_P_DOWN)
        param->init_std /= sqrt(2.0 * s->layers);
    const char *name = hy_param_kind_name(kind, s->is_gated);
    bool is_block = unit >= 1 && unit <= s->layers;
    int length = is_block ? snprintf(param->name, sizeof param->name, "blocks.%d.", unit - 1) : 0;
    snprintf(param->name + length, sizeof param->name - (size_t)length, "%s", name);
    p->at[unit * HY_P_KIND_COUNT + kind] = p->count++;
}

int32_t hy_shape_pieces(const hy_shape *s, hy_param_kind matrix, int64_t rows[HY_PARAM_PIECES]) {
    rows[0] = s->width;
    if (matrix == HY_P_QKV) {
        rows[0] = (int64_t)s->heads * s->head_size * (s->more.has_gates ? 2 : 1);
        rows[1] = rows[2] = (int64_t)s->kv_heads * s->head_size;
        return 3;
    }
    if (matrix == HY_P_LINEAR_BA) {
        rows[0] = rows[1] = s->more.linear.heads;
        return 2;
    }
    if (matrix == HY_P_LINEAR_QKV) rows[0] = hy_shape_linear_qkv(s);
    if (matrix == HY_P_LINEAR_Z) rows[0] = hy_shape_linear_out(s);
    if (matrix == HY_P_UP) rows[0] = rows[1] = s->mlp_width;
    return matrix == HY_P_UP && s->is_gated ? 2 : 1;
}

int32_t hy_adapter_first_part(hy_param_kind matrix, bool is_gated) {
    static const int32_t first[HY_P_KIND_COUNT] = {
        [HY_P_QKV] = HY_ADAPT_Q,
        [HY_P_OUT] = HY_ADAPT_O,
        [HY_P_UP] = HY_ADAPT_UP,
        [HY_P_DOWN] = HY_ADAPT_DOWN,
        [HY_P_LINEAR_QKV] = HY_ADAPT_LINEAR_QKV,
        [HY_P_LINEAR_Z] = HY_ADAPT_LINEAR_Z,
        [HY_P_LINEAR_BA] = HY_ADAPT_LINEAR_B,
        [HY_P_LINEAR_OUT] = HY_ADAPT_LINEAR_OUT,
    };
    return matrix == HY_P_UP && is_gated ? HY_ADAPT_GATE : first[matrix];
}

hy_adapter_pieces hy_shape_adapter_pieces(const hy_shape *s, hy_param_kind matrix) {
    hy_adapter_pieces out = {0};
    int32_t first = hy_adapter_first_part(matrix, s->is_gated);
    out.count = hy_shape_pieces(s, matrix, out.rows);
    if (hy_family_packs(hy_shape_family(s), matrix)) {
        for (int32_t i = 1; i < out.count; i++) out.rows[0] += out.rows[i];
        out.count = 1;
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
static void set_adapter(hy_param *param, const hy_shape *s) {
    hy_adapter_pieces pieces = hy_shape_adapter_pieces(s, hy_adapter_matrix(param->kind));
    bool is_b = hy_is_adapter_b(param->kind);
    param->init_std = 0;
    if (!is_b) param->init_bound = 1 / sqrt((double)param->shape[1]);
    for (int32_t i = 0; i < pieces.count && pieces.adapted > 1; i++) {
        if (!pieces.is_there[i]) continue;
        param->piece_rows[param->pieces++] = is_b ? pieces.rows[i] : s->adapter.rank;
    }
}

static void set_matrix(hy_param *param, const hy_shape *s) {
    int32_t pieces = hy_shape_pieces(s, param->kind, param->piece_rows);
    param->pieces = pieces > 1 ? pieces : 0;
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

/* The weights that the unit's lists read, in the order of its nodes. */
static void add_unit(hy_params *p, const hy_shape *s, int32_t unit) {
    hy_unit lists;
    hy_unit_traits traits = hy_unit_traits_of(s, unit);
    hy_unit_init(&lists, s, &traits);
    for (int i = 1; i < lists.slot_count; i++) {
        const hy_slot *slot = &lists.slots[i];
        if (slot->role != HY_SLOT_PARAM) continue;
        if (slot->param == HY_P_HEAD && s->has_tied_head) {
            p->at[unit * HY_P_KIND_COUNT + HY_P_HEAD] = hy_params_find(p, 0, HY_P_TOKENS);
            continue;
        }
        hy_param *param = &p->list[p->count];
        add(p, s, unit, slot->param, slot->fixed_rows, slot->cols);
        if (hy_linear_bit(param->kind)) set_matrix(param, s);
        if (hy_is_adapter(param->kind)) set_adapter(param, s);
    }
}

hy_status hy_params_init(hy_params *p, const hy_shape *s) {
    *p = (hy_params){.units = s->layers + 2};
    size_t slots = (size_t)p->units * HY_P_KIND_COUNT;
    p->list = calloc(slots, sizeof *p->list);
    p->at = malloc(slots * sizeof *p->at);
    if (!p->list || !p->at) {
        hy_params_fini(p);
        return hy_fail(HY_ERR_MEMORY, "not enough memory for the list of parameters of %d blocks",
                       s->layers);
    }
    for (size_t i = 0; i < slots; i++) p->at[i] = -1;
    for (int32_t unit = 0; unit < p->units; unit++) add_unit(p, s, unit);
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
        if (param->init_decay > 0) {
            uint64_t index = (uint64_t)(param->first + first + i);
            double share = hy_rng_uniform(seed, HY_RNG_INIT, index);
            value = log(HY_DECAY_LEAST + share * (param->init_decay - HY_DECAY_LEAST));
        } else if (param->init_bound > 0) {
            uint64_t index = (uint64_t)(param->first + first + i);
            value = param->init_bound * (2 * hy_rng_uniform(seed, HY_RNG_INIT, index) - 1);
        } else if (param->init_std > 0 && first + i < param->stored) {
            uint64_t index = (uint64_t)(param->first + first + i);
            value += param->init_std * hy_rng_normal(seed, HY_RNG_INIT, index);
        }
        out[i] = (float)value;
    }
}
