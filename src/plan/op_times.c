/* op_times.c: estimates the compute time of a pass's ops from the machine's rates. See sizer.h.
 *
 * A matmul runs at the rate of a large one, reduced for real shapes, and takes at least the time
 * to move its bytes; every other op takes the time of its bytes. The shares come from op-by-op
 * times of GPT-2 124M and Qwen2.5-1.5B on an H200 (docs/performance.md), where a large matmul
 * runs at 800 TFLOP/s: matmuls at 660 to 690, attention over 1024 tokens at 230 forward and 130
 * backward, and in total 558,000 and 56,300 tokens/s. */
#include "kernels/card_list.h"
#include "kernels/ops.h"
#include "model/bind.h"
#include "plan/sizer.h"

#define MATMUL_EFFICIENCY 0.86    /* rate with a model's shapes, compared with one large matmul */
#define FP8_SPEED 1.75            /* speed of fp8 matmuls compared with bf16, on the same card */
#define ATTENTION_EFFICIENCY 0.50 /* with long sequences */
#define ATTENTION_BWD_EFFICIENCY 0.29
#define ATTENTION_HALF_SEQ 750 /* tokens at which the rate halves: tiles at the diagonal */
#define CPU_ATTENTION 0.35     /* measured with nano, tiny-gpt2 and GPT-2 124M, 256 tokens */
#define CPU_ATTENTION_BWD 0.46
#define BANDWIDTH_EFFICIENCY 0.80 /* share that kernels reach which read and write rows */
#define GPU_OP_SECONDS 3e-6       /* time of an empty op in a captured graph */
#define CPU_OP_SECONDS 5e-6
#define FEW_TILES 0.18      /* 128 x 128 tiles of the result per multiprocessor: the rate halves */
#define MULTIPROCESSORS 132 /* assumed for a card that is not in the list */

hy_plan_speed hy_plan_speed_of(const hy_backend *b, const hy_rates *rates) {
    const hy_card *card = hy_card_find(b->facts.name);
    int32_t multiprocessors = card ? card->multiprocessors : MULTIPROCESSORS;
    bool is_gpu = b->facts.is_gpu;
    return (hy_plan_speed){.rates = *rates,
                           .fp8 = is_gpu ? FP8_SPEED : 1,
                           .attention = {is_gpu ? ATTENTION_EFFICIENCY : CPU_ATTENTION,
                                         is_gpu ? ATTENTION_BWD_EFFICIENCY : CPU_ATTENTION_BWD},
                           .half_seq = is_gpu ? ATTENTION_HALF_SEQ : 0,
                           .few_tiles = is_gpu ? FEW_TILES * multiprocessors : 0,
                           .op_seconds = is_gpu ? GPU_OP_SECONDS : CPU_OP_SECONDS};
}

static double all_bytes(const hy_op_call *call) {
    double bytes = 0;
    /* Quantised values are first decoded to the type of the operands. */
    if (call->kind == HY_OP_MATMUL) bytes += 2 * (double)hy_matmul_cast_bytes(call, true);
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

static double op_seconds(const hy_op_call *call, const hy_plan_speed *speed) {
    const hy_rates *rates = &speed->rates;
    double share = 0;
    if (call->kind == HY_OP_MATMUL) {
        /* Few results, in tiles of 128 x 128, leave multiprocessors idle. */
        double tiles = (double)hy_tensor_count(&call->t[HY_MATMUL_D]) / (128.0 * 128.0);
        share = MATMUL_EFFICIENCY * tiles / (tiles + speed->few_tiles);
        if (hy_is_fp8(call->t[HY_MATMUL_A].dtype)) share *= speed->fp8;
    } else if (call->kind == HY_OP_ATTENTION || call->kind == HY_OP_ATTENTION_BWD) {
        bool is_forward = call->kind == HY_OP_ATTENTION;
        double seq = call->attr.heads.seq;
        share = speed->attention[!is_forward] * (seq / (seq + speed->half_seq));
    }
    double moving = all_bytes(call) / (BANDWIDTH_EFFICIENCY * rates->device_bandwidth);
    double computing = share > 0 ? hy_op_flops(call) / (share * rates->gemm_flops) : 0;
    return (computing > moving ? computing : moving) + speed->op_seconds;
}

double hy_plan_pass_seconds(const hy_batch_plan *plan, int32_t unit, hy_pass pass,
                            const hy_plan_speed *speed) {
    hy_frame frame = hy_frame_for_planning(plan, unit, pass);
    double seconds = 0;
    for (int i = 0; i < frame.unit->pass[pass].op_count; i++) {
        hy_op_call call;
        hy_frame_bind(&frame, i, 0, &call);
        bool is_chunked = frame.unit->pass[pass].ops[i]->is_chunked;
        seconds += (is_chunked ? plan->chunk_count : 1) * op_seconds(&call, speed);
    }
    return seconds;
}
