/* card_backend.c: simulates the CUDA backend's answers for a named card. See card_backend.h.
 *
 * Workspace sizes follow the kernels in cuda/. The largest are attention's backward pass (row sums,
 * and partial sums if several blocks share the query heads of a key), the embedding's sort, and the
 * workspace limit of matmul algorithms. Sums over rows need a few partial rows per
 * multiprocessor. */
#include "kernels/card_backend.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/text.h"
#include "kernels/attention_layout.h"
#include "kernels/delta_layout.h"
#include "kernels/grouped.h"
#include "kernels/ops.h"

#define FIRST_WITH_TILES 80 /* first capability with the fast attention kernels */
#define ATTENTION_HEAD_LIMIT 256
#define EMBED_WINDOW 32 /* rows summed by one block of the embedding's backward pass */
#define SORT_TILE 2048
/* Share of a card's memory that is left after the context and the desktop: 15.25 GiB of 16,303
 * MiB. */
#define FREE_SHARE 0.958
/* The share of the data sheet's rate that a large matmul reaches; large cards throttle or wait
 * more. */
#define SHARE_OF_PEAK 0.90
#define SHARE_OF_PEAK_SM90 0.81

typedef struct card_backend {
    hy_backend backend;
    const hy_card *card;
} card_backend;

static const hy_card *card_of(const hy_backend *b) { return ((card_backend *)b->self)->card; }

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static size_t rounded(int64_t bytes) { return (size_t)ceil_div(bytes, 256) * 256; }

/* ---- ops ------------------------------------------------------------------------------------- */

static bool runs_on_tiles(const hy_card *card, const hy_op_call *call) {
    return card->capability >= FIRST_WITH_TILES && call->t[HY_ATTENTION_BWD_DOUT].dtype != HY_F32 &&
           hy_attention_has_tiles(&call->attr.heads);
}

static size_t embed_bwd_workspace(const hy_op_call *call) {
    const hy_tensor *t = call->t;
    int64_t N = hy_tensor_count(&t[HY_EMBED_BWD_TOKENS]), C = hy_tensor_width(&t[HY_EMBED_BWD_DX]);
    int64_t windows = ceil_div(N, EMBED_WINDOW);
    bool sorts = t[HY_EMBED_BWD_DWTE].data || t[HY_EMBED_BWD_DOC_STARTS].data;
    if (!sorts) return 0;
    return 2 * rounded(N * 4) + rounded(ceil_div(N, SORT_TILE) * 1024) + rounded(windows * 4) +
           rounded(windows * 2 * C * 4);
}

/* Adafactor's tiles are 256 columns wide; rows are divided among at most 256 blocks, at least 64
 * rows each. */
static size_t adafactor_workspace(const hy_op_call *call) {
    enum { TILE = 256, BLOCKS = 256, ROWS = 64 };
    const hy_tensor *param = &call->t[HY_UPDATE_PARAM];
    bool is_factored = call->attr.adafactor.is_factored;
    int64_t width = is_factored ? hy_tensor_width(param) : TILE;
    int64_t rows = ceil_div(hy_tensor_count(param), width), tiles = ceil_div(width, TILE);
    int64_t each = ceil_div(rows, BLOCKS) > ROWS ? ceil_div(rows, BLOCKS) : ROWS;
    int64_t blocks = ceil_div(rows, each);
    size_t sums = is_factored ? rounded(tiles * rows * 4) + rounded(blocks * width * 4) : 0;
    return rounded(1) + rounded(2 * tiles * blocks * 8) + sums;
}

/* A row is divided into stripes of 16,384 elements, at most 128. */
static size_t to_unit_workspace(const hy_op_call *call) {
    const hy_tensor *x = &call->t[HY_TO_UNIT_X];
    int64_t stripes = ceil_div(hy_tensor_width(x), 16384);
    return (size_t)(hy_tensor_height(x) * (stripes < 128 ? stripes : 128)) * sizeof(double);
}

/* How often each sequence chose each expert. */
static size_t route_workspace(const hy_op_call *call) {
    const hy_route_attr *a = &call->attr.route;
    bool is_forward = call->kind == HY_OP_ROUTE;
    const hy_tensor *logits = &call->t[is_forward ? HY_ROUTE_LOGITS : HY_ROUTE_BWD_LOGITS];
    bool counts = is_forward ? hy_tensor_is_given(&call->t[HY_ROUTE_LOSSES]) : a->balance != 0;
    return counts ? rounded(hy_tensor_count(logits) / a->seq * 4) : 0;
}

/* Sums for the weights of each run of 128 rows. */
static size_t conv_bwd_workspace(const hy_op_call *call) {
    const hy_tensor *t = call->t;
    int64_t T = call->attr.conv.seq, sequences = hy_tensor_height(&t[HY_CONV_BWD_X]) / T;
    if (!t[HY_CONV_BWD_DWEIGHT].data) return 0;
    return rounded(sequences * ceil_div(T, 128) * hy_tensor_count(&t[HY_CONV_BWD_WEIGHT]) * 4);
}

/* Sums for the weight of each block of eight heads, at most 1056. */
static size_t gate_bwd_workspace(const hy_op_call *call) {
    const hy_tensor *t = call->t;
    int64_t D = call->attr.gate.head_dim;
    int64_t blocks = ceil_div(hy_tensor_count(&t[HY_GATE_BWD_X]) / D, 8);
    if (!t[HY_GATE_BWD_DWEIGHT].data) return 0;
    return rounded((blocks < 1056 ? blocks : 1056) * D * 4);
}

/* For sums over rows, each active block has a row of partial sums. */
static size_t card_workspace(hy_backend *b, const hy_op_call *call) {
    const hy_card *card = card_of(b);
    const hy_tensor *t = call->t;
    int64_t processors = card->multiprocessors;
    switch (call->kind) {
    case HY_OP_MATMUL: {
        const hy_tensor *bias = &t[HY_MATMUL_BIAS];
        return ((size_t)(card->capability >= 90 ? 32 : 8) << 20) +
               (bias->data ? rounded(4 * hy_tensor_count(bias)) : 0);
    }
    case HY_OP_ATTENTION_BWD: {
        const hy_heads_attr *a = &call->attr.heads;
        return runs_on_tiles(card, call)
                   ? hy_attention_bwd_layout_of(call, card->multiprocessors, b->facts.memory_total)
                         .bytes
                   : (size_t)a->batch * (size_t)a->seq * (size_t)a->heads * sizeof(float);
    }
    case HY_OP_CONV_BWD: return conv_bwd_workspace(call);
    case HY_OP_DELTA:
    case HY_OP_DELTA_BWD:
    case HY_OP_DELTA_CACHED: return hy_delta_layout_of(call, card->capability).bytes;
    case HY_OP_GATE_BWD: return gate_bwd_workspace(call);
    case HY_OP_EMBED_BWD: return embed_bwd_workspace(call);
    case HY_OP_NORM_BWD: return rounded(processors * 4 * hy_tensor_width(&t[HY_NORM_BWD_DY]) * 4);
    case HY_OP_HEAD_NORM_BWD: {
        const hy_heads_attr *a = &call->attr.heads;
        return a->is_whole ? rounded(processors * 4 * a->heads * a->head_dim * 4)
                           : rounded(processors * 6 * a->head_dim * 4);
    }
    case HY_OP_BIAS_GRAD: return rounded(processors * 4 * 512 * 4);
    case HY_OP_ADAFACTOR: return adafactor_workspace(call);
    case HY_OP_ROUTE:
    case HY_OP_ROUTE_BWD: return route_workspace(call);
    case HY_OP_SORT_EXPERTS: {
        int64_t E = hy_tensor_count(&t[HY_SORT_EXPERTS_OFFSETS]) - 1;
        return rounded(ceil_div(hy_tensor_count(&t[HY_SORT_EXPERTS_CHOICE]), SORT_TILE) * E * 4);
    }
    case HY_OP_GROUPED_MATMUL: return hy_grouped_decode_of(call).bytes;
    case HY_OP_TO_UNIT: return to_unit_workspace(call);
    case HY_OP_SUM:
    case HY_OP_SQ_NORM:
    case HY_OP_DIFF_DOT: return (size_t)(8 * processors * 3) * sizeof(double);
    default: return 0;
    }
}

static hy_status card_supports(hy_backend *b, const hy_op_call *call) {
    const hy_tensor *t = call->t, *d = &t[HY_MATMUL_D];
    HY_TRY(hy_op_check(call));
    if (call->kind == HY_OP_MATMUL) {
        bool has_gelu = call->attr.matmul.is_gelu || t[HY_MATMUL_ACT].data || t[HY_MATMUL_PRE].data;
        bool is_narrow = t[HY_MATMUL_A].dtype != HY_F32 && d->dtype != HY_F32;
        bool is_even = hy_tensor_width(d) % 8 == 0 && hy_tensor_height(d) % 8 == 0;
        HY_FAIL_IF(has_gelu && !(is_narrow && is_even), HY_ERR_INPUT,
                   "matmul: gelu can be fused only into 16-bit matmuls in which the numbers of "
                   "rows and columns are multiples of 8");
        HY_TRY(hy_op_check_fp8(call, b->facts.name, b->facts.capability));
    }
    bool is_attention = call->kind == HY_OP_ATTENTION || call->kind == HY_OP_ATTENTION_BWD;
    HY_FAIL_IF(is_attention && call->attr.heads.head_dim > ATTENTION_HEAD_LIMIT, HY_ERR_INPUT,
               "%s: head_dim is %d, expected at most %d on %s", hy_op_name(call->kind),
               call->attr.heads.head_dim, ATTENTION_HEAD_LIMIT, b->facts.name);
    return HY_OK;
}

static hy_status card_prepare(hy_backend *b, hy_op_call *call) {
    call->plan = NULL;
    return card_supports(b, call);
}

/* ---- functions that a plan does not use ------------------------------------------------------ */

static hy_status card_alloc(hy_backend *b, hy_place place, size_t bytes, void **out) {
    (void)b, (void)place, (void)bytes;
    *out = NULL;
    return hy_fail(HY_ERR_STATE,
                   "this card is only simulated for planning; it cannot run anything");
}

/* Streams and events are NULL; callers only pass them back to the backend. */
static hy_status card_stream_create(hy_backend *b, const char *name, hy_stream **out) {
    (void)b, (void)name;
    *out = NULL;
    return HY_OK;
}

static hy_status card_event_create(hy_backend *b, hy_event **out) {
    (void)b;
    *out = NULL;
    return HY_OK;
}

/* ---- creating -------------------------------------------------------------------------------- */

static void card_destroy(hy_backend *b) { free(b->self); }

static hy_status unknown_card(const char *name) {
    hy_text known = {0};
    char each[HY_CARD_NAME];
    HY_FAIL_IF(hy_card_is_too_old(name), HY_ERR_INPUT, "card \"%s\" " HY_CARD_TOO_OLD, name);
    for (size_t i = 0; hy_card_at(i); i++) {
        hy_card_describe(hy_card_at(i), each, sizeof each);
        hy_text_addf(&known, "%s%s", i ? ", " : "", each);
    }
    hy_status status =
        hy_fail(HY_ERR_INPUT, "card \"%s\" is unknown; accepted: %s", name, hy_text_string(&known));
    hy_text_free(&known);
    return status;
}

/* The card's memory, and the other card of a pair that was sold with two sizes. */
static void describe_source(const hy_card *card, char *out, size_t size) {
    char other[HY_CARD_NAME];
    int length = snprintf(out, size, "%.0f GB by its data sheet", card->memory_mib / 1024.0);
    for (size_t i = 0; hy_card_at(i); i++) {
        if (hy_card_at(i) == card || strcmp(hy_card_at(i)->name, card->name) != 0) continue;
        hy_card_describe(hy_card_at(i), other, sizeof other);
        snprintf(out + length, size - (size_t)length, " (also: --card \"%s\")", other);
    }
}

hy_status hy_card_backend_create(const char *name, hy_backend **out) {
    const hy_card *card = hy_card_find(name);
    *out = NULL;
    if (!card) return unknown_card(name);
    card_backend *made = calloc(1, sizeof *made);
    HY_FAIL_IF(!made, HY_ERR_MEMORY, "not enough memory for a plan");
    double peak = 1e12 * card->teraflops, bytes = card->memory_mib * 0x1p20;
    made->card = card;
    made->backend = (hy_backend){
        .facts = {.is_gpu = true,
                  .capability = card->capability,
                  .memory_total = (size_t)bytes,
                  .memory_free = (size_t)(FREE_SHARE * bytes),
                  .peak_flops = peak,
                  .matmul_flops =
                      peak * (card->capability == 90 ? SHARE_OF_PEAK_SM90 : SHARE_OF_PEAK)},
        .self = made,
        .alloc = card_alloc,
        .stream_create = card_stream_create,
        .event_create = card_event_create,
        .supports = card_supports,
        .workspace = card_workspace,
        .prepare = card_prepare,
        .destroy = card_destroy,
    };
    hy_card_describe(card, made->backend.facts.name, sizeof made->backend.facts.name);
    describe_source(card, made->backend.facts.detail, sizeof made->backend.facts.detail);
    *out = &made->backend;
    return HY_OK;
}
