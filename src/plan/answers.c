/* answers.c: room for the answers that are generated between steps (task grpo). See request.h.
 *
 * A rollout works in the area of passes. Each of its tokens reads all weights: if they are not on
 * the device, it copies them into the area for as long as it takes (generate/rollout.c), but only
 * if keys and values of enough answers fit beside them. The fastest plan of a step may leave too
 * little, so plans with a larger area are searched, and the one with the least time for steps and
 * rollout wins. The level stays: number types do not depend on rollouts. */
#include <math.h>

#include "base/error.h"
#include "base/text.h"
#include "config/derived.h"
#include "model/batch_decode.h"
#include "plan/request.h"

/* A decoder's share of the rates of large matmuls and of copies on the device: so that the steps of
 * 512 answers of Qwen2.5-3B take about as long as measured on an H200 (docs/performance.md). */
#define MATMUL_SHARE 0.25
#define READ_SHARE 0.5
/* A plan with more room takes at most this share of the time. */
#define WORTH 0.97

/* What a rollout of a plan needs. */
typedef struct answering {
    double answers, tokens;  /* of a rollout; of each answer */
    double streams;          /* answers at once if memory allows it */
    double parameters;       /* that a token is multiplied with */
    uint64_t weights;        /* bytes */
    uint64_t copied;         /* of these, in stores that are not on the device */
    double streaming;        /* seconds of a token in which these pass through the device */
    uint64_t caches, others; /* bytes of a decoder for all streams; others: states too */
    uint64_t states; /* bytes of the states of all streams: read and written by every token */
} answering;

/* Positions that all answers need, if answers to a row share its prompt. */
static int64_t positions(const hy_settings *s, int64_t streams) {
    int64_t prompts = (streams + s->grpo.samples - 1) / s->grpo.samples;
    int64_t prompt = s->train.seq_len + 1 - s->grpo.answer_tokens;
    return streams * s->grpo.answer_tokens + prompts * (prompt > 0 ? prompt : 0);
}

static hy_status size_decoder(const hy_plan_request *r, const hy_plan *plan, answering *out) {
    const hy_settings *s = r->settings;
    int32_t streams = hy_rollout_streams(s, r->backend->facts.is_gpu);
    hy_batch_decoder *decoder;
    hy_batch_decoder_options options = {.streams = streams,
                                        .context = hy_rollout_context(s, r->model->shape.context),
                                        .tokens = positions(s, streams),
                                        .dtype = plan->types.of[HY_FULL],
                                        .is_unprepared = true};
    if (options.tokens < options.context) options.tokens = options.context;
    HY_TRY(hy_batch_decoder_create(r->model, r->backend, &options, &decoder));
    out->streams = streams;
    out->answers = (double)(s->grpo.prompts * s->grpo.samples);
    out->tokens = (double)s->grpo.answer_tokens;
    out->caches = hy_batch_decoder_cache_bytes(decoder);
    out->others = hy_batch_decoder_bytes(decoder) - out->caches;
    out->states = (uint64_t)streams * hy_batch_decoder_states(decoder)->each;
    hy_batch_decoder_destroy(decoder);
    return HY_OK;
}

/* Resident units do not pass through the device. */
static hy_status measure(const hy_plan_request *r, const hy_rates *rates, const hy_plan *plan,
                         answering *out) {
    hy_rows_spec spec = hy_plan_rows(r, plan);
    hy_rows rows;
    *out = (answering){.parameters = (double)r->model->params.elements};
    HY_TRY(hy_rows_init(&rows, &r->model->params, &spec));
    const int read[] = {hy_weights_row(&plan->types, plan->types.of[HY_FULL]), HY_ROW_FROZEN};
    for (int i = 0; i < 2; i++) {
        const hy_row *row = &rows.row[read[i]];
        if (!row->kind) continue;
        hy_place place = hy_row_place(row, &plan->choice);
        out->weights += row->layout.bytes;
        if (place == HY_DEVICE) continue;
        double rate = place == HY_DISK ? fmin(rates->disk_read, rates->copy_up) : rates->copy_up;
        out->copied += row->layout.bytes;
        out->streaming += (double)hy_row_bytes(row, &plan->choice) / rate;
    }
    hy_rows_fini(&rows);
    return size_decoder(r, plan, out);
}

/* Answers at once in `room` bytes: the decoder has half as many streams until it fits, and a cache
 * for as many answers as the rest holds. *streams: those of the decoder, 0: none fits. */
static double answers_at_once(const answering *a, double room, double *streams) {
    for (double n = a->streams; n >= 1; n /= 2) {
        double others = (double)a->others * n / a->streams, each = (double)a->caches / a->streams;
        *streams = n;
        if (room >= others + each) return fmin(n, (room - others) / each);
    }
    *streams = 0;
    return 1; /* in memory of its own */
}

/* Seconds of a rollout in `area` bytes. */
static double seconds_of(const answering *a, const hy_rates *rates, uint64_t area) {
    double streams, copy = (double)a->copied / rates->copy_up;
    double count = answers_at_once(a, (double)area - (double)a->copied, &streams);
    bool copies = a->copied > 0 && streams * HY_COPY_GAIN >= a->streams;
    if (!copies) count = answers_at_once(a, (double)area, &streams);
    double cache = count / a->streams * ((double)a->caches / 2 + 2 * (double)a->states);
    double read = ((double)a->weights + cache) / (READ_SHARE * rates->device_bandwidth);
    double multiply = 2 * count * a->parameters / (MATMUL_SHARE * rates->gemm_flops);
    double token = read + multiply + (copies ? 0 : a->streaming);
    return a->tokens * a->answers / count * token + (copies ? copy : 0);
}

/* Seconds until the next rollout begins. */
static hy_status time_all(const hy_plan_request *r, const hy_rates *rates, const hy_plan *plan,
                          answering *needs, double *rollout, double *all) {
    HY_TRY(measure(r, rates, plan, needs));
    *rollout = seconds_of(needs, rates, plan->work.activations + plan->work.workspace);
    *all = *rollout + (double)r->settings->grpo.iterations * plan->cost.seconds;
    return HY_OK;
}

hy_status hy_plan_answers(const hy_plan_request *r, const hy_rates *rates, hy_plan *plan,
                          hy_plan_facts *facts) {
    static const double shares[] = {0.125, 0.25, 0.5, 0.75, 1};
    hy_plan_request wide = hy_plan_request_keeping(r, plan);
    answering needs, unused;
    double before, rollout, least;
    bool is_better = false;
    wide.ignores_unfit = true;
    if (r->model->loss.kind != HY_LOSS_POLICY || !plan->fits) return HY_OK;
    HY_TRY(time_all(r, rates, plan, &needs, &before, &least));
    uint64_t area = plan->work.activations + plan->work.workspace;
    rollout = before;
    least *= WORTH;
    for (size_t i = 0; hy_request_streams(r) && i < sizeof shares / sizeof shares[0]; i++) {
        hy_plan found;
        double seconds, all;
        wide.area = needs.copied + needs.others + (uint64_t)(shares[i] * (double)needs.caches);
        if (wide.area <= area) continue;
        HY_TRY(hy_plan_fastest(&wide, rates, &found));
        if (!found.fits) break;
        HY_TRY(time_all(r, rates, &found, &unused, &seconds, &all));
        if (all >= least) continue;
        *plan = found;
        least = all;
        rollout = seconds;
        is_better = true;
    }
    facts->rollout_seconds = rollout / (double)r->settings->grpo.iterations;
    if (!is_better) return HY_OK;
    hy_plan_reason(facts,
                   "%s for passes, more than they need: answers are generated there, and a rollout "
                   "takes %.3g s instead of %.3g s",
                   hy_bytes_as_text(plan->work.activations + plan->work.workspace).text, rollout,
                   before);
    return HY_OK;
}
