/* test_kernels_threads.c: the same call gives the same bits, whatever the number of threads.
 *
 * Every op runs with 1, 2, 3 and 8 threads on shapes that give it many tasks, in fp32 and bf16, and
 * again on the same backend. All tensors of the call are compared byte for byte. */
#include "delta_calls.h"
#include "kernels/cpu/blas.h"
#include "optimizer_checks.h"

static const int thread_counts[] = {1, 2, 3, 8};
enum {
    COUNTS = sizeof thread_counts / sizeof thread_counts[0],
    B = 2,
    T = 150,
    N = B * T,
    C = 130
};

static rig rigs[COUNTS];

static void load(void) { hy_blas_get(); }
static void set_up(void) {
    for (int i = 0; i < COUNTS; i++) rigs[i] = rig_create(thread_counts[i]);
}
static void tear_down(void) {
    for (int i = 0; i < COUNTS; i++) rig_destroy(&rigs[i]);
}

/* Runs a copy of the trial's call; the tensors it leaves are the caller's to free. */
static hy_op_call run_copy(rig *r, const trial *t) {
    hy_op_call copy = t->call;
    for (int i = 0; i < HY_OP_TENSORS; i++) copy.t[i] = copy_tensor(&t->call.t[i]);
    rig_run(r, &copy);
    return copy;
}

static void free_copy(hy_op_call *call) {
    for (int i = 0; i < HY_OP_TENSORS; i++) free(call->t[i].data);
}

static void compare(const hy_op_call *one, const hy_op_call *other, int threads) {
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (!one->t[i].data) continue;
        ck_assert_msg(memcmp(one->t[i].data, other->t[i].data, hy_tensor_bytes(&one->t[i])) == 0,
                      "%s: %s differs with %d threads", hy_op_name(one->kind),
                      hy_op_tensor_name(one->kind, i), threads);
    }
}

static void same_with_any_threads(trial *t) {
    hy_op_call first = run_copy(&rigs[0], t);
    for (int i = 0; i < COUNTS + 1; i++) {
        hy_op_call other = run_copy(&rigs[i % COUNTS], t);
        compare(&first, &other, thread_counts[i % COUNTS]);
        free_copy(&other);
    }
    free_copy(&first);
    trial_end(t);
}

/* Of the ops of gated delta layers; fewer sequences times key heads than threads. */
static trial delta_layer_trial(hy_op_kind kind, hy_dtype dtype) {
    static const conv_case conv = {B, T, 300, 4, true};
    static const delta_case delta = {B, T, 3, 6, 20, 70, true, 0};
    static const gate_case gate = {N, 700, 6, 40, 8, 100, true};
    int mixture = dtype == HY_F32 ? 0 : 1;
    switch (kind) {
    case HY_OP_CONV: return conv_trial(&conv, mixture);
    case HY_OP_CONV_BWD: return conv_bwd_trial(&conv, mixture, true);
    case HY_OP_CONV_CACHED: return conv_cached_trial(&conv, mixture);
    case HY_OP_DELTA: return delta_trial(&delta, mixture);
    case HY_OP_DELTA_BWD: return delta_bwd_trial(&delta, mixture, true);
    case HY_OP_DELTA_CACHED: return delta_cached_trial(&delta, mixture);
    case HY_OP_GATE: return gate_trial(&gate, mixture);
    default: return gate_bwd_trial(&gate, mixture, true);
    }
}

/* A call of each kind with numbers in all its tensors; what is only written is random before. */
static trial any_trial(hy_op_kind kind, hy_dtype dtype) {
    if (kind >= HY_OP_CONV && kind <= HY_OP_GATE_BWD) return delta_layer_trial(kind, dtype);
    trial t = trial_begin(kind, (uint64_t)kind);
    hy_op_attr *attr = &t.call.attr;
    enum { H = 6, K = 2, D = 20, P = (H + 2 * K) * D };
    if (kind >= HY_OP_HEAD_NORM && kind <= HY_OP_ATTENTION_CACHED) {
        attr->heads.batch = B;
        attr->heads.seq = T;
        attr->heads.heads = H;
        attr->heads.kv_heads = K;
        attr->heads.head_dim = D;
        attr->heads.scale = 0.2f;
        attr->heads.eps = 1e-5f;
    }
#define NUMBERS(at, rows, cols) trial_normal(&t, at, dtype, rows, cols, 0, 1)
#define FLOATS(at, rows, cols) trial_normal(&t, at, HY_F32, rows, cols, 1, 0.1)
    switch (kind) {
    case HY_OP_MATMUL:
        attr->matmul.alpha = 1;
        attr->matmul.trans_b = true;
        NUMBERS(HY_MATMUL_A, N, C);
        NUMBERS(HY_MATMUL_B, 517, C);
        NUMBERS(HY_MATMUL_D, N, 517);
        NUMBERS(HY_MATMUL_BIAS, 0, 517);
        break;
    case HY_OP_BIAS_GRAD:
        NUMBERS(HY_BIAS_GRAD_DY, N, 700);
        NUMBERS(HY_BIAS_GRAD_DBIAS, 0, 700);
        break;
    case HY_OP_NORM:
        NUMBERS(HY_NORM_X, N, C);
        NUMBERS(HY_NORM_WEIGHT, 0, C);
        NUMBERS(HY_NORM_BIAS, 0, C);
        NUMBERS(HY_NORM_Y, N, C);
        FLOATS(HY_NORM_MEAN, 0, N);
        FLOATS(HY_NORM_RSTD, 0, N);
        break;
    case HY_OP_NORM_BWD:
        NUMBERS(HY_NORM_BWD_DY, N, C);
        NUMBERS(HY_NORM_BWD_X, N, C);
        NUMBERS(HY_NORM_BWD_WEIGHT, 0, C);
        FLOATS(HY_NORM_BWD_MEAN, 0, N);
        FLOATS(HY_NORM_BWD_RSTD, 0, N);
        NUMBERS(HY_NORM_BWD_RESIDUAL, N, C);
        NUMBERS(HY_NORM_BWD_DX, N, C);
        NUMBERS(HY_NORM_BWD_DWEIGHT, 0, C);
        NUMBERS(HY_NORM_BWD_DBIAS, 0, C);
        break;
    case HY_OP_HEAD_NORM:
        NUMBERS(HY_HEAD_NORM_QKV, N, P);
        NUMBERS(HY_HEAD_NORM_WQ, 0, D);
        NUMBERS(HY_HEAD_NORM_WK, 0, D);
        NUMBERS(HY_HEAD_NORM_OUT, N, P);
        FLOATS(HY_HEAD_NORM_RSTD, N, H + K);
        break;
    case HY_OP_HEAD_NORM_BWD:
        NUMBERS(HY_HEAD_NORM_BWD_DOUT, N, P);
        NUMBERS(HY_HEAD_NORM_BWD_QKV, N, P);
        NUMBERS(HY_HEAD_NORM_BWD_WQ, 0, D);
        NUMBERS(HY_HEAD_NORM_BWD_WK, 0, D);
        FLOATS(HY_HEAD_NORM_BWD_RSTD, N, H + K);
        NUMBERS(HY_HEAD_NORM_BWD_DQKV, N, P);
        NUMBERS(HY_HEAD_NORM_BWD_DWQ, 0, D);
        NUMBERS(HY_HEAD_NORM_BWD_DWK, 0, D);
        break;
    case HY_OP_ROPE:
        NUMBERS(HY_ROPE_QKV, N, P);
        FLOATS(HY_ROPE_TABLE, T, D);
        break;
    case HY_OP_ATTENTION:
        NUMBERS(HY_ATTENTION_QKV, N, P);
        NUMBERS(HY_ATTENTION_OUT, N, H * D);
        FLOATS(HY_ATTENTION_LSE, 0, N * H);
        break;
    case HY_OP_ATTENTION_BWD:
        NUMBERS(HY_ATTENTION_BWD_DOUT, N, H * D);
        NUMBERS(HY_ATTENTION_BWD_QKV, N, P);
        NUMBERS(HY_ATTENTION_BWD_OUT, N, H * D);
        FLOATS(HY_ATTENTION_BWD_LSE, 0, N * H);
        NUMBERS(HY_ATTENTION_BWD_DQKV, N, P);
        break;
    case HY_OP_ATTENTION_CACHED:
        NUMBERS(HY_ATTENTION_CACHED_QKV, N, P);
        NUMBERS(HY_ATTENTION_CACHED_CACHE, B * 200, 2 * K * D);
        NUMBERS(HY_ATTENTION_CACHED_OUT, N, H * D);
        hy_tensor *cache = &t.call.t[HY_ATTENTION_CACHED_CACHE];
        cache->ndim = 3;
        cache->shape[0] = B * 25, cache->shape[1] = 8, cache->shape[2] = 2 * K * D;
        trial_tensor(&t, HY_ATTENTION_CACHED_FIRST, HY_I32, 0, B);
        for (int b = 0; b < B; b++) trial_put(&t, HY_ATTENTION_CACHED_FIRST, b, 40 + b);
        trial_tensor(&t, HY_ATTENTION_CACHED_BLOCKS, HY_I32, B, 25);
        for (int i = 0; i < B * 25; i++)
            trial_put(&t, HY_ATTENTION_CACHED_BLOCKS, i, B * 25 - 1 - i);
        break;
    case HY_OP_GELU:
        NUMBERS(HY_GELU_X, N, C);
        NUMBERS(HY_GELU_Y, N, C);
        break;
    case HY_OP_GELU_BWD:
        NUMBERS(HY_GELU_BWD_DY, N, C);
        NUMBERS(HY_GELU_BWD_X, N, C);
        NUMBERS(HY_GELU_BWD_DX, N, C);
        break;
    case HY_OP_SWIGLU:
        NUMBERS(HY_SWIGLU_GATE_UP, N, 2 * C);
        NUMBERS(HY_SWIGLU_Y, N, C);
        break;
    case HY_OP_SWIGLU_BWD:
        NUMBERS(HY_SWIGLU_BWD_DY, N, C);
        NUMBERS(HY_SWIGLU_BWD_GATE_UP, N, 2 * C);
        NUMBERS(HY_SWIGLU_BWD_DGATE_UP, N, 2 * C);
        NUMBERS(HY_SWIGLU_BWD_ACTIVE, N, C);
        break;
    case HY_OP_EMBED:
        attr->embed.seq = T;
        trial_ints(&t, HY_EMBED_TOKENS, N, 0, 40);
        NUMBERS(HY_EMBED_WTE, 41, C);
        NUMBERS(HY_EMBED_WPE, T, C);
        NUMBERS(HY_EMBED_X, N, C);
        break;
    case HY_OP_EMBED_BWD:
        attr->embed.seq = T;
        trial_ints(&t, HY_EMBED_BWD_TOKENS, N, 0, 40);
        NUMBERS(HY_EMBED_BWD_DX, N, C);
        NUMBERS(HY_EMBED_BWD_DWTE, 41, C);
        NUMBERS(HY_EMBED_BWD_DWPE, T + 1, C);
        break;
    case HY_OP_CROSS_ENTROPY:
        attr->loss.vocab = 3000;
        attr->loss.scale = 0.1f;
        attr->loss.wants_grad = true;
        NUMBERS(HY_CROSS_ENTROPY_LOGITS, 60, 3001);
        trial_ints(&t, HY_CROSS_ENTROPY_TARGETS, 60, -1, 2999);
        FLOATS(HY_CROSS_ENTROPY_LOSSES, 0, 60);
        break;
    case HY_OP_PREFERENCE:
        attr->preference.of = (hy_loss){.kind = HY_LOSS_DPO, .beta = 0.1f};
        attr->preference.seq = 30;
        FLOATS(HY_PREFERENCE_TOKEN_LOSSES, 0, 60);
        trial_ints(&t, HY_PREFERENCE_TARGETS, 60, -1, 2999);
        trial_ints(&t, HY_PREFERENCE_DOC_STARTS, 60, 0, 0);
        for (int i = 0; i < 60; i++) trial_put(&t, HY_PREFERENCE_DOC_STARTS, i, i % 30 / 8 * 8);
        FLOATS(HY_PREFERENCE_REFERENCE, 0, 60);
        FLOATS(HY_PREFERENCE_LOSSES, 0, 60);
        FLOATS(HY_PREFERENCE_WEIGHTS, 0, 60);
        trial_normal(&t, HY_PREFERENCE_STATS, HY_F64, 0, HY_PAIRS_STATS, 0, 1);
        break;
    case HY_OP_POLICY:
        attr->policy = (hy_policy){.clip_low = 0.2f, .clip_high = 0.2f, .kl = 0.1f, .cap = 2};
        FLOATS(HY_POLICY_TOKEN_LOSSES, 0, 60);
        trial_ints(&t, HY_POLICY_TARGETS, 60, -1, 2999);
        FLOATS(HY_POLICY_POLICY, 60, HY_POLICY_NUMBERS);
        FLOATS(HY_POLICY_REFERENCE, 0, 60);
        FLOATS(HY_POLICY_LOSSES, 0, 60);
        FLOATS(HY_POLICY_WEIGHTS, 0, 60);
        trial_normal(&t, HY_POLICY_STATISTICS, HY_F64, 0, HY_POLICY_STATS, 0, 1);
        break;
    case HY_OP_SAMPLE:
        attr->sample.vocab = 3000;
        NUMBERS(HY_SAMPLE_LOGITS, 60, 3001);
        trial_tensor(&t, HY_SAMPLE_SAMPLING, HY_U8, 60, sizeof(hy_sampling));
        for (int i = 0; i < 60; i++) {
            ((hy_sampling *)t.call.t[HY_SAMPLE_SAMPLING].data)[i] = (hy_sampling){
                .temperature = 1, .top_p = 0.9f, .forced = -1, .position = (uint64_t)i};
        }
        trial_ints(&t, HY_SAMPLE_TOKENS, 60, 0, 0);
        FLOATS(HY_SAMPLE_LOGPROBS, 0, 60);
        break;
    case HY_OP_SUM:
    case HY_OP_SQ_NORM:
        trial_normal(&t, HY_REDUCE_X, kind == HY_OP_SUM ? HY_F32 : dtype, 0, 300001, 0, 1);
        trial_tensor(&t, HY_REDUCE_OUT, HY_F64, 0, 1);
        break;
    case HY_OP_CLIP:
        trial_normal(&t, HY_CLIP_TOTAL, HY_F64, 0, 1, 9, 0);
        FLOATS(HY_CLIP_RESULT, 0, 2);
        break;
    case HY_OP_ADAMW:
        attr->adamw.lr = 0.01f;
        attr->adamw.beta1 = 0.9f;
        attr->adamw.beta2 = 0.99f;
        attr->adamw.eps = 1e-8f;
        attr->adamw.correction1 = attr->adamw.correction2 = 0.5f;
        attr->first = 3;
        NUMBERS(HY_UPDATE_PARAM, 0, 100003);
        NUMBERS(HY_UPDATE_GRAD, 0, 100003);
        for (int i = HY_UPDATE_M; i <= HY_UPDATE_V; i++) {
            trial_normal(&t, i, dtype == HY_F16 ? HY_F32 : dtype, 0, 100003, 1, 0.1);
        }
        FLOATS(HY_UPDATE_CLIP, 0, 2);
        break;
    case HY_OP_SGD:
        attr->sgd.lr = 0.01f;
        attr->sgd.momentum = 0.9f;
        attr->sgd.is_nesterov = true;
        attr->first = 3;
        NUMBERS(HY_UPDATE_PARAM, 0, 100003);
        NUMBERS(HY_UPDATE_GRAD, 0, 100003);
        trial_normal(&t, HY_UPDATE_M, dtype == HY_F16 ? HY_F32 : dtype, 0, 100003, 1, 0.1);
        FLOATS(HY_UPDATE_CLIP, 0, 2);
        break;
    case HY_OP_LION:
        attr->lion = (hy_lion_attr){.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.99f};
        attr->first = 3;
        NUMBERS(HY_UPDATE_PARAM, 0, 100003);
        NUMBERS(HY_UPDATE_GRAD, 0, 100003);
        trial_normal(&t, HY_UPDATE_M, dtype == HY_F16 ? HY_F32 : dtype, 0, 100003, 1, 0.1);
        FLOATS(HY_UPDATE_CLIP, 0, 2);
        break;
    case HY_OP_ADAFACTOR: return adafactor_trial_of(dtype, dtype, false, 613, 259);
    case HY_OP_MUON_BLEND:
        attr->muon.momentum = 0.9f;
        NUMBERS(HY_MUON_BLEND_OUT, 0, 100003);
        NUMBERS(HY_MUON_BLEND_GRAD, 0, 100003);
        trial_normal(&t, HY_MUON_BLEND_M, dtype == HY_F16 ? HY_F32 : dtype, 0, 100003, 1, 0.1);
        FLOATS(HY_MUON_BLEND_CLIP, 0, 2);
        break;
    case HY_OP_TO_UNIT:
        NUMBERS(HY_TO_UNIT_X, 2, 100003);
        NUMBERS(HY_TO_UNIT_Y, 2, 100003);
        break;
    case HY_OP_MUON:
        attr->muon = (hy_muon_attr){
            .lr = 0.01f, .momentum = 0.9f, .coefficient = {1, 2, 3}, .ends = {30001, 60001}};
        attr->first = 3;
        NUMBERS(HY_UPDATE_PARAM, 0, 100003);
        NUMBERS(HY_UPDATE_GRAD, 0, 100003);
        trial_normal(&t, HY_UPDATE_M, dtype == HY_F16 ? HY_F32 : dtype, 0, 100003, 1, 0.1);
        FLOATS(HY_UPDATE_CLIP, 0, 2);
        NUMBERS(HY_UPDATE_DIRECTION, 0, 100003);
        break;
    case HY_OP_CAST:
        NUMBERS(HY_CAST_SRC, 0, 200001);
        FLOATS(HY_CAST_DST, 0, 200001);
        break;
    case HY_OP_FILL: NUMBERS(HY_FILL_DST, 0, 200001); break;
    default: break;
    }
    return t;
}

START_TEST(every_op_of_a_training_step_gives_the_same_bits_with_any_number_of_threads) {
    for (int kind = 0; kind <= HY_OP_FILL; kind++) {
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            trial t = any_trial((hy_op_kind)kind, _i ? HY_BF16 : HY_F32);
            t.call.attr.accumulate = accumulate;
            if (kind == HY_OP_MATMUL && accumulate) {
                free(t.call.t[HY_MATMUL_BIAS].data);
                t.call.t[HY_MATMUL_BIAS].data = NULL;
            }
            same_with_any_threads(&t);
        }
    }
}
END_TEST

/* Shapes where attention backward deals out its tiles in other ways: many units, few, a single
 * one. */
START_TEST(attention_backward_does_not_depend_on_how_its_tiles_are_dealt_out) {
    static const int32_t shapes[][4] = {{1, 700, 1, 1}, {1, 90, 6, 2}, {17, 20, 4, 2}};
    for (int i = 0; i < 6; i++) {
        int32_t batch = shapes[i / 2][0], seq = shapes[i / 2][1], heads = shapes[i / 2][2];
        int32_t kv_heads = shapes[i / 2][3];
        int64_t rows = (int64_t)batch * seq, width = (int64_t)(heads + 2 * kv_heads) * 16;
        trial t = trial_begin(HY_OP_ATTENTION_BWD, (uint64_t)i);
        hy_dtype dtype = i % 2 ? HY_BF16 : HY_F32;
        t.call.attr.heads.batch = batch;
        t.call.attr.heads.seq = seq;
        t.call.attr.heads.heads = heads;
        t.call.attr.heads.kv_heads = kv_heads;
        t.call.attr.heads.head_dim = 16;
        t.call.attr.heads.scale = 0.25f;
        NUMBERS(0, rows, heads * 16);
        NUMBERS(1, rows, width);
        NUMBERS(3, rows, heads * 16);
        FLOATS(4, 0, rows * heads);
        NUMBERS(5, rows, width);
        same_with_any_threads(&t);
    }
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("kernels: threads");
    TCase *all = tcase_create("sameness");
    tcase_set_timeout(all, 120);
    tcase_add_unchecked_fixture(all, load, NULL);
    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_add_loop_test(
        all, every_op_of_a_training_step_gives_the_same_bits_with_any_number_of_threads, 0, 2);
    tcase_add_test(all, attention_backward_does_not_depend_on_how_its_tiles_are_dealt_out);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
