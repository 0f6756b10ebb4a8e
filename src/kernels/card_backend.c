/* card_backend.c: what the CUDA backend would answer on a named card. See card_backend.h.
 *
 * Workspace sizes follow the kernels in cuda/: what decides is attention's backward pass (row sums, and
 * partial sums where query heads that share keys are shared out), the embedding's sort, and the most a
 * matmul's algorithm may ask for. Sums over rows need a few partial rows per multiprocessor. */
#include "kernels/card_backend.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/text.h"
#include "kernels/attention_layout.h"
#include "kernels/ops.h"

#define FIRST_WITH_TILES 80 /* capability from which attention runs on its fast path */
#define ATTENTION_HEAD_LIMIT 256
#define EMBED_WINDOW 32 /* rows summed by one block of the embedding's backward pass */
#define SORT_TILE 2048
/* Of an otherwise empty card: the context, and a desktop's own use. 16,303 MiB leave 15.25 GiB. */
#define FREE_SHARE 0.958
/* Of the data sheet's rate, what a large matmul reaches; large cards throttle or wait more. */
#define SHARE_OF_PEAK 0.90
#define SHARE_OF_PEAK_SM90 0.81

typedef struct card_backend {
    hy_backend backend;
    const hy_card *card;
} card_backend;

static const hy_card *card_of(const hy_backend *b) { return ((card_backend *)b->self)->card; }

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static size_t rounded(int64_t bytes) { return (size_t)ceil_div(bytes, 256) * 256; }

/* ---- workspace ------------------------------------------------------------------------------------ */

static size_t matmul_workspace(const hy_card *card, const hy_op_call *call) {
    size_t most = card->capability >= 90 ? (size_t)32 << 20 : (size_t)8 << 20;
    const hy_tensor *bias = &call->t[HY_MATMUL_BIAS];
    return most + (bias->data ? rounded(4 * hy_tensor_count(bias)) : 0);
}

static bool runs_on_tiles(const hy_card *card, const hy_op_call *call) {
    static const int sizes[] = {64, 80, 96, 128, 256};
    if (card->capability < FIRST_WITH_TILES || call->t[HY_ATTENTION_BWD_DOUT].dtype == HY_F32)
        return false;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (call->attr.heads.head_dim == sizes[i]) return true;
    }
    return false;
}

static size_t attention_bwd_workspace(const hy_card *card, const hy_op_call *call) {
    int64_t rows = (int64_t)call->attr.heads.batch * call->attr.heads.seq * call->attr.heads.heads;
    return runs_on_tiles(card, call) ? hy_attention_bwd_layout_of(call, card->multiprocessors).bytes
                                     : (size_t)rows * sizeof(float);
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

/* A row of partial sums for each block at work. */
static size_t rows_workspace(const hy_card *card, const hy_op_call *call, int64_t blocks) {
    int64_t columns = hy_tensor_width(&call->t[HY_NORM_BWD_DY]);
    return rounded(card->multiprocessors * blocks * columns * 4);
}

static size_t card_workspace(hy_backend *b, const hy_op_call *call) {
    const hy_card *card = card_of(b);
    switch (call->kind) {
    case HY_OP_MATMUL: return matmul_workspace(card, call);
    case HY_OP_ATTENTION_BWD: return attention_bwd_workspace(card, call);
    case HY_OP_EMBED_BWD: return embed_bwd_workspace(call);
    case HY_OP_NORM_BWD: return rows_workspace(card, call, 4);
    case HY_OP_HEAD_NORM_BWD:
        return rounded(card->multiprocessors * 6 * call->attr.heads.head_dim * 4);
    case HY_OP_BIAS_GRAD: return rounded(card->multiprocessors * 4 * 512 * 4);
    case HY_OP_SUM:
    case HY_OP_SQ_NORM:
    case HY_OP_DIFF_DOT: return (size_t)(8 * card->multiprocessors * 3) * sizeof(double);
    default: return 0;
    }
}

/* ---- ops ------------------------------------------------------------------------------------------- */

static hy_status check_gelu(const hy_op_call *call) {
    const hy_tensor *t = call->t, *d = &t[HY_MATMUL_D];
    bool has_gelu = call->attr.matmul.is_gelu || t[HY_MATMUL_ACT].data || t[HY_MATMUL_PRE].data;
    bool is_narrow = t[HY_MATMUL_A].dtype != HY_F32 && d->dtype != HY_F32;
    bool is_even = hy_tensor_width(d) % 8 == 0 && hy_tensor_height(d) % 8 == 0;
    if (!has_gelu || (is_narrow && is_even)) return HY_OK;
    return hy_fail(HY_ERR_INPUT, "matmul: gelu is fused into matmuls of 16 bits whose rows are a "
                                 "multiple of 8");
}

static hy_status card_supports(hy_backend *b, const hy_op_call *call) {
    bool is_attention = call->kind == HY_OP_ATTENTION || call->kind == HY_OP_ATTENTION_BWD;
    HY_TRY(hy_op_check(call));
    if (call->kind == HY_OP_MATMUL) return check_gelu(call);
    if (!is_attention || call->attr.heads.head_dim <= ATTENTION_HEAD_LIMIT) return HY_OK;
    return hy_fail(HY_ERR_INPUT, "%s: head_dim is %d, expected at most %d on %s",
                   hy_op_name(call->kind), call->attr.heads.head_dim, ATTENTION_HEAD_LIMIT,
                   b->facts.name);
}

static hy_status card_prepare(hy_backend *b, hy_op_call *call) {
    call->plan = NULL;
    return card_supports(b, call);
}

/* ---- what a plan makes and never uses ------------------------------------------------------------- */

static hy_status refuse(void) {
    return hy_fail(HY_ERR_STATE, "this card is planned for and not here: it runs nothing");
}

static hy_status card_alloc(hy_backend *b, hy_place place, size_t bytes, void **out) {
    (void)b, (void)place, (void)bytes;
    *out = NULL;
    return refuse();
}

static void card_release(hy_backend *b, hy_place place, void *data, size_t bytes) {
    (void)b, (void)place, (void)data, (void)bytes;
}

static hy_status card_copy(hy_stream *s, void *dst, const void *src, size_t bytes) {
    (void)s, (void)dst, (void)src, (void)bytes;
    return refuse();
}

static hy_status card_enqueue(hy_stream *s, const hy_op_call *call) {
    (void)s, (void)call;
    return refuse();
}

/* Streams and events are a byte each: something to hold. */
static hy_status make_token(void **out) {
    *out = malloc(1);
    return *out ? HY_OK : hy_fail(HY_ERR_MEMORY, "no memory for a plan");
}

static hy_status card_stream_create(hy_backend *b, const char *name, hy_stream **out) {
    (void)b, (void)name;
    return make_token((void **)out);
}
static void card_stream_destroy(hy_stream *s) { free(s); }
static hy_status card_stream_sync(hy_stream *s) {
    (void)s;
    return HY_OK;
}
static double card_stream_waited(hy_stream *s) {
    (void)s;
    return 0;
}
static hy_status card_event_create(hy_backend *b, hy_event **out) {
    (void)b;
    return make_token((void **)out);
}
static void card_event_destroy(hy_event *e) { free(e); }
static hy_status card_event_record(hy_event *e, hy_stream *s) {
    (void)e, (void)s;
    return HY_OK;
}
static hy_status card_stream_wait(hy_stream *s, hy_event *e) {
    (void)s, (void)e;
    return HY_OK;
}
static hy_status card_event_sync(hy_event *e) {
    (void)e;
    return HY_OK;
}
static bool card_event_is_done(hy_event *e) {
    (void)e;
    return true;
}

/* ---- life ------------------------------------------------------------------------------------------ */

static void card_destroy(hy_backend *b) { free(b->self); }

static hy_status unknown_card(const char *name) {
    hy_text known = {0};
    for (size_t i = 0; hy_card_at(i); i++) {
        hy_text_addf(&known, "%s%s", i ? ", " : "", hy_card_at(i)->name);
    }
    hy_status status = hy_fail(HY_ERR_INPUT, "card \"%s\" is not known; accepted are %s", name,
                               hy_text_string(&known));
    hy_text_free(&known);
    return status;
}

static void describe(const hy_card *card, hy_device_facts *facts) {
    double peak = hy_card_peak(card->name);
    size_t bytes = (size_t)card->memory_mib << 20;
    snprintf(facts->name, sizeof facts->name, "%s", card->name);
    snprintf(facts->detail, sizeof facts->detail, "by its data sheet");
    facts->is_gpu = true;
    facts->capability = card->capability;
    facts->memory_total = bytes;
    facts->memory_free = (size_t)(FREE_SHARE * (double)bytes);
    facts->peak_flops = peak;
    facts->matmul_flops = peak * (card->capability == 90 ? SHARE_OF_PEAK_SM90 : SHARE_OF_PEAK);
}

static const hy_backend functions = {
    .alloc = card_alloc,
    .release = card_release,
    .stream_create = card_stream_create,
    .stream_destroy = card_stream_destroy,
    .stream_sync = card_stream_sync,
    .stream_waited = card_stream_waited,
    .event_create = card_event_create,
    .event_destroy = card_event_destroy,
    .event_record = card_event_record,
    .stream_wait = card_stream_wait,
    .event_sync = card_event_sync,
    .event_is_done = card_event_is_done,
    .copy = card_copy,
    .enqueue = card_enqueue,
    .supports = card_supports,
    .workspace = card_workspace,
    .prepare = card_prepare,
    .destroy = card_destroy,
};

hy_status hy_card_backend_create(const char *name, hy_backend **out) {
    const hy_card *card = hy_card_find(name);
    *out = NULL;
    if (!card) return unknown_card(name);
    card_backend *made = calloc(1, sizeof *made);
    if (!made) return hy_fail(HY_ERR_MEMORY, "no memory for a plan");
    *made = (card_backend){.backend = functions, .card = card};
    made->backend.self = made;
    describe(card, &made->backend.facts);
    *out = &made->backend;
    return HY_OK;
}
