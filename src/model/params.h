/* params.h: the parameters of a model, by name, unit and kind.
 *
 * Units are numbered 0 (embedding), 1 .. L (blocks), L+1 (final norm and head). A parameter belongs
 * to one unit; a tied head uses the embedding's and has none. Weights are (out, in).
 *
 * Parameters are trained or frozen. Gradients, optimizer state and master weights exist only for
 * trained ones, and the two sets have separate stores: a class is laid out over one set. */
#pragma once

#include "memory/layout.h"
#include "model/shape.h"

/* The places a parameter can have in a unit. */
typedef enum hy_param_kind {
    HY_P_TOKENS,    /* (V,C) */
    HY_P_POSITIONS, /* (context,C) */
    HY_P_NORM1,
    HY_P_NORM1_BIAS,
    HY_P_QKV, /* ((H+2K)D, C): q heads, k heads, v heads; with gates (2H+2K)D: each q head, then its
                 gate */
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
    HY_P_HEAD,        /* (V,C) */
    HY_P_NORM1_AFTER, /* norms of what attention and mlp add to the residual */
    HY_P_NORM1_AFTER_BIAS,
    HY_P_NORM2_AFTER,
    HY_P_NORM2_AFTER_BIAS,
    HY_P_SINKS, /* (H) */
    /* Linear attention, with Hk key heads of Dk and H value heads of Dv numbers */
    HY_P_LINEAR_QKV,  /* (2 Hk Dk + H Dv, C): q heads, k heads, v heads */
    HY_P_LINEAR_Z,    /* (H Dv, C): gates of the output */
    HY_P_LINEAR_BA,   /* (2 H, C): strengths b, then decays a */
    HY_P_CONV,        /* (2 Hk Dk + H Dv, J) */
    HY_P_A_LOG,       /* (H) */
    HY_P_DT_BIAS,     /* (H) */
    HY_P_LINEAR_NORM, /* (Dv) */
    HY_P_LINEAR_OUT,  /* (C, H Dv) */
    /* Low-rank adapters, in the order of the matrices' bits: A (P r, in), B (rows of those
     * pieces, r). */
    HY_P_QKV_A,
    HY_P_QKV_B,
    HY_P_OUT_A,
    HY_P_OUT_B,
    HY_P_UP_A,
    HY_P_UP_B,
    HY_P_DOWN_A,
    HY_P_DOWN_B,
    HY_P_LINEAR_QKV_A,
    HY_P_LINEAR_QKV_B,
    HY_P_LINEAR_Z_A,
    HY_P_LINEAR_Z_B,
    HY_P_LINEAR_BA_A,
    HY_P_LINEAR_BA_B,
    HY_P_LINEAR_OUT_A,
    HY_P_LINEAR_OUT_B,
    HY_P_KIND_COUNT
} hy_param_kind;

/* The matrices of a block, each with a number and a bit. A new one is added at the end, and its
 * adapter's kinds after those of the others. */
#define HY_LINEARS 8
static inline hy_param_kind hy_linear_kind(int index) {
    static const hy_param_kind kinds[HY_LINEARS] = {HY_P_QKV,       HY_P_OUT,        HY_P_UP,
                                                    HY_P_DOWN,      HY_P_LINEAR_QKV, HY_P_LINEAR_Z,
                                                    HY_P_LINEAR_BA, HY_P_LINEAR_OUT};
    return kinds[index];
}
_Static_assert(HY_LINEARS <= 32 && HY_P_QKV_A + 2 * HY_LINEARS == HY_P_KIND_COUNT,
               "a matrix has a bit and two kinds for its adapter");
/* The number of a block's matrix; -1: the kind is not one of them. */
static inline int8_t hy_linear_index(hy_param_kind kind) {
    int8_t i = HY_LINEARS - 1;
    while (i >= 0 && hy_linear_kind(i) != kind) i--;
    return i;
}
static inline uint32_t hy_linear_bit(hy_param_kind kind) {
    return hy_linear_index(kind) < 0 ? 0 : 1u << hy_linear_index(kind);
}
static inline uint32_t hy_mlp_bits(void) {
    return hy_linear_bit(HY_P_UP) | hy_linear_bit(HY_P_DOWN);
}
/* Is it neither quantised nor in fp8? The rows of b and a decide how fast a state decays, and conv
 * is no matrix of a matmul. */
static inline bool hy_kind_stays_real(hy_param_kind kind) {
    return kind == HY_P_LINEAR_BA || kind == HY_P_CONV;
}
/* The A of a matrix's adapter; its B is the next kind. */
static inline hy_param_kind hy_adapter_kind(hy_param_kind matrix) {
    return (hy_param_kind)(HY_P_QKV_A + 2 * hy_linear_index(matrix));
}
static inline bool hy_is_adapter(hy_param_kind kind) {
    return kind >= HY_P_QKV_A && kind < HY_P_KIND_COUNT;
}
/* For an adapter's A or B: is it B, and which matrix does it belong to? */
static inline bool hy_is_adapter_b(hy_param_kind kind) {
    return hy_is_adapter(kind) && (kind - HY_P_QKV_A) % 2 == 1;
}
static inline hy_param_kind hy_adapter_matrix(hy_param_kind kind) {
    return hy_linear_kind((kind - HY_P_QKV_A) / 2);
}

#define HY_PARAM_NAME_MAX 160
#define HY_PARAM_DIMS 8
#define HY_PARAM_PIECES 3
#define HY_PARAM_PLACES 4 /* classes with a place by group: HY_WEIGHTS to HY_OPTIM */

/* The matrices stacked in one matrix of a block (q, k and v; gate and up): their number, and the
 * rows of each. */
int32_t hy_shape_pieces(const hy_shape *shape, hy_param_kind matrix, int64_t rows[HY_PARAM_PIECES]);

/* The pieces of a matrix that have their own adapters. */
typedef struct hy_adapter_pieces {
    int32_t count;                  /* pieces of the matrix, 1 to HY_PARAM_PIECES */
    int32_t adapted;                /* pieces with an adapter; 0: none */
    int64_t rows[HY_PARAM_PIECES];  /* of each piece */
    bool is_there[HY_PARAM_PIECES]; /* whether the piece has an adapter */
} hy_adapter_pieces;
hy_adapter_pieces hy_shape_adapter_pieces(const hy_shape *shape, hy_param_kind matrix);
/* The hy_adapter_part of a matrix's first piece; the bits of its other pieces follow. */
int32_t hy_adapter_first_part(hy_param_kind matrix, bool is_gated);
/* Rows of A and of B before those of a piece. */
typedef struct hy_adapter_rows {
    int64_t a, b;
} hy_adapter_rows;
hy_adapter_rows hy_adapter_rows_before(const hy_adapter_pieces *pieces, int32_t piece,
                                       int64_t rank);

/* What a group of parameters (optim/groups.h) sets for a parameter instead of the run. 0: the run's
 * value; types are 1 + hy_dtype. */
typedef struct hy_param_own {
    int32_t group;                    /* the last group that set one of these, for messages */
    hy_place place[HY_PARAM_PLACES];  /* by class; all parameters of a unit have the same */
    int32_t optim, frozen, precision; /* types of optimizer state, frozen storage, matmuls */
} hy_param_own;

typedef struct hy_param {
    char name[HY_PARAM_NAME_MAX]; /* "blocks.3.attn.qkv.weight" */
    hy_param_kind kind;
    int32_t unit;
    int32_t ndim;
    int64_t
        shape[HY_PARAM_DIMS]; /* one to HY_MAX_DIMS dimensions; in a custom model zero to eight */
    int64_t count;
    /* Elements without padding. A vocabulary's last rows may be padding: they are always zero and
     * are not written to files. */
    int64_t stored;
    int64_t first;     /* index of element 0 among all parameters: the key of its random numbers */
    bool is_trainable; /* otherwise it is frozen: it has no gradient and never changes */
    bool has_decay;    /* weight decay: matrices */
    bool is_beside;    /* trained whole in addition to adapters, and stored with them */
    bool stays_real;   /* not quantised, although other frozen matrices are */
    int32_t frozen_as; /* frozen, of a custom model: 1 + the type in which its caller uses it */
    /* A large parameter of a custom model has several entries in the list, its parts, each with
     * the shape of the whole (param_list.h); all but the last have `part` elements. */
    int32_t whole;         /* index of the caller's parameter that this is, or is a part of */
    int64_t part, part_at; /* elements of a part, and before this part; 0: not a part */
    /* Number of matrices stacked in this one: q, k and v; gate and up. 0: not stacked. */
    int32_t pieces;
    int64_t piece_rows[HY_PARAM_PIECES];
    bool is_hidden;        /* a matrix inside the model: neither a token table nor a head */
    double own_decay;      /* instead of the run's, if it is 0 or more */
    int32_t own_optimizer; /* 1 + hy_optimizer_id, instead of the run's; 0: the run's */
    double lr_scale;       /* factor on the run's learning rate */
    bool is_skipped;       /* updates leave it as it is, and its gradient is not read */
    int64_t missed;        /* updates that skipped it */
    hy_param_own own;
    double init_mean, init_std;
    double init_bound; /* above 0: uniform from -init_bound to init_bound instead */
    double init_decay; /* above 0: log of uniform from HY_DECAY_LEAST to init_decay instead */
} hy_param;

typedef struct hy_params {
    hy_param *list;
    int32_t count, units;
    int64_t elements;      /* all parameters together */
    hy_dtype frozen_codes; /* a quantised type: frozen matrices are stored in it */
    bool has_plain_scales; /* their scales are fp32, never two-level */
    /* Index in list of each kind in each unit, -1: none: at[unit * HY_P_KIND_COUNT + kind]. A
     * tied head's HY_P_HEAD is the embedding's HY_P_TOKENS. */
    int32_t *at;
} hy_params;

hy_status hy_params_init(hy_params *params, const hy_shape *shape);
void hy_params_fini(hy_params *params);

static inline int32_t hy_params_find(const hy_params *p, int32_t unit, hy_param_kind kind) {
    return p->at[unit * HY_P_KIND_COUNT + kind];
}

/* The embedding's table if the head shares it; -1: the head has its own, or a custom model has
 * neither. */
static inline int32_t hy_params_tied_table(const hy_params *p) {
    int32_t table = p->at ? hy_params_find(p, 0, HY_P_TOKENS) : -1;
    return table >= 0 && hy_params_find(p, p->units - 1, HY_P_HEAD) == table ? table : -1;
}

/* The length of a row. Where a matrix is needed, a parameter with more dimensions is the stack of
 * its matrices: (E, out, in) has E x out rows. */
static inline int64_t hy_param_width(const hy_param *p) {
    return p->ndim > 1 ? p->shape[p->ndim - 1] : 1;
}
static inline int64_t hy_param_rows(const hy_param *p) { return p->count / hy_param_width(p); }

/* The number of matrices stacked in a parameter: at least one. */
static inline int32_t hy_param_pieces(const hy_param *p) { return p->pieces > 0 ? p->pieces : 1; }
static inline int64_t hy_param_piece_rows(const hy_param *p, int32_t piece) {
    return p->pieces > 0 ? p->piece_rows[piece] : hy_param_rows(p);
}

/* Rows that files hold. */
static inline int64_t hy_param_stored_rows(const hy_param *p) {
    return p->stored / hy_param_width(p);
}

#define HY_DECAY_LEAST 0.01

/* Initial values of elements [first, first + count) of a parameter: normal with the deviation of
 * its kind, ones for norms, zeros for biases; a pure function of the seed. */
void hy_param_initial(const hy_param *param, uint64_t seed, int64_t first, int64_t count,
                      float *out);
