/* op_times.c: estimates the compute time of a pass's ops from the machine's rates. See sizer.h.
 *
 * A matmul runs at the rate of a large one, reduced for real shapes, and takes at least the time
 * to move its bytes; every other op takes the time of its bytes. The shares come from op-by-op
 * times of GPT-2 124M and Qwen2.5-1.5B on an H200 (docs/performance.md), where a large matmul
 * runs at 800 TFLOP/s: matmuls at 660 to 690, attention over 1024 tokens at 230 forward and 130
 * backward, and in total 558,000 and 56,300 tokens/s. The gated delta rule, with 8 x 2048 tokens
 * and 16 heads of 128 in bf16, takes 0.252 ms forward and 0.728 ms backward there
 * (bench/gpu_delta.c): 119 and 118 TFLOP/s by the operations that hy_op_flops counts. */
#include "kernels/card_list.h"
#include "kernels/ops.h"
#include "model/bind.h"
#include "plan/sizer.h"

#define MATMUL_EFFICIENCY 0.86    /* rate with a model's shapes, compared with one large matmul */
#define FP8_SPEED 1.75            /* speed of fp8 matmuls compared with bf16, on the same card */
#define ATTENTION_EFFICIENCY 0.50 /* with long sequences */
#define ATTENTION_BWD_EFFICIENCY 0.29
#define DELTA_EFFICIENCY 0.149
#define DELTA_BWD_EFFICIENCY 0.147
#define ATTENTION_HALF_SEQ 750 /* tokens at which the rate halves: tiles at the diagonal */
#define CPU_ATTENTION 0.35     /* measured with nano, tiny-gpt2 and GPT-2 124M, 256 tokens */
#define CPU_ATTENTION_BWD 0.46
#define BANDWIDTH_EFFICIENCY 0.80 /* share that kernels reach which read and write rows */
#define GPU_OP_SECONDS 3e-6       /* time of an empty op in a captured graph */
#define CPU_OP_SECONDS 5e-6
/* An op that was measured alone, compared with the same op in a step of 23 plans on an H200: under
 * load the card's clock is lower; and in a captured graph the next op begins sooner. */
#define UNDER_LOAD 1.08
#define LAUNCH_SECONDS 1.5e-6
#define FEW_TILES 0.18      /* 128 x 128 tiles of the result per multiprocessor: the rate halves */
#define MULTIPROCESSORS 132 /* assumed for a card that is not in the list */

hy_plan_speed hy_plan_speed_of(const hy_backend *b, const hy_rates *rates) {
    const hy_card *card = hy_card_find(b->facts.name);
    int32_t multiprocessors = card ? card->multiprocessors : MULTIPROCESSORS;
    bool is_gpu = b->facts.is_gpu;
    return (hy_plan_speed){
        .rates = *rates,
        .fp8 = is_gpu ? FP8_SPEED : 1,
        .attention = {is_gpu ? ATTENTION_EFFICIENCY : CPU_ATTENTION,
                      is_gpu ? ATTENTION_BWD_EFFICIENCY : CPU_ATTENTION_BWD},
        .delta = {is_gpu ? DELTA_EFFICIENCY : 0, is_gpu ? DELTA_BWD_EFFICIENCY : 0},
        .half_seq = is_gpu ? ATTENTION_HALF_SEQ : 0,
        .few_tiles = is_gpu ? FEW_TILES * multiprocessors : 0,
        .op_seconds = is_gpu ? GPU_OP_SECONDS : CPU_OP_SECONDS};
}

static double all_bytes(const hy_op_call *call) {
    double bytes = 0;
    /* Only the rows of tokens that occur are read. */
    if (call->kind == HY_OP_EMBED) return 2 * (double)hy_tensor_bytes(&call->t[HY_EMBED_X]);
    if (call->kind == HY_OP_EMBED_BWD)
        return 6 * (double)hy_tensor_bytes(&call->t[HY_EMBED_BWD_DX]);
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (!call->t[i].data) continue;
        int access = hy_op_access(call->kind, i);
        double times = ((access & HY_ACCESS_READ) != 0) + ((access & HY_ACCESS_WRITE) != 0);
        if (call->attr.accumulate && !(access & HY_ACCESS_READ)) times++;
        bytes += times * (double)hy_tensor_bytes(&call->t[i]);
    }
    return bytes;
}

/* The share of the rate of a large matmul that the op reaches; 0: memory limits it. */
static double share_of(const hy_op_call *call, const hy_plan_speed *speed) {
    if (call->kind == HY_OP_MATMUL) {
        /* Few results, in tiles of 128 x 128, leave multiprocessors idle. */
        double tiles = (double)hy_tensor_count(&call->t[HY_MATMUL_D]) / (128.0 * 128.0);
        double share = MATMUL_EFFICIENCY * tiles / (tiles + speed->few_tiles);
        return hy_is_fp8(call->t[HY_MATMUL_A].dtype) ? share * speed->fp8 : share;
    }
    bool is_of_experts = call->kind == HY_OP_GROUPED_MATMUL || call->kind == HY_OP_GROUPED_GRAD;
    if (is_of_experts) return MATMUL_EFFICIENCY;
    if (call->kind == HY_OP_DELTA) return speed->delta[0];
    if (call->kind == HY_OP_DELTA_BWD) return speed->delta[1];
    bool is_forward = call->kind == HY_OP_ATTENTION;
    if (!is_forward && call->kind != HY_OP_ATTENTION_BWD) return 0;
    double seq = call->attr.heads.seq;
    return speed->attention[!is_forward] * seq / (seq + speed->half_seq);
}

/* The time of an op in a step, from a measurement of it alone, without the cast of a stored weight;
 * 0: not known. The backward pass of an embedding depends on its tokens, which are equal in a
 * measurement. */
static double timed_seconds(const hy_op_call *call, hy_backend *b, bool is_computing) {
    bool is_matmul = call->kind == HY_OP_MATMUL;
    hy_op_call plain = is_matmul ? hy_matmul_behind_cast(call, true) : *call;
    if (!b || call->kind == HY_OP_EMBED_BWD || b->prepare(b, &plain) != HY_OK) return 0;
    double seconds = b->op_seconds(b, &plain);
    double in_graph = seconds > 2 * LAUNCH_SECONDS ? seconds - LAUNCH_SECONDS : seconds / 2;
    return is_computing ? UNDER_LOAD * in_graph : in_graph;
}

static double op_seconds(const hy_op_call *call, const hy_plan_speed *speed) {
    double bandwidth = BANDWIDTH_EFFICIENCY * speed->rates.device_bandwidth;
    double share = share_of(call, speed), timed = timed_seconds(call, speed->clock, share > 0);
    double moving = all_bytes(call) / bandwidth;
    double computing = share > 0 ? hy_op_flops(call) / (share * speed->rates.gemm_flops) : 0;
    double seconds = computing > moving ? computing : moving;
    seconds = timed > 0 ? timed : seconds + speed->op_seconds;
    if (call->kind != HY_OP_MATMUL || hy_matmul_cast_bytes(call, true) == 0) return seconds;
    /* A quantised weight is decoded first. */
    double decoded = (double)hy_matmul_cast_bytes(call, true);
    decoded += (double)hy_tensor_bytes(&call->t[HY_MATMUL_B]);
    return seconds + decoded / bandwidth + speed->op_seconds;
}

double hy_plan_pass_seconds(const hy_batch_plan *plan, int32_t unit, hy_pass pass,
                            const hy_plan_speed *speed) {
    hy_frame frame = hy_frame_for_planning(plan, unit, pass);
    double seconds = 0;
    for (int i = 0; i < frame.unit->pass[pass].op_count; i++) {
        hy_op_call call;
        hy_frame_bind(&frame, i, 0, &call);
        int32_t tiles = hy_unit_op_tiles(frame.unit, frame.unit->pass[pass].ops[i]);
        seconds += tiles * op_seconds(&call, speed);
    }
    return seconds;
}
