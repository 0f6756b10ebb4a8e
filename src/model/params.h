/* params.h: the parameters of a model, by name, unit and kind.
 *
 * Units are numbered 0 (embedding), 1 .. L (blocks), L+1 (final norm and head). A parameter belongs to
 * one unit; a tied head uses the embedding's and owns none of its own. Weights are (out, in).
 *
 * Parameters are trained or frozen. Gradients, optimizer state and master weights exist for the trained
 * ones alone, and the two sets have stores of their own: a class is laid out over a set. */
#pragma once

#include "memory/layout.h"
#include "model/shape.h"

/* The places a parameter can have in a unit. */
typedef enum hy_param_kind {
    HY_P_TOKENS,    /* (V,C) */
    HY_P_POSITIONS, /* (context,C) */
    HY_P_NORM1,
    HY_P_NORM1_BIAS,
    HY_P_QKV, /* ((H+2K)D, C): q heads, k heads, v heads */
    HY_P_QKV_BIAS,
    HY_P_Q_NORM,
    HY_P_K_NORM,
    HY_P_OUT, /* (C, H D) */
    HY_P_OUT_BIAS,
    HY_P_NORM2,
    HY_P_NORM2_BIAS,
    HY_P_UP, /* (F,C), or with a gate (2F,C): gate rows first */
    HY_P_UP_BIAS,
    HY_P_DOWN, /* (C,F) */
    HY_P_DOWN_BIAS,
    HY_P_FINAL_NORM,
    HY_P_FINAL_NORM_BIAS,
    HY_P_HEAD, /* (V,C) */
    /* Low-rank adapters, in the order of the matrices' bits: A (P r, in), B (rows of those pieces, r). */
    HY_P_QKV_A,
    HY_P_QKV_B,
    HY_P_OUT_A,
    HY_P_OUT_B,
    HY_P_UP_A,
    HY_P_UP_B,
    HY_P_DOWN_A,
    HY_P_DOWN_B,
    HY_P_KIND_COUNT
} hy_param_kind;

/* Which matmuls of the blocks are in fp8 (kernels/fp8.h): a bit for each matrix, by hy_linear_bit. */
typedef struct hy_fp8_use {
    uint32_t
        weights; /* the matmuls that read the matrix: forward, and the gradient that goes on down */
    uint32_t grads;    /* the matmul that makes its gradient */
    hy_dtype gradient; /* of the gradients that go into them: HY_E4M3 or HY_E5M2 */
    bool is_fast;      /* forward sums may have fewer bits than fp32 has */
    bool is_frozen;    /* frozen matrices are stored as codes: `weights` counts for them too */
} hy_fp8_use;

/* What is told of the numbers of a unit that became codes: HY_OP_TO_FP8's three figures of inputs, then of
 * gradients. */
#define HY_SEEN 6
#define HY_SEEN_GRADIENTS 3

#define HY_LINEARS 4 /* matrices of a block */
static inline uint32_t hy_linear_bit(hy_param_kind kind) {
    switch (kind) {
    case HY_P_QKV: return 1;
    case HY_P_OUT: return 2;
    case HY_P_UP: return 4;
    case HY_P_DOWN: return 8;
    default: return 0;
    }
}
/* The A of a matrix' adapter; its B is the next kind. */
static inline hy_param_kind hy_adapter_kind(hy_param_kind matrix) {
    int kind = HY_P_QKV_A;
    for (uint32_t bit = hy_linear_bit(matrix); bit > 1; bit >>= 1) kind += 2;
    return (hy_param_kind)kind;
}
/* The weight of the module that a parameter is of: its own kind, or of a bias the one before it. */
hy_param_kind hy_param_weight_of(hy_param_kind kind);
/* What a parameter of this kind is called within its unit: "attn.qkv.weight". */
const char *hy_param_kind_name(hy_param_kind kind, bool is_gated);

static inline bool hy_is_adapter(hy_param_kind kind) {
    return kind >= HY_P_QKV_A && kind <= HY_P_DOWN_B;
}
/* Of an adapter's A or B: whether it is the B, and the matrix it stands beside. */
static inline bool hy_is_adapter_b(hy_param_kind kind) {
    return hy_is_adapter(kind) && (kind - HY_P_QKV_A) % 2 == 1;
}
static inline hy_param_kind hy_adapter_matrix(hy_param_kind kind) {
    static const hy_param_kind matrices[] = {HY_P_QKV, HY_P_OUT, HY_P_UP, HY_P_DOWN};
    return matrices[(kind - HY_P_QKV_A) / 2];
}

/* The pieces of a matrix that have adapters of their own. */
typedef struct hy_adapter_pieces {
    int32_t count;    /* of the matrix, 1 to HY_PARAM_PIECES */
    int32_t adapted;  /* of these, with an adapter; 0: the matrix has none */
    int64_t rows[3];  /* of each piece */
    bool is_there[3]; /* which have one */
} hy_adapter_pieces;
hy_adapter_pieces hy_shape_adapter_pieces(const hy_shape *shape, hy_param_kind matrix);
/* Rows of A and of B that lie before those of a piece. */
typedef struct hy_adapter_rows {
    int64_t a, b;
} hy_adapter_rows;
hy_adapter_rows hy_adapter_rows_before(const hy_adapter_pieces *pieces, int32_t piece,
                                       int64_t rank);

static inline bool hy_uses_fp8(const hy_fp8_use *use) { return use->weights || use->grads; }

#define HY_PARAM_NAME_MAX 160
#define HY_PARAM_DIMS 8
#define HY_PARAM_PIECES 3

typedef struct hy_param {
    char name[HY_PARAM_NAME_MAX]; /* "blocks.3.attn.qkv.weight" */
    hy_param_kind kind;
    int32_t unit;
    int32_t ndim;
    int64_t shape[HY_PARAM_DIMS]; /* ours have one or two dimensions, a guest's may have none */
    int64_t count;
    int64_t stored; /* elements that mean something: a vocabulary's last rows may be padding, which
                          is zero, stays zero, and is not written to files */
    int64_t first;  /* logical index of element 0 among all parameters: keys random numbers */
    bool is_trainable; /* else it is frozen: it has no gradient and never changes */
    bool has_decay;    /* weight decay: matrices */
    bool is_beside;    /* trained whole beside adapters: it goes where they go */
    bool
        stays_real; /* a matrix that is no code where other frozen ones are: its files have it so */
    /* A large parameter of a guest is a row of parts, so that what travels is small: each is an entry of the list,
     * with the shape of the whole; all but the last have `part` elements. */
    int32_t whole;         /* which of the guest's it is, or is a part of */
    int64_t part, part_at; /* elements before this one; part 0: it is no part */
    /* Matrices that lie one below the other in this one: q, k and v; gate and up. 0: it is one. */
    int32_t pieces;
    int64_t piece_rows[HY_PARAM_PIECES];
    bool is_hidden;        /* a matrix inside the model: neither a table of tokens nor a head */
    double own_decay;      /* instead of the run's, where it is 0 or more */
    int32_t own_optimizer; /* 1 + hy_optimizer_id: instead of the run's; 0: that */
    double lr_scale;       /* of the run's learning rate */
    double init_mean, init_std;
    double init_bound; /* above 0: uniform between it and its negative instead */
} hy_param;

typedef struct hy_params {
    hy_param *list;
    int32_t count, units;
    int64_t elements;      /* all parameters together */
    hy_dtype frozen_codes; /* if it is a coded type, frozen matrices are stored so */
    bool has_plain_scales; /* whose scales are then fp32 in any case */
    /* Index in list of each kind in each unit, -1 where it has none: at[unit * HY_P_KIND_COUNT + kind].
     * A tied head's HY_P_HEAD is the embedding's HY_P_TOKENS. */
    int32_t *at;
} hy_params;

hy_status hy_params_init(hy_params *params, const hy_shape *shape);

/* A parameter of a model that is not ours. */
typedef struct hy_param_spec {
    const char *name;
    int32_t ndim;
    const int64_t *shape;
    double lr_scale;
    double decay; /* below 0: the run's, for what has two dimensions or more */
} hy_param_spec;
/* These instead of a shape's, all of them trained; `at` is NULL. Neighbours share a unit as long as it stays
 * small, and large ones are cut into parts. HY_ERR_INPUT names what cannot be. */
hy_status hy_params_init_list(hy_params *params, const hy_param_spec *list, int32_t count);
void hy_params_fini(hy_params *params);

/* Elements of the whole that an entry of the list is, or is a part of. */
int64_t hy_param_whole_count(const hy_param *param);

static inline int32_t hy_params_find(const hy_params *p, int32_t unit, hy_param_kind kind) {
    return p->at[unit * HY_P_KIND_COUNT + kind];
}

/* The embedding's table where the head works with it; -1: it has its own, or a guest has neither. */
static inline int32_t hy_params_tied_table(const hy_params *p) {
    int32_t table = p->at ? hy_params_find(p, 0, HY_P_TOKENS) : -1;
    return table >= 0 && hy_params_find(p, p->units - 1, HY_P_HEAD) == table ? table : -1;
}

typedef enum hy_param_set { HY_SET_ALL, HY_SET_TRAINABLE, HY_SET_FROZEN } hy_param_set;

/* Marks the parameters that a list of names means, commas between them: `*` stands for any letters and `?`
 * for one, as in "blocks.3.attn.*"; "last:N" for the last N blocks, the final norm and the head, unless that
 * is the embedding's table too: training it would take a backward pass through all blocks; "all" for all.
 * Marks of others stay. HY_ERR_INPUT names an entry that matches nothing. */
hy_status hy_params_match(const hy_params *params, const char *names, bool *is_meant);
/* Those are trained and the others frozen; where it fails, what is trained is as before. */
hy_status hy_params_select(hy_params *params, const char *names);

/* Of a model with adapters: what these names mean besides them is trained whole beside them. */
hy_status hy_params_mark_beside(hy_params *params, const char *names);

/* The type in which a parameter is stored where the others are of `dtype`: frozen_codes for frozen matrices
 * of blocks that do not stay as they are, and, unless they are nf4, a table that tokens are looked up in; not the head, whose logits are
 * most delicate, nor a table that it shares. */
hy_dtype hy_params_stored(const hy_params *params, int32_t index, hy_dtype dtype);

/* The matrices that a parameter is, one below the other: at least one. */
static inline int32_t hy_param_pieces(const hy_param *p) { return p->pieces > 0 ? p->pieces : 1; }
static inline int64_t hy_param_piece_rows(const hy_param *p, int32_t piece) {
    return p->pieces > 0 ? p->piece_rows[piece] : p->shape[0];
}

/* Elements that share a scale where a parameter is stored in codes (kernels/coded.h); 0: it cannot be. */
int32_t hy_param_block(const hy_param *param, hy_dtype dtype);

/* Blocks that share a pair in scales of two levels (hy_quant): as many as may, or the largest power of two
 * that divides the blocks of each piece. 0: this type's scales are fp32. */
int32_t hy_param_group(const hy_param *param, hy_dtype dtype);
/* The same of a parameter as it is stored: 0 also where has_plain_scales says so. */
int32_t hy_params_group(const hy_params *params, int32_t index, hy_dtype dtype);

/* The layout of a class in which every parameter of a set has one tensor of this type; frozen ones are
 * codes where they are stored so. 8-bit codes (HY_U8) come with a scale for 256 elements; what
 * is small, and often delicate (biases, norms), stays fp32 then. */
hy_status hy_params_layout(const hy_params *params, hy_param_set set, hy_dtype dtype,
                           hy_layout *out);

/* What a parameter has in a class that is not shaped like the parameters. */
typedef struct hy_param_extent {
    int64_t count; /* elements; 0: none */
    bool is_exact; /* fp32, whatever type the others have */
} hy_param_extent;
/* The layout of such a class: `extents` has one for each parameter. */
hy_status hy_params_extents_layout(const hy_params *params, const hy_param_extent *extents,
                                   hy_dtype dtype, hy_layout *out);

/* The matrices whose matmuls could be in fp8: those that are trained in some block, and for `weights` the
 * frozen ones too where they are stored as codes of it. */
hy_fp8_use hy_params_fp8_possible(const hy_params *params);
/* The layout of a copy of the blocks' trained weights for passes in fp8: codes of the matrices that `use` reads
 * so, bf16 of all else. */
hy_status hy_params_fp8_layout(const hy_params *params, const hy_fp8_use *use, hy_layout *out);
/* The type in which it has a parameter; HY_DTYPE_COUNT: it has it not. */
hy_dtype hy_params_fp8_stored(const hy_params *params, int32_t index, const hy_fp8_use *use);

/* Rows that files hold. */
static inline int64_t hy_param_stored_rows(const hy_param *p) {
    return p->ndim == 2 ? p->stored / p->shape[1] : p->stored;
}

/* Initial values of elements [first, first + count) of a parameter: normal with the deviation of its
 * kind, ones for norms, zeros for biases; a pure function of the seed. */
void hy_param_initial(const hy_param *param, uint64_t seed, int64_t first, int64_t count,
                      float *out);
